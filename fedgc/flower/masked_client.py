"""A site's side of secure aggregation: its state machine and its vault.

The state machine (`secagg.Client`) says what to write and what to answer. Its state is written to the vault
before the answer is sent. After a failed write, memory and disk may differ, so the client must restart from
the vault, which ensures that no update is masked twice.

A node with a descriptor takes part only in masked runs of that descriptor. Other requests are refused before
training.
"""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.config import RunConfig
from fedgc.errors import (
    BadMessage,
    BadSetting,
    EdgeFailed,
    FedgcError,
    NotAdmitted,
    NotAllowed,
    NotHere,
    Unexpected,
    words_of,
)
from fedgc.flower.app_guard import DESCRIPTOR
from fedgc.flower.masked_federation import federation_of
from fedgc.large_vectors import Readable
from fedgc.links.log import LOG
from fedgc.messages import (
    LONGEST_REASON,
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
from fedgc.secagg import Client, Federation, MaskedVector, Step, packets, rules
from fedgc.training import Answer, Start

if TYPE_CHECKING:
    from fedgc.store.vault import Vault

Float = NDArray[np.float32]
Entropy = Callable[[int], bytes]
Reply = Advert | Deal | Signed | Shares
ClientEvent = Joined | Progress | Report | Failed

ENTROPY_BYTES: Final = 32
VAULT, KEY = "vault", "vault-key"  # keys of the node config
SEE_CLIENT_LOG: Final = "it could not do its part; the reason is in its own log"
ABOUT_PACKETS: Final = (BadMessage, NotAdmitted, NotAllowed)  # these say nothing of a site's data


def failure(command: ToClient | Report, error: FedgcError) -> Failed:
    """Return the event for a failed command of a run without masks."""
    chunks = error.chunks if isinstance(error, NotHere) else ()  # the other chunks are available
    return Failed(0.0, command.client, command.round, str(error)[:LONGEST_REASON], chunks)


@contextmanager
def keeps_reasons() -> Iterator[None]:
    """Keep the reason of an error in this client's log: Flower sends the text of one to the server."""
    try:
        yield
    except ABOUT_PACKETS:
        raise
    except Exception as error:  # the code of the task may raise anything
        is_ours = isinstance(error, FedgcError)
        LOG.warning("%s", words_of(error), exc_info=None if is_ours else error)
        if not is_ours:
            raise Unexpected(SEE_CLIENT_LOG) from error
        error.args = (SEE_CLIENT_LOG,)
        raise


class MaskedClient:
    """One site of a federation, for the lifetime of a process."""

    def __init__(
        self,
        federation: Federation,
        vault: "Vault",
        config: RunConfig,
        wall: Callable[[], float],
        entropy: Entropy,
    ) -> None:
        """`wall` returns seconds since 1970."""
        self._vault = vault
        self._config = config
        self._wall = wall
        self._entropy = entropy
        self._digests: deque[tuple[Float, bytes]] = deque(maxlen=2)
        records = vault.records(federation.fid)
        self._client: Client | None = Client.start(federation, vault.identity(), records)
        self.federation: Final = federation

    def close(self) -> None:
        """Close the vault."""
        self._vault.close()

    # ---- packets

    def enrolled(self, client: str, run: str) -> Enrolled:
        """Return the event that enrols this site."""
        machine = self._machine()
        signature = machine.enrol(run, client)
        return Enrolled(0.0, client, self.federation.fid, machine.number, machine.state.epoch, signature)

    def handle(self, command: ToMember, start: Start | None) -> Reply | None:
        """Carry out a packet and return the answer, if any; an exception leaves the state unchanged.

        `start` is the starting point of the present work.
        """
        machine, client, round_ = self._machine(), command.client, command.round
        match command:
            case Open(packet=packet):
                step = machine.open(packets.Open.unpack(packet), self._wall(), self._entropy(ENTROPY_BYTES))
                return Advert(0.0, client, round_, self._carry_out(step))
            case Roster(packet=packet):
                step = machine.join(packets.Roster.unpack(packet), self._wall(), self._entropy(ENTROPY_BYTES))
                return Deal(0.0, client, round_, self._carry_out(step))
            case Begin(packet=packet):
                self._begin(machine, packets.Begin.unpack(packet), start)
                return None
            case Survivors(packet=packet):
                return Signed(
                    0.0, client, round_, self._carry_out(machine.agree(packets.Agree.unpack(packet)))
                )
            case Unmask(packet=packet):
                unlock = packets.Unlock.unpack(packet)
                self._carry_out(machine.note(unlock))
                return Shares(0.0, client, round_, self._carry_out(self._machine().unlock(unlock)))

    def _begin(self, client: Client, packet: packets.Begin, start: Start | None) -> None:
        """Bind the exchange to the start of the present work, after checking size and settings."""
        if start is None:
            raise BadMessage("begin: saw no model, needed the work of its round before it")
        if packet.size != start.model.size:
            raise BadMessage(f"begin: saw {packet.size} numbers, needed the model's {start.model.size}")
        if packet.settings != self._start_digest(start):
            raise BadMessage(
                "begin: saw other settings of the run, or another shared momentum, than this site was given"
            )
        self._carry_out(client.begin(packet, self._digest(start.model)))

    # ---- events

    def redacted(self, event: ClientEvent, start: Start | None) -> Any:  # noqa: ANN401  an event of the same kind
        """Return an event without sample counts, losses, norms, sketches and partial steps.

        A chunk counts as one sample. If the gate uses norms, the squared norm is rounded to a power of 4.
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
                return replace(event, reason=SEE_CLIENT_LOG)
        return event

    def failed(self, command: ToClient | Report, error: FedgcError) -> Failed:
        """Return the event for a failed command; details of the work are only logged here."""
        LOG.warning("%s of round %d: %s", type(command).__name__, command.round, error)
        reason = str(error)[:LONGEST_REASON] if isinstance(error, ABOUT_PACKETS) else SEE_CLIENT_LOG
        return Failed(0.0, command.client, command.round, reason)

    def _coarse(self, squared_norm: float) -> float:
        if self._config.measure != "distance" or not squared_norm > 0:
            return 0.0
        return float(4.0 ** round(math.log(squared_norm, 4.0)))

    # ---- vectors

    @staticmethod
    def must_be_masked(command: Reveal | Repair) -> None:
        """Raise BadMessage if the command asks for a vector in the clear."""
        if not isinstance(command, Reveal) or command.kind != "masked":
            raise BadMessage(f"{type(command).__name__}: saw an update asked for in the clear, needed masks")

    def masked_answer(self, answer: Answer, start: Start | None) -> MaskedVector:
        """Return the masked mean update of all finished work."""
        if start is None or answer.vector is None:
            raise BadMessage("reveal: saw no work, needed that of its round before it")
        w_max = self.federation.quantizer.w_max
        weight = w_max if self.federation.privacy else min(w_max, answer.weight)
        return self.masked(answer.vector, weight, start)

    def masked(self, update: Readable, weight: int, start: Start) -> MaskedVector:
        """Return the masked update; a repeated call in this process returns the same one.

        `start` is the starting point of the update, which is read until the round is closed.
        """
        client = self._machine()
        turn = client.state.turn
        if turn is not None and turn.used and turn.vector is not None:
            return turn.vector
        made_from = rules.start(self._digest(start.model), self._start_digest(start))
        vector: MaskedVector = self._carry_out(
            client.upload(update, weight, made_from, self._entropy(ENTROPY_BYTES))
        )
        return vector

    # ---- internals

    def _start_digest(self, start: Start) -> bytes:
        before = b"" if start.before is None else self._digest(start.before)
        return rules.footing(self._config.shape, start.first_step, start.common_steps, before)

    def _digest(self, model: Float) -> bytes:
        """Return a model's SHA-256, cached for the last two models, which are never written to."""
        for known, found in self._digests:
            if known is model:
                return found
        self._digests.append((model, hashlib.sha256(model.data.cast("B")).digest()))
        return self._digests[-1][1]

    @property
    def broken(self) -> bool:
        """Whether a write failed, so that the client must restart from the vault."""
        return self._client is None

    def _machine(self) -> Client:
        if self._client is None:
            raise EdgeFailed("vault: saw a write fail before, needed a new start of this client")
        return self._client

    def _carry_out(self, step: Step) -> Any:  # noqa: ANN401  a packet's bytes, a vector, or nothing
        """Carry out a step of the state machine in its order; return its content."""
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


def site_of(
    config: RunConfig,
    node: Mapping[str, object],
    environment: Mapping[str, str],
    wall: Callable[[], float],
    entropy: Entropy,
) -> MaskedClient | None:
    """Return the site of a masked run, None for others; raise if run and node config disagree on secrecy."""
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
    federation = federation_of(Path(str(pinned)), config)
    passphrase = secret_of(Path(str(node[KEY])) if node.get(KEY) else None, environment)
    if passphrase is None:
        raise BadSetting(f"node config: the vault needs {KEY} here, or {PASSPHRASE_IN} in the environment")
    vault = Vault.open(Path(str(node[VAULT])), passphrase)
    try:
        return MaskedClient(federation, vault, config, wall, entropy)
    except BaseException:
        vault.close()
        raise
