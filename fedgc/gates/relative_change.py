"""SelSync as published: sync all clients when one source's gradient norm changes enough.

    change = |E_i - E_(i-1)| / E_(i-1)      E: exponentially weighted mean of the squared gradient norms

over the last `window` checks, the newest weighing most (Tyagi and Swany, "Accelerating Distributed ML
Training via Selective Synchronization", CLUSTER 2023, arXiv 2307.07950). If any source reaches `delta`, all
average their models. delta = 0 is bulk-synchronous training, delta = inf is local training.

This gate is for comparison; use `Drift` otherwise. The scale of the change depends on batch size, window,
data and number of sources, so the same delta gives few syncs in one run and thousands in another.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from fedgc.errors import BadSetting
from fedgc.gates.gaps import LONGEST_GAP, Gaps
from fedgc.gates.gate import Gate, GateSettings, Measure
from fedgc.gates.reports import Decision, Report, Reports

SOURCES_PER_SMOOTHING: Final = 100  # the paper smooths by N/100: 0.16 at its 16 clients

Track = tuple[int | str, float, tuple[float, ...]]  # source, its last mean, its last squared norms
RelativeState = tuple[int, tuple[Track, ...]]  # checks since the last sync, one track for each source


@dataclass(frozen=True, slots=True)
class RelativeChange(Gate[RelativeState]):
    """Sync when the smoothed squared norm of any source changed by `delta` or more, relative to itself.

    >>> gate = RelativeChange(delta=0.5, smoothing=0.5)
    >>> state, first = gate.step(gate.init(), Reports((Report("a", 1, 1, 1.0, 0.0),)))
    >>> state, second = gate.step(state, Reports((Report("a", 1, 1, 9.0, 0.0),)))
    >>> first.sync, second.sync
    (False, True)
    >>> second.reason
    'gradients changed by 533% at a, threshold 50%'
    """

    summary: ClassVar[str] = "SelSync as published: when a client's gradient norm changes by delta or more"
    measure: ClassVar[Measure] = "gradient"

    delta: float
    window: int = 25
    smoothing: float | None = None
    max_gap: int | None = LONGEST_GAP
    min_gap: int = 1

    def __post_init__(self) -> None:
        if not self.delta >= 0:
            raise BadSetting(f"gate relative-change: saw delta {self.delta}, needed 0 or more")
        if self.window < 1:
            raise BadSetting(f"gate relative-change: saw window {self.window}, needed at least 1")
        if self.smoothing is not None and not 0 < self.smoothing <= 1:
            raise BadSetting(
                f"gate relative-change: saw smoothing {self.smoothing}, needed above 0 and at most 1"
            )
        self._gaps()

    @classmethod
    def make(cls, settings: GateSettings, *, delta: float = 0.3, window: int = 25) -> Self:
        """Return the gate; `delta` is the paper's threshold, `window` the checks that it smooths over."""
        return cls(delta, window, max_gap=settings.max_gap, min_gap=settings.min_gap)

    def describe(self) -> str:
        """Return the threshold."""
        return f"gate.options delta={self.delta:g}"

    def _gaps(self) -> Gaps:
        return Gaps("relative-change", self.min_gap, self.max_gap)

    def init(self) -> RelativeState:
        """Return the state before the first check, with no source known."""
        return 0, ()

    def step(self, state: RelativeState, reports: Reports) -> tuple[RelativeState, Decision]:
        """Smooth the reports and find the largest change; sources without a report keep their track."""
        passed = state[0] + 1
        tracks = {track[0]: track for track in state[1]}
        changes: dict[int | str, float] = {}
        smoothing = self._smoothing(tracks, reports)
        for item in reports.working():
            before = tracks.get(item.source)
            after = self._follow(before, item, smoothing)
            tracks[item.source] = after
            changes[item.source] = _change(before[1], after[1]) if before else 0.0
        decided = self._gaps().hold(passed, self._wanted(changes), reports)
        return (0 if decided.sync else passed, tuple(tracks.values())), decided

    def _smoothing(self, tracks: Mapping[int | str, Track], reports: Reports) -> float:
        if self.smoothing is not None:
            return self.smoothing
        sources = tracks.keys() | {item.source for item in reports.working()}
        return min(1.0, len(sources) / SOURCES_PER_SMOOTHING)

    def _follow(self, before: Track | None, item: Report, smoothing: float) -> Track:
        seen = before[2] if before else ()
        values = (*seen, item.squared_norm)[-self.window :]
        return item.source, _weighted_mean(values, 1 - smoothing), values

    def _wanted(self, changes: Mapping[int | str, float]) -> Decision:
        if self.delta == 0:
            return Decision(sync=True, reason="threshold 0: every round")
        if not changes:
            return Decision(sync=False, reason="no client has reported")
        source, change = max(changes.items(), key=lambda entry: entry[1])
        where = f"gradients changed by {change:.0%} at {source}"
        return Decision(sync=change >= self.delta, reason=f"{where}, threshold {self.delta:.0%}")


def _weighted_mean(values: Sequence[float], keep: float) -> float:
    """Return the mean of `values`, oldest first, each weighing `keep` times the one after it."""
    mean, weight = 0.0, 0.0
    for value in values:
        weight = weight * keep + 1.0
        mean += (value - mean) / weight  # a running mean: no sum of squared norms can overflow
    return mean


def _change(before: float, after: float) -> float:
    """Return the relative change, always finite, so that an infinite delta is never reached.

    A first report counts as no change. After a mean of zero (vanished gradients) any gradient counts as a
    change beyond every finite delta.
    """
    if before == after:
        return 0.0
    ratio = abs(after - before) / before if before > 0 else math.inf
    return min(ratio, sys.float_info.max)
