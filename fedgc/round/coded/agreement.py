"""Agreement among replicas of a chunk: which are equal, and which clients are wrong.

All replicas of a chunk update are one vector up to rounding (same model, batches and random seed on every
holder), and each report has a sketch of it, 16 random projections. The rounding is that of the model's
numbers, however short the update is: near a minimum on its data it is much of it. A replica whose sketch is
far from the first one's is not counted: hardware breaks, and memory flips. If a third replica agrees with the
excluded one, the first was wrong, and the verdict turns. A single replica cannot be judged; nor can the
vector itself be checked against its sketch, for which clients of one site are trusted.

Two replicas that differ do not show which is wrong, so the second client is not blamed. A client is blamed
for a chunk once at least two clients, and a majority, agree on another replica, or if it sends no sketch
while another does (masked clients send none, all of them). It is *accused* for all its chunks once it has
differed in at least two chunks and from at least two others, and from more of them than each of those has:
this finds one false client when every chunk has two holders only, and such a client cannot have any other
accused.

Only present clients that still hold their replica count. A replica that no present client holds gives way to
one that some client holds. Once vectors are collected nothing else turns, and not even that if something of
the chunk is in the sum.

The report of a replica stands for it.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fedgc.codes import estimate_correlation
from fedgc.gates import Report, Reports
from fedgc.messages import Progress

COPIES_AGREE: Final = 1e-2  # largest distance of two sketches of one vector, relative to the longer
NOTHING: Final = 1e-12  # shorter sketches belong to an empty update
ROUNDING: Final = 16 * 2.0**-24  # times the model's norm: of float32, in some steps on other hardware
MANY: Final = 2  # clients: more than one false client


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a replica counts; if it turned the verdict, which clients were wrong and right before.

    `blamed` are those now known to be wrong.
    """

    distance: float | None = None
    wrong: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    blamed: tuple[int, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether the replica counts."""
        return self.distance is None


@dataclass(slots=True)
class _Side:
    copy: Progress
    holders: dict[int, bool] = field(default_factory=dict)  # by client, and whether it still has its replica

    @property
    def here(self) -> tuple[int, ...]:
        """The present clients that hold this replica."""
        return tuple(w for w, has in self.holders.items() if has)

    @property
    def rank(self) -> tuple[bool, int]:
        """The sort key for which replica is believed: those with a sketch before those without."""
        return bool(self.copy.sketch and self.here), len(self.here)


AGREES: Final = Verdict()


class ReplicaAgreement:
    """Compares the replicas of a round, by chunk (number in the run's table)."""

    def __init__(self) -> None:
        self._sides: dict[int, list[_Side]] = {}  # the believed side is first
        self._blamed: set[tuple[int, int]] = set()  # chunk and client
        self._against: dict[int, set[int]] = {}  # which clients each one has differed from
        self._in: dict[int, set[int]] = {}  # and the chunks in which it has differed

    @property
    def believed(self) -> Mapping[int, Progress]:
        """The believed replica of each chunk, with which later ones are compared."""
        return {chunk: sides[0].copy for chunk, sides in self._sides.items()}

    def hear(self, chunk: int, w: int, copy: Progress) -> Verdict:
        """Enter a replica, and return whether it counts; the one with more clients is believed."""
        mine = self._told(chunk, w, copy)
        before = self._sides[chunk][0]
        if mine is not before and mine.rank > before.rank:
            return replace(self._believe(chunk, mine, w), blamed=self._blame(chunk))
        return self._verdict(chunk, mine, copy)

    def judge(self, chunk: int, w: int, copy: Progress, summed: Collection[int] = ()) -> Verdict:
        """Enter a replica while vectors are collected; part of the `summed` chunks is in the sum."""
        mine = self._told(chunk, w, copy)
        before = self._sides[chunk][0]
        if mine is not before and not before.here and chunk not in summed:
            return self._believe(chunk, mine, w)
        return self._verdict(chunk, mine, copy)

    def accused(self) -> tuple[int, ...]:
        """Return the clients newly accused: each differed from enough others to be wrong itself."""
        against = self._against
        found = [
            w
            for w, others in against.items()
            if min(len(others), len(self._in[w])) >= MANY
            and all(len(against[other]) < len(others) for other in others)
        ]
        for w in found:  # no other client is accused for having differed from it
            for other in against.pop(w):
                against[other].discard(w)
        return tuple(found)

    def disputed(self) -> Mapping[int, tuple[int, ...]]:
        """Return by chunk the clients whose replicas differ, if it is unknown which is wrong."""
        return {
            chunk: tuple(sorted(w for side in sides for w in side.here))
            for chunk, sides in self._sides.items()
            if sum(bool(side.here) for side in sides) > 1
            and not any((chunk, w) in self._blamed for side in sides for w in side.holders)
        }

    def stands(
        self, w: int, kept: Collection[int] = (), summed: Collection[int] = ()
    ) -> Mapping[int, tuple[int, ...]]:
        """Update the replicas that a lost or returning client holds; return the clients that count now."""
        return self._note(w, {chunk: chunk in kept for chunk in self._sides}, summed)

    def cannot(
        self, w: int, chunks: Collection[int], summed: Collection[int] = ()
    ) -> Mapping[int, tuple[int, ...]]:
        """Note that a client cannot give these chunks; return the clients that count now, by chunk."""
        return self._note(w, dict.fromkeys(self._sides.keys() & chunks, False), summed)

    def _told(self, chunk: int, w: int, copy: Progress) -> _Side:
        """Move a client to the side of its replica."""
        sides = self._sides.get(chunk)
        if sides is None:
            mine = _Side(copy, {w: True})
            self._sides[chunk] = [mine]
            return mine
        for mine in sides:
            if _distance(mine.copy, copy) is None:
                break
        else:
            mine = _Side(copy)
            sides.append(mine)
        for side in sides:
            side.holders.pop(w, None)
        mine.holders[w] = True
        for side in sides:
            if side is not mine and side.copy.sketch and copy.sketch:
                self._note_differing(chunk, w, side.holders)
        return mine

    def _note_differing(self, chunk: int, w: int, others: Collection[int]) -> None:
        for other in others:
            for one, two in ((w, other), (other, w)):
                self._against.setdefault(one, set()).add(two)
                self._in.setdefault(one, set()).add(chunk)

    def _verdict(self, chunk: int, mine: _Side, copy: Progress) -> Verdict:
        """Return the verdict on a replica that turns nothing."""
        before, blamed = self._sides[chunk][0], self._blame(chunk)
        if mine is before:
            return Verdict(blamed=blamed) if blamed else AGREES
        return Verdict(_distance(before.copy, copy), blamed=blamed)

    def _blame(self, chunk: int) -> tuple[int, ...]:
        """Return the clients newly known to be wrong about a chunk."""
        first, *others = self._sides[chunk]
        wrong = [
            side
            for side in others
            if first.copy.sketch
            and (not side.copy.sketch or len(first.here) >= max(MANY, len(side.here) + 1))
        ]
        holders = {(chunk, w) for side in wrong for w in side.holders} - self._blamed
        self._blamed |= holders
        return tuple(sorted(w for _, w in holders))

    def _note(
        self, w: int, has: Mapping[int, bool], summed: Collection[int]
    ) -> Mapping[int, tuple[int, ...]]:
        right: dict[int, tuple[int, ...]] = {}
        for chunk, has_it in has.items():
            sides = self._sides[chunk]
            for side in sides:
                if w in side.holders:
                    side.holders[w] = has_it
            most = max(sides, key=lambda side: side.rank)
            if most.here and not sides[0].here and chunk not in summed:
                right[chunk] = self._believe(chunk, most).right
        return right

    def _believe(self, chunk: int, side: _Side, but: int | None = None) -> Verdict:
        """Turn the verdict; `but` has just reported its replica."""
        sides = self._sides[chunk]
        wrong, right = sides[0].here, tuple(w for w in side.here if w != but)
        sides.remove(side)
        sides.insert(0, side)
        return Verdict(wrong=wrong, right=right)

    # ---- queries on the believed replicas

    def reports(self, samples: Mapping[int, int], rounds_left: int | None) -> Reports:
        """Return the reports for the gate."""
        return Reports(tuple(self._reports(samples)), rounds_left=rounds_left)

    def _reports(self, samples: Mapping[int, int]) -> Iterator[Report]:
        for chunk, copy in sorted(self.believed.items()):
            yield Report(chunk, copy.reached, samples[chunk], copy.squared_norm, copy.loss)

    def likeness(self) -> float | None:
        """Estimate how similar the steps of chunks are, hence how far full chunks can replace short ones."""
        sketches = [copy.sketch for copy in self.believed.values() if copy.sketch]
        return estimate_correlation(sketches) if len(sketches) > 1 else None


def _distance(first: Progress, second: Progress) -> float | None:
    """Return the distance of two replicas, relative to the longer; None if they are equal.

    A replica with a sketch differs from one without: a client without sketches could agree with everything.
    """
    if first.sketch == second.sketch:
        return None
    if not first.sketch or not second.sketch:
        return math.inf
    size = max(math.hypot(*first.sketch), math.hypot(*second.sketch))
    if size <= NOTHING:
        return None
    apart = math.dist(first.sketch, second.sketch)
    if apart <= ROUNDING * min(first.model_norm, second.model_norm):  # a false norm is no excuse
        return None
    return apart / size if apart > COPIES_AGREE * size else None
