"""What copies of the same chunk say: which of them are the same, and what the gate may know of them.

All copies of a chunk update are one vector up to rounding (the same model, batches and chance on every
holder), and each report brings a sketch of it, 16 random projections. A copy whose sketch is far from the
first one's is not counted: hardware breaks, and memory flips. If a third copy sides with the one that was
put aside, the first was wrong, and the verdict turns. One copy alone cannot be judged; nor can the vector
itself be checked against its sketch, for which clients of one site are trusted.

Two copies that differ do not tell which of them is wrong, so the second one is not blamed. A client
is blamed for a chunk once two or more say the same and more than say what it says, or if it sends no sketch
where another sends one (masked clients send none, all of them). And it is *accused* for all its chunks
once it has differed in two chunks and from two others at least, and from more of them than each of those
has: one false client is found so where every chunk has two holders only, and cannot have any other accused.

Only those speak who are here with their copy: it was told, or kept, since the client came. A copy that nobody
stands by any more gives way to one that somebody does. Once vectors are collected nothing else turns, and not
even that where something of the chunk is in the sum.

A copy is known by the report of it.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fedgc.codes import estimate_correlation
from fedgc.gates import Report, Reports
from fedgc.messages import Progress

COPIES_AGREE: Final = 1e-2  # largest distance of two sketches of one vector, relative to the longer
NOTHING: Final = 1e-12  # sketches this short are of no update at all
MANY: Final = 2  # that say the same, or from whom one has differed: more than one false client can be


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a copy counts; if it turned the verdict, who was wrong before and who was right.

    `blamed` are those of whom it is known from now on that they were wrong.
    """

    distance: float | None = None
    wrong: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    blamed: tuple[int, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether the copy counts."""
        return self.distance is None


@dataclass(slots=True)
class _Side:
    copy: Progress
    said: dict[int, bool] = field(default_factory=dict)  # by whom, and whether that one has its copy still

    @property
    def here(self) -> tuple[int, ...]:
        """Who stands by this copy."""
        return tuple(w for w, has in self.said.items() if has)

    @property
    def rank(self) -> tuple[bool, int]:
        """What decides whether it is believed: a copy with a sketch before those without."""
        return bool(self.copy.sketch and self.here), len(self.here)


AGREES: Final = Verdict()


class ReplicaAgreement:
    """Hears the reports of a round, chunk by chunk (by number in the run's table)."""

    def __init__(self) -> None:
        self._sides: dict[int, list[_Side]] = {}  # the side that is believed stands first
        self._blamed: set[tuple[int, int]] = set()  # chunk and client
        self._against: dict[int, set[int]] = {}  # from whom each client has differed, in any chunk
        self._in: dict[int, set[int]] = {}  # and in which chunks

    @property
    def believed(self) -> Mapping[int, Progress]:
        """The copy of each chunk that later ones are held against."""
        return {chunk: sides[0].copy for chunk, sides in self._sides.items()}

    def hear(self, chunk: int, w: int, copy: Progress) -> Verdict:
        """Take a copy in, and say whether it counts: where more say the same, it is believed."""
        mine = self._told(chunk, w, copy)
        before = self._sides[chunk][0]
        if mine is not before and mine.rank > before.rank:
            return replace(self._believe(chunk, mine, w), blamed=self._blame(chunk))
        return self._verdict(chunk, mine, copy)

    def judge(self, chunk: int, w: int, copy: Progress, summed: Collection[int] = ()) -> Verdict:
        """Take in a copy while vectors are collected; something of the `summed` chunks is in the sum."""
        mine = self._told(chunk, w, copy)
        before = self._sides[chunk][0]
        if mine is not before and not before.here and chunk not in summed:
            return self._believe(chunk, mine, w)
        return self._verdict(chunk, mine, copy)

    def accused(self) -> tuple[int, ...]:
        """Return who has newly differed from so many others that it is wrong, and not they."""
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
        """Return by chunk the clients whose replicas differ, if it is not known which is wrong."""
        return {
            chunk: tuple(sorted(w for side in sides for w in side.here))
            for chunk, sides in self._sides.items()
            if sum(bool(side.here) for side in sides) > 1
            and not any((chunk, w) in self._blamed for side in sides for w in side.said)
        }

    def stands(
        self, w: int, kept: Collection[int] = (), summed: Collection[int] = ()
    ) -> Mapping[int, tuple[int, ...]]:
        """A client is gone, or back with its copies of these chunks; return who counts now after all."""
        return self._note(w, {chunk: chunk in kept for chunk in self._sides}, summed)

    def cannot(
        self, w: int, chunks: Collection[int], summed: Collection[int] = ()
    ) -> Mapping[int, tuple[int, ...]]:
        """A client cannot give these chunks; return who counts now after all, by chunk."""
        return self._note(w, dict.fromkeys(self._sides.keys() & chunks, False), summed)

    def _told(self, chunk: int, w: int, copy: Progress) -> _Side:
        """Put a client on the side of its copy, and off any other."""
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
            side.said.pop(w, None)
        mine.said[w] = True
        for side in sides:
            if side is not mine and side.copy.sketch and copy.sketch:
                self._note_differing(chunk, w, side.said)
        return mine

    def _note_differing(self, chunk: int, w: int, others: Collection[int]) -> None:
        for other in others:
            for one, two in ((w, other), (other, w)):
                self._against.setdefault(one, set()).add(two)
                self._in.setdefault(one, set()).add(chunk)

    def _verdict(self, chunk: int, mine: _Side, copy: Progress) -> Verdict:
        """Return what a copy means that turns nothing."""
        before, blamed = self._sides[chunk][0], self._blame(chunk)
        if mine is before:
            return Verdict(blamed=blamed) if blamed else AGREES
        return Verdict(_distance(before.copy, copy), blamed=blamed)

    def _blame(self, chunk: int) -> tuple[int, ...]:
        """Return the clients that are now known to be wrong about a chunk, and were not before."""
        first, *others = self._sides[chunk]
        wrong = [
            side
            for side in others
            if first.copy.sketch
            and (not side.copy.sketch or len(first.here) >= max(MANY, len(side.here) + 1))
        ]
        said = {(chunk, w) for side in wrong for w in side.said} - self._blamed
        self._blamed |= said
        return tuple(sorted(w for _, w in said))

    def _note(
        self, w: int, has: Mapping[int, bool], summed: Collection[int]
    ) -> Mapping[int, tuple[int, ...]]:
        right: dict[int, tuple[int, ...]] = {}
        for chunk, has_it in has.items():
            sides = self._sides[chunk]
            for side in sides:
                if w in side.said:
                    side.said[w] = has_it
            most = max(sides, key=lambda side: side.rank)
            if most.here and not sides[0].here and chunk not in summed:
                right[chunk] = self._believe(chunk, most).right
        return right

    def _believe(self, chunk: int, side: _Side, but: int | None = None) -> Verdict:
        """Turn the verdict; `but` has just told its copy."""
        sides = self._sides[chunk]
        wrong, right = sides[0].here, tuple(w for w in side.here if w != but)
        sides.remove(side)
        sides.insert(0, side)
        return Verdict(wrong=wrong, right=right)

    # ---- what the believed copies say together

    def reports(self, samples: Mapping[int, int], rounds_left: int | None) -> Reports:
        """Return what the gate may look at."""
        return Reports(tuple(self._reports(samples)), rounds_left=rounds_left)

    def _reports(self, samples: Mapping[int, int]) -> Iterator[Report]:
        for chunk, copy in sorted(self.believed.items()):
            yield Report(chunk, copy.reached, samples[chunk], copy.squared_norm, copy.loss)

    def likeness(self, samples: Mapping[int, int]) -> float | None:
        """Estimate how alike chunk updates are: how far full chunks may stand in for short ones."""
        sketched = [(chunk, copy.sketch) for chunk, copy in self.believed.items() if copy.sketch]
        if len(sketched) < 2:
            return None
        return estimate_correlation(
            [[samples[chunk] * each for each in sketch] for chunk, sketch in sketched]
        )


def _distance(first: Progress, second: Progress) -> float | None:
    """Return how far apart two copies are, relative to the longer; None where they are the same.

    One that has a sketch and one that has none are not: who sends none could agree with everything.
    """
    if first.sketch == second.sketch:
        return None
    if not first.sketch or not second.sketch:
        return math.inf
    size = max(math.hypot(*first.sketch), math.hypot(*second.sketch))
    if size <= NOTHING:
        return None
    apart = math.dist(first.sketch, second.sketch) / size
    return apart if apart > COPIES_AGREE else None
