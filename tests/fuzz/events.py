"""Hostile events for the two state machines: well-formed, of every class, in any order, with any values.

A client decides on all of an event but its time and its sender, which the link stamps. Here it says anything
that the classes allow: huge and tiny numbers, old and future rounds, chunks and vectors that it was never
asked for, packets that are none, and what it said before.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fedgc.errors import BadMessage
from fedgc.messages import (
    LARGEST_COUNT,
    LARGEST_SKETCH,
    SKETCH_NUMBERS,
    Advert,
    Announced,
    Closing,
    Codeword,
    Deal,
    Enrolled,
    Failed,
    Fetched,
    Held,
    Joined,
    Kept,
    Layout,
    Leaving,
    LinkEvent,
    Loaded,
    Lost,
    Offered,
    Progress,
    Report,
    Scored,
    Shares,
    Signed,
    TensorSpec,
)

INTEGERS = (0, 1, 2, 3, 4, 5, 7, 8, 12, 100, 2**31 - 1, 2**31, 2**53, LARGEST_COUNT, 2**63, 2**64, -1)
FLOATS = (0.0, 5e-324, 1e-300, 1e-9, 0.1, 1.0, 1e9, 1e18, 1e30, 1e31, 1e300, -1.0, -1e30)
NORMS = (*FLOATS, float("inf"), float("-inf"), float("nan"))
NAMES = ("invented", "part 0", "shared 0", "a 0", "\x00", "é" * 40, "x" * 500)
DIGESTS = ("", "", "false", "?", "0" * 16)
TEXTS = ("", "a lie", "\x1b[2J", "x" * 1000, "two\nlines", "a b c")
PACKETS = (b"?", bytes(64), b"{}" * 50, b"\xff" * 1000)
REPEATED = 64  # events that may be said again


class HostileEvents:
    """Makes events; the same `chance` makes the same ones."""

    def __init__(self, chance: random.Random, known: Callable[[], Sequence[Held]]) -> None:
        """`known` returns chunks that are true, which a lie may name too."""
        self._chance = chance
        self._known = known
        self._said: deque[LinkEvent] = deque(maxlen=REPEATED)

    def event(self, now: float, client: str, round_: int, version: int) -> LinkEvent:
        """Return an event of this client."""
        self._now, self._client, self._round, self._version = now, client, round_, version
        mine = [each for each in self._said if getattr(each, "client", "") == client]
        if mine and self._chance.random() < 0.05:
            return self._chance.choice(mine)
        while True:
            try:
                made: LinkEvent = self._chance.choice(_MAKERS)(self)
            except BadMessage:  # not well-formed: a link refuses it
                continue
            self._said.append(made)
            return made

    # ---- values

    def _of(self, values: Sequence[Any]) -> Any:
        return self._chance.choice(values)

    def _count(self) -> int:
        return int(self._of(INTEGERS))

    def _rounds(self) -> int:
        near = (self._round, self._round, self._round, self._round - 1, self._round + 1, 0)
        return max(0, self._of(near)) if self._chance.random() < 0.9 else self._count()

    def _versions(self) -> int:
        return max(
            0, self._of((self._version, self._version, self._version - 1, self._version + 1, self._count()))
        )

    def _chunk(self) -> int:
        return self._chance.randrange(12) if self._chance.random() < 0.8 else self._count()

    def _chunks(self) -> tuple[int, ...]:
        return tuple({self._chunk() for _ in range(self._of((0, 1, 1, 2, 5)))})

    def _steps(self) -> int:
        return self._of((0, 1, 2, 3, 4, 8)) if self._chance.random() < 0.8 else self._count()

    def _float(self) -> float:
        return float(self._of(FLOATS))

    def _seconds(self) -> float:
        return self._of((0.0, 0.1, 0.5, self._now)) if self._chance.random() < 0.7 else self._float()

    def _sketch(self) -> tuple[float, ...]:
        each = self._of((0.0, 7.0, 1e-300, LARGEST_SKETCH, -LARGEST_SKETCH, 1e60))
        return () if self._chance.random() < 0.4 else (each,) * SKETCH_NUMBERS

    def _held(self) -> Held:
        known = self._known()
        if known and self._chance.random() < 0.5:
            return self._of(known)
        return Held(self._of(NAMES), self._count(), self._of(DIGESTS))

    # ---- events

    def _joined(self) -> LinkEvent:
        holds = {held.name: held for held in (self._held() for _ in range(self._of((0, 1, 2, 4, 8))))}
        kept = {
            chunk: Kept(self._versions(), chunk, self._steps(), self._sketch()) for chunk in self._chunks()
        }
        return Joined(
            self._now, self._client, self._of((True, True, False)), (*holds.values(),), (*kept.values(),)
        )

    def _progress(self) -> LinkEvent:
        return Progress(
            self._now, self._client, self._rounds(), self._chunk(), self._steps(), self._seconds(),
            self._of((7, 8, 9, 10, 11, self._count())), self._float(), self._float(), self._sketch(),
        )  # fmt: skip

    def _report(self) -> LinkEvent:
        return Report(
            self._now, self._client, self._rounds(), self._steps(), self._count(), self._seconds(),
            self._of(NORMS), self._float(),
        )  # fmt: skip

    def _failed(self) -> LinkEvent:
        return Failed(self._now, self._client, self._rounds(), self._of(TEXTS), self._chunks())

    def _codeword(self) -> LinkEvent:
        attempt = self._of((0, 0, 1, 2, 70, self._count()))
        return Codeword(self._now, self._client, self._rounds(), attempt, self._seconds(), self._count())

    def _offered(self) -> LinkEvent:
        return Offered(self._now, self._client, self._rounds(), self._count())

    def _loaded(self) -> LinkEvent:
        return Loaded(self._now, self._client, self._versions(), self._seconds(), self._count())

    def _fetched(self) -> LinkEvent:
        return Fetched(self._now, self._client, self._count(), self._count(), self._seconds())

    def _leaving(self) -> LinkEvent:
        return Leaving(self._now, self._client, abs(self._float()))

    def _closing(self) -> LinkEvent:
        return Closing(self._now, self._client, abs(self._float()))

    def _lost(self) -> LinkEvent:
        return Lost(self._now, self._client)

    def _enrolled(self) -> LinkEvent:
        return Enrolled(self._now, self._client, bytes(32), self._count(), self._count(), bytes(64))

    def _advert(self) -> LinkEvent:
        return Advert(self._now, self._client, self._rounds(), self._of(PACKETS))

    def _deal(self) -> LinkEvent:
        return Deal(self._now, self._client, self._rounds(), self._of(PACKETS))

    def _signed(self) -> LinkEvent:
        return Signed(self._now, self._client, self._rounds(), bytes([self._chance.randrange(256)]) * 64)

    def _shares(self) -> LinkEvent:
        return Shares(self._now, self._client, self._rounds(), self._of(PACKETS))

    def _announced(self) -> LinkEvent:
        sides = tuple(self._of((0, 1, 5, 2**20, 1 << 40)) for _ in range(self._of((0, 1, 2, 40))))
        tensors = tuple(TensorSpec(name, "float32", sides) for name in self._of((("w",), ("w", "b"), ())))
        return Announced(
            self._now, self._client, Layout(tensors, self._of((1, 2, 5)), self._of(("", "a1" * 32)))
        )

    def _scored(self) -> LinkEvent:
        figures = tuple((name, self._of(NORMS)) for name in self._of(((), ("loss",), ("loss", "x" * 100))))
        return Scored(self._now, self._client, self._versions(), self._count(), figures, self._of(TEXTS))


_MAKERS: Sequence[Callable[[HostileEvents], LinkEvent]] = (
    *(HostileEvents._progress,) * 4,
    *(HostileEvents._report,) * 3,
    *(HostileEvents._codeword,) * 3,
    *(HostileEvents._failed, HostileEvents._loaded, HostileEvents._offered) * 2,
    *(HostileEvents._joined, HostileEvents._leaving, HostileEvents._lost, HostileEvents._closing),
    *(HostileEvents._enrolled, HostileEvents._advert, HostileEvents._deal, HostileEvents._signed),
    *(HostileEvents._shares, HostileEvents._announced, HostileEvents._scored, HostileEvents._fetched),
)
