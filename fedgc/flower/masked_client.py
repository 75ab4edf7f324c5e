"""A site's end of masked exchanges: its machine, its disk, and masks that grow while it trains.

The machine (`secagg.Client`) says what to write and what to answer; here is the vault that it is written to,
always before the answer leaves. A write that fails ends the site's part: its memory and its disk may
differ then, and only a new start, from the disk, is sure to mask nothing twice.

A node that has a descriptor takes part in masked runs under that descriptor and in no others: what a server
asks for otherwise is refused here, before anything is trained.
"""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.config import RunConfig
from fedgc.errors import BadMessage, BadSetting, EdgeFailed, FedgcError, NotAdmitted, NotHere
from fedgc.links.log import LOG
from fedgc.messages import (
    Advert,
    Begin,
    Deal,
    Enrolled,
    Failed,
    Joined,
    Open,
    Persist,
    Progress,
    Repair,
    Report,
    Reveal,
    Roster,
    Shares,
    Signed,
    Survivors,
    ToClient,
    ToMember,
    Unmask,
)
from fedgc.secagg import Client, Federation, Pad, Step, packets, rules
from fedgc.secagg.keystream import Words
from fedgc.store.descriptor import read_descriptor
from fedgc.training import Engine, Start

if TYPE_CHECKING:
    from fedgc.store.vault import Vault

Float = NDArray[np.float32]
Entropy = Callable[[int], bytes]
Answer = Advert | Deal | Signed | Shares
Said = Joined | Progress | Report | Failed

ENTROPY_BYTES: Final = 32
DESCRIPTOR, VAULT, KEY = "federation", "vault", "vault-key"  # what a node's config calls them
SAID_AT_HOME: Final = "it could not do its part; the reason is in its own log"


def failure(command: ToClient, error: FedgcError) -> Failed:
    """Return what to say, in the open, of something that could not be done."""
    chunks = error.chunks if isinstance(error, NotHere) else ()  # it can still give the others
    return Failed(0.0, command.client, command.round, str(error), chunks)


class MaskedClient:
    """One site in one federation, from the start of a process to its end."""

    def __init__(
        self,
        federation: Federation,
        vault: "Vault",
        config: RunConfig,
        wall: Callable[[], float],
        entropy: Entropy,
    ) -> None:
        """`wall` tells seconds since 1970."""
        self._vault = vault
        self._config = config
        self._wall = wall
        self._entropy = entropy
        self._beside = ThreadPoolExecutor(1, "fedgc-masks")
        self._pad: Future[Pad] | None = None
        self._digests: deque[tuple[Float, bytes]] = deque(maxlen=2)
        records = vault.records(federation.fid)
        self._client: Client | None = Client.start(federation, vault.identity(), records)
        self.federation: Final = federation

    def close(self) -> None:
        """Let go of the vault."""
        self._beside.shutdown()
        self._vault.close()

    @property
    def reach(self) -> float | None:
        """How far one record may move an update, where the descriptor bounds that."""
        return self.federation.privacy.record_clip if self.federation.privacy else None

    # ---- packets

    def enrolled(self, client: str, run: str) -> Enrolled:
        """Return what says that this site is there."""
        machine = self._machine()
        signature = machine.enrol(run, client)
        return Enrolled(0.0, client, self.federation.fid, machine.number, machine.state.epoch, signature)

    def heard(self, command: ToMember, start: Start | None) -> Answer | None:
        """Do what a packet asks for and return what to say, if anything; or raise, and nothing has changed.

        `start` is what the present work starts from, as it came.
        """
        machine, client, round_ = self._machine(), command.client, command.round
        match command:
            case Open(packet=packet):
                step = machine.open(packets.Open.unpack(packet), self._wall(), self._entropy(ENTROPY_BYTES))
                return Advert(0.0, client, round_, self._taken(step))
            case Roster(packet=packet):
                step = machine.join(packets.Roster.unpack(packet), self._wall(), self._entropy(ENTROPY_BYTES))
                return Deal(0.0, client, round_, self._taken(step))
            case Begin(packet=packet):
                self._begin(machine, packets.Begin.unpack(packet), start)
                return None
            case Survivors(packet=packet):
                return Signed(0.0, client, round_, self._taken(machine.agree(packets.Agree.unpack(packet))))
            case Unmask(packet=packet):
                return Shares(0.0, client, round_, self._taken(machine.unlock(packets.Unlock.unpack(packet))))

    def _begin(self, client: Client, packet: packets.Begin, start: Start | None) -> None:
        """Bind the exchange to the start that came; what would only cost memory is refused before that."""
        if start is None:
            raise BadMessage("begin: saw no model, needed the work of its round before it")
        if packet.size != start.model.size:
            raise BadMessage(f"begin: saw {packet.size} numbers, needed the model's {start.model.size}")
        if packet.settings != self._footing(start):
            raise BadMessage(
                "begin: saw other settings of the run, or another shared momentum, than this site was given"
            )
        self._taken(client.begin(packet, self._digest(start.model)))
        bound = self._machine()
        if bound is not client or (self._pad is None and not _is_used(bound)):
            self._pad = self._beside.submit(bound.pad)

    # ---- what else leaves the site

    def discreet(self, event: Said, start: Start | None) -> Any:  # noqa: ANN401  an event of the same kind
        """Return an event without what only a sum may tell: sizes, losses, norms, sketches, partial steps.

        A chunk counts as one sample; `start` is what the present work starts from. The gate is told the
        power of 4 nearest to the squared norm, and nothing if it does not ask.
        """
        match event:
            case Joined():
                return replace(event, holds=tuple(replace(held, samples=1) for held in event.holds), kept=())
            case Progress():
                norm = self._coarse(event.squared_norm)
                return replace(event, samples=1, squared_norm=norm, loss=0.0, sketch=())
            case Report():
                norm = self._coarse(event.squared_norm)
                return replace(event, samples=start.chunks if start else 0, squared_norm=norm, loss=0.0)
            case Failed():
                LOG.warning("round %d: %s", event.round, event.reason)
                return replace(event, reason=SAID_AT_HOME)
        return event

    def failed(self, command: ToClient, error: FedgcError) -> Failed:
        """Return what to say of something that could not be done; numbers of the work stay in the own log."""
        LOG.warning("%s of round %d: %s", type(command).__name__, command.round, error)
        about_packets = isinstance(error, BadMessage | NotAdmitted)
        return Failed(0.0, command.client, command.round, str(error) if about_packets else SAID_AT_HOME)

    def _coarse(self, squared_norm: float) -> float:
        if self._config.measure != "distance" or not squared_norm > 0:
            return 0.0
        return float(4.0 ** round(math.log(squared_norm, 4.0)))

    # ---- vectors

    def revealed(self, command: Reveal | Repair, engine: Engine) -> Words:
        """Return what is asked for, under masks: all that is finished, averaged here and masked once."""
        if not isinstance(command, Reveal) or command.kind != "masked":
            raise BadMessage(f"{type(command).__name__}: saw an update asked for in the clear, needed masks")
        update, weight = engine.mean_update(command)
        w_max = self.federation.quantizer.w_max
        if engine.start is None:
            raise BadMessage("reveal: saw no work, needed that of its round before it")
        return self.masked(update, w_max if self.federation.privacy else min(w_max, weight), engine.start)

    def masked(self, update: Float, weight: int, start: Start) -> Words:
        """Return the update under its masks, once; asked for again in this process, the same bytes.

        `start` is what the update was made from.
        """
        client = self._machine()
        turn = client.state.turn
        if turn is not None and turn.used and turn.vector is not None:
            return turn.vector
        pad = self._pad.result() if self._pad is not None else client.pad()
        self._pad = None
        made_from = rules.start(self._digest(start.model), self._footing(start))
        words: Words = self._taken(
            client.upload(update, weight, made_from, pad, self._entropy(ENTROPY_BYTES))
        )
        return words

    # ---- small print

    def _footing(self, start: Start) -> bytes:
        before = b"" if start.before is None else self._digest(start.before)
        return rules.footing(self._config.shape, start.first_step, start.common_steps, before)

    def _digest(self, model: Float) -> bytes:
        """Return a model's SHA-256; of the two last ones it is known, as nobody writes to a model."""
        for known, found in self._digests:
            if known is model:
                return found
        self._digests.append((model, hashlib.sha256(model.data.cast("B")).digest()))
        return self._digests[-1][1]

    @property
    def broken(self) -> bool:
        """Whether a write failed: only a new start, from the disk, helps."""
        return self._client is None

    def _machine(self) -> Client:
        if self._client is None:
            raise EdgeFailed("vault: saw a write fail before, needed a new start of this client")
        return self._client

    def _taken(self, step: Step) -> Any:  # noqa: ANN401  a packet's bytes, a vector, or nothing
        """Do what the machine says, in its order."""
        client, todo = step
        content = None
        for each in todo:
            if isinstance(each, Persist):
                self._client = None
                self._vault.write(self.federation.fid, each.record)
            else:
                content = each.content
        self._client = client
        return content


def _is_used(client: Client) -> bool:
    turn = client.state.turn
    return turn is not None and turn.used


def site_of(
    config: RunConfig,
    node: Mapping[str, object],
    environment: Mapping[str, str],
    wall: Callable[[], float],
    entropy: Entropy,
) -> MaskedClient | None:
    """Return what a node's config makes of it, or raise where run and node do not agree on secrecy."""
    pinned, masked = node.get(DESCRIPTOR), config.secrecy == "masked"
    if not pinned and not masked:
        return None
    if not masked:
        raise BadSetting(
            f"node config {DESCRIPTOR}: this site takes part in masked runs alone, "
            f"saw secrecy = {config.secrecy}"
        )
    from fedgc.store.vault import PASSPHRASE_IN, Vault, secret_of  # a database, which no other client needs

    if not pinned or not node.get(VAULT):
        raise BadSetting(f"node config: a masked run needs {DESCRIPTOR} and {VAULT}, saw {sorted(node)}")
    federation = read_descriptor(Path(str(pinned))).federation
    if federation.privacy is not None and config.measure != "none":
        raise BadSetting(
            f"setting gate.name: saw {config.chosen_gate}, which weighs a {config.measure} of each client, "
            "needed one that weighs none: with privacy no norm may leave"
        )
    said = secret_of(Path(str(node[KEY])) if node.get(KEY) else None, environment)
    if said is None:
        raise BadSetting(f"node config: the vault needs {KEY} here, or {PASSPHRASE_IN} in the environment")
    vault = Vault.open(Path(str(node[VAULT])), said)
    try:
        return MaskedClient(federation, vault, config, wall, entropy)
    except BaseException:
        vault.close()
        raise
