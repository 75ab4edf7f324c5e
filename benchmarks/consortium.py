"""Secure aggregation of several sites in one process, with the CPU seconds of each step.

Links are excluded: no messages and no disk. The cost of a step is recorded for the party that does it; each
entry is one step of one site or of the server.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.large_vectors import Readable
from fedgc.secagg import (
    Client,
    Epoch,
    Exchange,
    Federation,
    Identity,
    MaskedVector,
    Quantizer,
    Reply,
    RingSum,
    SetUp,
    Step,
    Terms,
    packets,  # fmt: skip
)
from fedgc.secagg.federation import least_threshold, member_list
from fedgc.secagg.graph import Graph

Float = NDArray[np.float32]
Entropy = Callable[[int], bytes]

EXCHANGES: Final = 32  # exchanges of one set-up, which share its cost
_NOW: Final = 0.0


def staying(count: int) -> int:
    """Return how many of a large federation's sites sign the survivors of an exchange."""
    return count - count // 10


class Watch:
    """CPU seconds of this process and uploaded bytes, by kind of step."""

    def __init__(self) -> None:
        self.seconds: Final[defaultdict[str, list[float]]] = defaultdict(list)
        self.size_bytes: Final[defaultdict[str, list[int]]] = defaultdict(list)

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Record the time of the enclosed block as this kind of step."""
        began = time.process_time()
        yield
        self.seconds[what].append(time.process_time() - began)


class Consortium:
    """Sites and a server, with the keys of one epoch."""

    def __init__(
        self, count: int, quantizer: Quantizer, entropy: Entropy, watch: Watch, graph: Graph | None = None
    ) -> None:
        """Set up the epoch and record its cost; with a graph all but a tenth of the sites must stay."""
        identities = [Identity(entropy(32)) for _ in range(count)]
        members = member_list([(f"site {at:03}", each.public) for at, each in enumerate(identities)])
        threshold = least_threshold(count) if graph is None else staying(count)
        self._pinned = Federation(members, threshold, 3, EXCHANGES, quantizer, graph=graph)
        self._entropy = entropy
        made = [Client.start(self._pinned, each, {}) for each in identities]
        self._clients = sorted(made, key=lambda client: client.number)
        self._number = 0
        self._epoch = self._set_up(watch)

    def round(self, update: Float, weight: int, lost: int, watch: Watch) -> tuple[Float, float]:
        """Run one exchange of this update; the last `lost` sites drop out before they upload.

        Return the mean of the others, and the bound on the error of its numbers.
        """
        exchange = self.begin(update.size, watch)
        total = RingSum(self._pinned.quantizer, update.size)
        survivors = range(len(self._clients) - lost)
        for member in survivors:
            with watch.on("client vector"):
                vector = self.masked(member, update, weight)[:]
            watch.size_bytes["vector"].append(vector.nbytes)
            with watch.on("server vector"):
                total.add(vector)
        return self.finish(exchange, total, survivors, watch)

    def begin(self, size: int, watch: Watch) -> Exchange:
        """Begin an exchange of all sites, of a model with so many numbers."""
        self._number += 1
        model, everyone = hashlib.sha256(self._number.to_bytes(8, "big")).digest(), range(len(self._clients))
        with watch.on("server packets"):
            exchange, begun = self._epoch.begin(self._number, everyone, Terms(size, b"", model))
        for member, packet in begun.items():
            sent = packet.pack()
            with watch.on("client packets"):
                step = self._clients[member].begin(packets.Begin.unpack(sent), model)
            self._done(member, step)
            self._epoch = self._epoch.supply(member)
        return exchange

    def masked(self, member: int, update: Readable, weight: int) -> MaskedVector:
        """Return what a site sends, which is computed as it is read."""
        client = self._clients[member]
        vector: MaskedVector = self._done(
            member, client.upload(update, weight, client.state.start, self._entropy(32))
        )
        state = self._clients[member].state  # a site keeps its vector; a thousand do not fit here
        if state.turn is not None:
            without = replace(state, turn=replace(state.turn, vector=None))
            self._clients[member] = replace(self._clients[member], state=without)
        return vector

    def finish(
        self, exchange: Exchange, total: RingSum, survivors: Sequence[int], watch: Watch
    ) -> tuple[Float, float]:
        """Unmask the sum of these sites' vectors; return the mean, and the bound on its error."""
        exchange = self._unlocked(exchange, survivors, watch)
        with watch.on("server packets"):
            masks = exchange.masks()
        with watch.on("server vector"):
            total.remove(masks)
            mean, weights = total.mean()
        return mean, self._pinned.quantizer.bound(len(survivors), weights)

    # ---- set-up

    def _set_up(self, watch: Watch) -> Epoch:
        setup, numbers = SetUp(self._pinned, 1), range(len(self._clients))
        for member in numbers:
            with watch.on("client"):
                step = self._clients[member].open(setup.packet(), _NOW, self._entropy(32))
            advert = self._said(member, step, watch)
            with watch.on("server"):
                setup = setup.admit(packets.Advert.unpack(advert), _NOW)
        with watch.on("server"):
            setup, roster = setup.roster()
        sent = roster.pack()
        for member in numbers:
            with watch.on("client"):
                step = self._clients[member].join(packets.Roster.unpack(sent), _NOW, self._entropy(32))
            deal = self._said(member, step, watch)
            with watch.on("server"):
                setup = setup.receive(packets.Deal.unpack(deal))
        return setup.close()

    # ---- an exchange

    def _unlocked(self, exchange: Exchange, survivors: Sequence[int], watch: Watch) -> Exchange:
        exchange, agree = exchange.agree(survivors)
        sent = agree.pack()
        for member in survivors:
            with watch.on("client packets"):
                step = self._clients[member].agree(packets.Agree.unpack(sent))
            signature = self._said(member, step, watch)
            with watch.on("server packets"):
                exchange = exchange.sign(member, signature)
        sent = exchange.unlock().pack()
        for member in survivors:
            with watch.on("client packets"):
                packet = packets.Unlock.unpack(sent)
                self._done(member, self._clients[member].note(packet))
                step = self._clients[member].unlock(packet)
            opened = self._said(member, step, watch)
            with watch.on("server packets"):
                exchange = exchange.open(packets.Opened.unpack(opened))
        return exchange

    def _said(self, member: int, step: Step, watch: Watch) -> bytes:
        packet: bytes = self._done(member, step)
        watch.size_bytes["packets"].append(len(packet))
        return packet

    def _done(self, member: int, step: Step) -> Any:  # noqa: ANN401  a packet, a vector or nothing
        self._clients[member], todo = step
        return next((each.content for each in todo if isinstance(each, Reply)), None)
