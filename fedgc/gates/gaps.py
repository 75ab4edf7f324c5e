"""Hard bounds on the gap between two syncs, for every gate, and the names of the reports left out.

The published gates have no bound: with a threshold slightly too high, clients never synchronize again.
`max_gap` therefore takes precedence over a budget, and `min_gap` over any request to sync. Gaps are counted
in checks: 1 is a sync at each.
"""

from dataclasses import dataclass, replace
from typing import Final

from fedgc.errors import BadSetting, numbered
from fedgc.gates.reports import Decision, Reports

LONGEST_GAP: Final = 32  # checks; 512 steps at 16 each: up to there two replicas of a trajectory agree


@dataclass(frozen=True, slots=True)
class Gaps:
    """At least `least` and at most `most` checks from one sync to the next (None: no bound)."""

    gate: str
    least: int
    most: int | None

    def __post_init__(self) -> None:
        if self.least < 1:
            raise BadSetting(f"gate {self.gate}: saw min_gap {self.least}, needed at least 1")
        if self.most is not None and self.most < self.least:
            raise BadSetting(
                f"gate {self.gate}: saw max_gap {self.most}, needed at least min_gap ({self.least})"
            )

    def hold(self, passed: int, wanted: Decision, reports: Reports) -> Decision:
        """Apply the bounds `passed` checks after the last sync; the decision names omitted reports.

        A sync that is forced for another reason is made within any bounds.
        """
        decided = wanted
        if reports.forced:
            decided = Decision(sync=True, reason=reports.forced)
        elif wanted.sync and passed < self.least:
            decided = Decision(
                sync=False, reason=f"{numbered(passed, 'check')} since the last sync, needed {self.least}"
            )
        elif not wanted.sync and self.most is not None and passed >= self.most:
            since = f"{numbered(passed, 'check')} since the last sync"
            decided = Decision(sync=True, reason=f"{since}, no gap may be longer ({wanted.reason})")
        return _name_left_out(decided, reports)


def _name_left_out(decided: Decision, reports: Reports) -> Decision:
    omitted = reports.unusable()
    if not omitted:
        return decided
    names = ", ".join(f"{item.source} (squared norm {item.squared_norm})" for item in omitted)
    return replace(
        decided,
        reason=f"{decided.reason}; left out: {names}",
        left_out=tuple(item.source for item in omitted),
    )
