"""The progress of local work: the steps that the loop has done, and their measure for the gate."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from fedgc.config import RunConfig
from fedgc.errors import TaskFailed
from fedgc.large_vectors import Readable
from fedgc.messages import LARGEST_AMOUNT, Report, Work
from fedgc.training.flat import Vector
from fedgc.training.local_loop import LocalLoop
from fedgc.training.local_update import LOCAL_TRAJECTORY, chunk_names
from fedgc.training.shared_momentum import squared_distance
from fedgc.training.trajectories import Trajectories, Trajectory


class Mark(NamedTuple):
    """The progress at some time."""

    reached: int = 0
    seconds: float = 0.0
    losses: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where the trajectory is."""

    name: str
    start: Vector  # the common model
    lead: Vector | None  # the common part of every step
    in_loop: bool  # else it was put aside


class LocalProgress:
    """Counts the steps of a loop into the trajectory of local work, and reports them."""

    def __init__(self, loop: LocalLoop, config: RunConfig, trajectories: Trajectories) -> None:
        self._loop, self._trajectories = loop, trajectories
        self._weighs_gradients = config.measure == "gradient"
        self._measured: tuple[int, int, float] | None = None  # version, steps and squared norm

    @property
    def reached(self) -> int:
        """The steps since the common model."""
        return self._trajectories.reached(LOCAL_TRAJECTORY)

    def samples(self, name: str) -> int:
        """Return the samples that a trajectory of this name trains on."""
        return sum(self._loop.sizes[each] for each in chunk_names(name))

    def start(self, name: str, *, is_new: bool) -> None:
        """Count from here on; a new trajectory is at the common model."""
        self._measured = None
        if is_new:
            self._trajectories.start(LOCAL_TRAJECTORY, name, self.samples(name))

    def count(self, goal: int = 0) -> bool:
        """Enter the steps that the loop has done; return whether there were any. With a goal it trains on."""
        trajectory = self._trajectories[LOCAL_TRAJECTORY]
        advance = self._loop.advance(trajectory.reached, goal)
        if advance is None:
            return False
        trajectory.reached += advance.steps
        trajectory.seconds += advance.seconds
        trajectory.losses += advance.losses
        trajectory.led += advance.led
        return advance.steps > 0

    def mark(self) -> Mark:
        """Return the progress so far."""
        known = self._trajectories
        if LOCAL_TRAJECTORY not in known:
            return Mark()
        at = known[LOCAL_TRAJECTORY]
        return Mark(at.reached, at.seconds, at.losses)

    def count_from(self, mark: Mark) -> None:
        """Count no longer what was done before this mark."""
        trajectory = self._trajectories[LOCAL_TRAJECTORY]
        trajectory.reached -= mark.reached
        trajectory.seconds -= mark.seconds
        trajectory.losses -= mark.losses

    def report(self, work: Work, place: Place, vector: Readable | None = None) -> Report:
        """Return the report of this progress; `vector` is where the trajectory is, if that is known already.

        Raises:
            TaskFailed: The measure of the gate is no number or too large.
        """
        known = self._trajectories
        at = known[LOCAL_TRAJECTORY] if LOCAL_TRAJECTORY in known else Trajectory(place.name, 0)
        squared_norm = self._squared_norm(at, work, place, vector)
        if not math.isfinite(squared_norm):
            raise TaskFailed("saw NaN or Inf in its model or gradient, needed finite numbers")
        if not squared_norm <= LARGEST_AMOUNT:
            seen = f"saw {squared_norm:g} as the squared norm of its change of the model"
            raise TaskFailed(f"{seen}, needed at most {LARGEST_AMOUNT:g}")
        loss = at.losses / at.reached if at.reached else 0.0
        samples = self.samples(place.name)
        return Report(0.0, work.client, work.round, at.reached, samples, at.seconds, squared_norm, loss)

    def _squared_norm(self, at: Trajectory, work: Work, place: Place, vector: Readable | None) -> float:
        layout = self._loop.layout
        if not at.reached or self._weighs_gradients or layout is None:
            return self._loop.squared_gradient
        if self._measured is not None and self._measured[:2] == (work.version, at.reached):
            return self._measured[2]  # nothing was trained since
        if vector is None:
            vector = self._loop.vector() if place.in_loop else self._trajectories.vector(LOCAL_TRAJECTORY)
        if vector is None:
            return 0.0
        size = layout.parameter_size
        found = squared_distance(place.start[:size], vector, place.lead, at.led)
        if at.reached == work.target:  # beyond it, a script's model is that of an earlier step
            self._measured = (work.version, at.reached, found)
        return found
