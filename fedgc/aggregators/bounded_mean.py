"""The weighted mean with bounded influence: centered clipping (Karimireddy et al., arXiv 2012.10333).

    mean = center + sum over clients i of  share_i * min(1, bound / |update_i - center|) * (update_i - center)

The center is the last mean update, and the bound is `factor` times the median of the distances from it, of
each client's latest update. An update that continues in the common direction counts in full, whatever its
client's data; one that turns away from it, or is far too long, counts with a limited part. With shared
momentum, updates of honest clients lie close together, so a false one is bounded tightly. Without a center,
in the first round, it is a bound of the norm (Sun et al., arXiv 1911.07963). One or two updates are bounded
by distances of earlier rounds.

Buffers are bounded by a distance of their own, from those of the common model: a false variance would be a
small part of the distance of all numbers, and a mean that continues in the last direction overshoots.

If the server evaluates models, an outlier without which they are better is left out, and one with which they
are better may be `WIDER` times as far (`outlier_check`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.aggregators.collecting import Update
from fedgc.aggregators.latest_distances import LatestDistances
from fedgc.aggregators.outlier_check import MOST_BYTES, Benefits, OutlierCheck
from fedgc.aggregators.rule import AggregationRule, Vector
from fedgc.errors import BadSetting, Refused
from fedgc.large_vectors import in_tiles, squared_length

HELD: Final = 8  # updates that are held until their median distance is known
HELD_BYTES: Final = 1 << 30  # which take at most this much room, except for the first three
LEAST_HELD: Final = 3
OUTLIER: Final = 0.2  # less of an update than this counts
CHECKED: Final = 2 / 3  # less of an update than this is within the bound: its client may be checked
WIDER: Final = 4.0  # times the bound, for an outlier that makes models better
NARROW: Final = 0.5  # how far a shortened mean may be from one, over what it lacks of the mean


class BoundedMean(AggregationRule):
    """Adds each update to a running sum, at most `factor` times the median distance from the last mean.

    Keeps two vectors, and the first `HELD` updates of a round until their distances are known. Later updates
    are measured against the latest distance of each client so far. Large updates come in files,
    so those that are held need disk and no memory; one of them gives its room to the center.
    """

    summary = "the mean by samples, of updates at most factor times the median distance from the last mean"

    def __init__(self, *, factor: float = 1.5) -> None:
        if not (math.isfinite(factor) and factor > 0):
            raise BadSetting(f"setting aggregation.options: saw factor={factor}, needed more than 0")
        self._factor = factor
        self._center: Vector | None = None  # the last mean update
        self._room: Vector | None = None  # of an update that has been entered
        self._held: list[tuple[Update, float]] = []  # with their distances
        self._sum: Vector | None = None  # of weighted differences from the center
        self._whole: Vector | None = None  # the same, and room for the buffers
        self._weight = 0.0
        self._distances = LatestDistances()
        self._parts: dict[str, float] = {}  # of updates that do not count in full
        self._outliers: Mapping[str, float] = {}
        self._benefits = Benefits()
        self._apart: BoundedMean | None = None  # of the buffers, which have no center
        self._candidate: _Candidate | None = None  # for the check of this round
        self._check: OutlierCheck | None = None

    @property
    def outliers(self) -> Mapping[str, float]:
        """The clients of which less than `OUTLIER` of the update counts."""
        return self._outliers

    def add(self, client: str, weight: float, update: Vector) -> None:
        """Hold the update, or add it to the sum if enough others have been measured."""
        if self.buffers:
            self._apart = self._apart or BoundedMean(factor=self._factor)
            buffers, update = update[-self.buffers :], update[: -self.buffers]
            if self._counts(client, update):
                self._apart.add(client, weight, buffers)
        distance = self._distance(update)
        if not math.isfinite(distance):  # the last mean was not, so that the server has left it out
            self._center = None
            self._distances.forget()
            distance = self._distance(update)
        self._distances.enter(client, distance)
        if self._sum is not None:
            self._enter(Update(client, weight, update), distance)
            return
        self._held.append((Update(client, weight, update), distance))
        if len(self._held) > most_held(update.nbytes):
            self._enter_held()

    def result(self) -> Vector | None:
        """Return the center and the mean difference from it; it is the next round's center."""
        self._check = None
        if not self._distances.now:
            return None
        if self._held:
            self._enter_held()
        self._distances.end()
        mean, whole, weight, room = self._sum, self._whole, self._weight, self._room
        self._outliers = {client: part for client, part in self._parts.items() if part < OUTLIER}
        candidate, buffers = self._candidate, self._of_buffers() if weight else None
        self.clear()
        if mean is None or not weight:
            left_out = [client for client, part in self._outliers.items() if not part]
            self._benefits.forget(left_out)
            said = "updates of weight 0, needed more than 0"
            if left_out:
                said = f"updates of {', '.join(left_out)} alone, without whose updates models are better"
            raise Refused(f"aggregator bounded-mean: saw {said}")
        difference = candidate.difference(mean, weight, self._center) if candidate is not None else None
        self._center = self._mean(mean, weight, room)
        if candidate is not None and difference is not None:
            parameters = mean
            length = math.sqrt(squared_length(lambda part, _: parameters[part], parameters.size))
            self._check = OutlierCheck(candidate.update.client, candidate.counts, difference, length)
        if buffers is not None and whole is not None:
            whole[mean.size :] = buffers
            mean = whole
        return mean

    def _of_buffers(self) -> Vector | None:
        """Return the mean update of the buffers; it is no center of the next round."""
        if self._apart is None:
            return None
        mean = self._apart.result()
        self._apart._center = None
        outliers = self._apart.outliers.items()
        parts = {client: min(part, self._outliers.get(client, 1.0)) for client, part in outliers}
        self._outliers = {**self._outliers, **parts}
        return mean

    def _mean(self, total: Vector, weight: float, room: Vector | None) -> Vector:
        """Turn the sum into the mean update; return a copy of it, in this room if it can be written to."""
        center, divisor = self._center, np.float32(weight)
        copy = room if room is not None and room.flags.writeable else np.empty_like(total)

        def divide(tile: slice) -> None:
            part = total[tile]
            part /= divisor
            if center is not None:
                part += center[tile]
            copy[tile] = part

        in_tiles(total.size, divide)
        return copy

    def memory(self) -> Mapping[str, NDArray[Any]]:
        """Return the center, the distances of the last round, and what checks have shown."""
        if self._center is None:
            return {}
        apart = {} if self._apart is None else self._apart._distances.memory("apart")
        distances = self._distances.memory("latest")
        return {"center": self._center, **distances, **apart, **self._benefits.memory()}

    def recall(self, memory: Mapping[str, NDArray[Any]]) -> None:
        """Continue with this center."""
        if memory:
            self._center = memory["center"]
            self._distances.recall(memory, "latest")
            self._benefits.recall(memory)
        if "apart clients" in memory:
            self._apart = BoundedMean(factor=self._factor)
            self._apart._distances.recall(memory, "apart")

    @property
    def check(self) -> OutlierCheck | None:
        """The outlier of the last mean that was checked least often, of equals the farthest."""
        return self._check

    def checked(self, client: str, gain: float) -> None:
        """Take in whether the last model is better with an outlier."""
        self._benefits.enter(client, gain)

    def clear(self) -> None:
        """Discard the updates of a round; the center stays."""
        self._held, self._sum, self._weight, self._parts = [], None, 0.0, {}
        self._whole, self._room, self._candidate = None, None, None
        self._distances.discard()
        if self._apart is not None:
            self._apart.clear()

    @property
    def _bound(self) -> float:
        median = self._distances.median
        return math.inf if median is None else self._factor * median

    def _distance(self, update: Vector) -> float:
        center = self._center

        def difference(part: slice, room: Vector) -> Vector:
            return update[part] if center is None else np.subtract(update[part], center[part], out=room)

        return math.sqrt(squared_length(difference, update.size))

    def _enter_held(self) -> None:
        held, self._held = self._held, []
        for update, distance in held:
            self._enter(update, distance)
            self._room = update.vector

    def _enter(self, update: Update, distance: float) -> None:
        part, counts = min(1.0, self._bound / distance) if distance else 1.0, True
        if self.checks:
            part, counts = self._judged(update, part)
        if part < 1.0 or not counts:
            self._parts[update.client] = part if counts else 0.0
        if self._sum is None:
            self._whole = np.zeros(update.vector.size + self.buffers, np.float32)
            self._sum = self._whole[: update.vector.size]
        if not counts:
            return
        factor, center = np.float32(update.weight * part), self._center
        total, vector = self._sum, update.vector

        def enter(tile: slice) -> None:
            step = vector[tile].copy() if center is None else vector[tile] - center[tile]
            step *= factor
            total[tile] += step

        in_tiles(vector.size, enter)
        self._weight += update.weight

    def _judged(self, update: Update, part: float) -> tuple[float, bool]:
        """Return the part of an update, and whether it counts, by what checks of its client have shown."""
        client, counts = update.client, self._counts(update.client, update.vector)
        if (part < CHECKED or not counts) and update.vector.nbytes <= MOST_BYTES:
            inside = part  # the bound
            if self._benefits.helps(client):
                part = min(1.0, WIDER * part)
            candidate = _Candidate(update, part, counts, (self._benefits.checks(client), inside, client))
            if self._candidate is None or candidate.order < self._candidate.order:
                self._candidate = candidate
        return part, counts

    def _counts(self, client: str, update: Vector) -> bool:
        return not self._benefits.harms(client) or self._is_shortened_mean(update)

    def _is_shortened_mean(self, update: Vector) -> bool:
        """Whether an update is about the last mean, but shorter, as that of a client with few local steps.

        It is far from the mean because it is short. Models may be better without it, as it shortens the mean.
        """
        center = self._center
        if center is None:
            return False
        whole = squared_length(lambda part, _: center[part], center.size)
        both = squared_length(lambda part, room: np.add(update[part], center[part], out=room), update.size)
        own = squared_length(lambda part, _: update[part], update.size)
        along = (both - own - whole) / 2  # the dot product
        if not 0 < along < whole:
            return False
        across, lacking = own - along**2 / whole, whole * (1 - along / whole) ** 2  # both squared
        return across <= NARROW**2 * lacking


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """An outlier that may be checked; those that come first in `order` are."""

    update: Update
    part: float  # that counts, or would count
    counts: bool
    order: tuple[int, float, str]

    def difference(self, total: Vector, weight: float, center: Vector | None) -> Vector | None:
        """Return the difference that this client makes to the mean; None if no other client is in it."""
        others = weight - self.update.weight if self.counts else weight
        if others <= 0:
            return None
        vector, difference = self.update.vector, np.empty_like(total)
        all_of_it = self.update.weight / (others if self.counts else weight + self.update.weight)
        factor, part = np.float32(-all_of_it if self.counts else all_of_it), np.float32(self.part)
        divisor = np.float32(weight)

        def enter(tile: slice) -> None:
            step = vector[tile].copy() if center is None else vector[tile] - center[tile]
            step *= part
            step -= total[tile] / divisor
            np.multiply(step, factor, out=difference[tile])

        in_tiles(total.size, enter)
        return difference


def most_held(update_bytes: int) -> int:
    """Return how many updates of this size are held.

    >>> most_held(10**6), most_held(10**9)
    (8, 3)
    """
    return max(LEAST_HELD, min(HELD, HELD_BYTES // max(1, update_bytes)))
