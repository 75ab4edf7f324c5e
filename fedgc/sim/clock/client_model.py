"""Client models from arrays: the conditions of each round, for clients by index and chunks of known size.

Chunks are identified by their number in the run's table, as in messages. The numbers need not be dense.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from fedgc.sim.clock.conditions import NEVER, Conditions
from fedgc.sim.clock.interfaces import Failure


class ClientModel:
    """Clients under the conditions of the present round; chunk number n takes `units[n]` units.

    Index w is a client, a share is a part of one chunk's work. In local work, which has no separate chunks,
    chunk 0 is a round's steps.
    """

    def __init__(
        self, scenario: Callable[[int], Conditions], units: Mapping[int, float] | Sequence[float]
    ) -> None:
        self._scenario = scenario
        self._units = units
        self._now: Conditions | None = None
        self._up: list[float] = []
        self._down: list[float] = []
        self._control: list[float] = []
        self._paces: list[list[float]] = []
        self._ends: list[list[float]] = []
        self._constant: list[float] | None = None
        self._slice = self._lap = 1.0

    def begin(self, number: int) -> Iterable[tuple[int, Failure]]:
        """Apply the conditions of this round; return the failures in it."""
        conditions = self._scenario(number)
        if conditions is not self._now:
            self._now = conditions
            self._read(conditions)
        dies_s_w, returns_s_w = conditions.dies_s_w, conditions.returns_s_w
        dying = np.flatnonzero(dies_s_w < NEVER).tolist()
        return [(w, Failure(float(dies_s_w[w]), float(returns_s_w[w]))) for w in dying]

    def seconds(self, w: int, chunk: int, share: float, worked: float) -> float:
        """Return the time for this share of a chunk, after `worked` seconds of work in this round."""
        units = share * self._units[chunk]
        if self._constant is not None:
            return units * self._constant[w]
        return self._after(w, self._by(w, worked) + units) - worked

    def up_s(self, w: int) -> float:
        """Return the time of a whole update on the client's own uplink."""
        return self._up[w]

    def down_s(self, w: int) -> float:
        """Return the time of a whole model on the client's own downlink."""
        return self._down[w]

    def control_s(self, w: int) -> float:
        """Return the latency of a command."""
        return self._control[w]

    def _read(self, conditions: Conditions) -> None:
        slices = conditions.pace_wk.shape[1]
        self._paces = conditions.pace_wk.tolist()
        self._constant = [row[0] for row in self._paces] if slices == 1 else None
        self._slice = conditions.slice_units
        self._lap = slices * conditions.slice_units
        ends_wk = np.cumsum(conditions.pace_wk * conditions.slice_units, axis=1)
        self._ends = np.pad(ends_wk, ((0, 0), (1, 0))).tolist()
        self._up, self._down = conditions.up_s_w.tolist(), conditions.down_s_w.tolist()
        self._control = conditions.control_s_w.tolist()

    def _by(self, w: int, seconds: float) -> float:
        """Return the units done after this many seconds of work."""
        ends = self._ends[w]
        laps, rest = divmod(seconds, ends[-1])
        at = min(bisect_right(ends, rest), len(ends) - 1) - 1
        return laps * self._lap + at * self._slice + (rest - ends[at]) / self._paces[w][at]

    def _after(self, w: int, units: float) -> float:
        """Return the seconds of work for this many units."""
        ends = self._ends[w]
        laps, rest = divmod(units, self._lap)
        at = min(int(rest / self._slice), len(ends) - 2)
        return laps * ends[-1] + ends[at] + (rest - at * self._slice) * self._paces[w][at]
