"""The budget of a gate: how many more syncs it pays for, and the sync rate that follows.

A budget is a share of the checks, or an amount of megabytes or seconds for the whole run. The remaining
budget is spread over the remaining checks, so earlier deviations are corrected: the rate is the outer loop
around the threshold (drift.py). One sync is reserved for the last check, because work after the last sync is
lost. Megabytes and seconds count all traffic, checks included.

The rate rises linearly with the checks that have passed, from 0 to twice the budget's share at the end, or
until every check is a sync. Drift between clients late in a run affects the final model; drift early in a
run does not. The cost is a worse model in the middle of the run. The bounds on a gap take precedence: a
`max_gap` that is short relative to the budget leaves less for the end. Without a known end the rate is
constant.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from fedgc.errors import BadSetting
from fedgc.gates.gaps import Gaps
from fedgc.gates.gate import GateSettings
from fedgc.gates.reports import Reports

Unit = Literal["share", "megabytes", "seconds"]
UNITS: Final = ("share", "megabytes", "seconds")
BYTES_PER_MEGABYTE: Final = 10**6
HORIZON: Final = 2  # syncs over which a share is balanced if the number of remaining checks is unknown
SHARE_OF_ROUNDS: Final = 0.1  # the default budget of a long run
LEAST_EXCHANGES: Final = 20  # of a run: fewer leave local steps with shared momentum too little changed
ROUNDING: Final = 1e-6  # of a sync: 0.1 of 300 checks are 30


@dataclass(frozen=True, slots=True)
class SyncRate:
    """The share of the coming checks to sync at, and whether one more sync can be paid for."""

    rate: float
    affordable: bool

    @property
    def words(self) -> str:
        """Return the rate as text for the reason of a decision."""
        return f"one sync in {1 / self.rate:.3g} checks" if self.rate > 0 else "no sync before the last check"


@dataclass(frozen=True, slots=True)
class Budget:
    """The amount that may be spent over the whole run."""

    gate: str
    amount: float
    unit: Unit

    def __post_init__(self) -> None:
        gate = f"gate {self.gate}"
        if self.unit not in UNITS:
            raise BadSetting(f"{gate}: saw budget unit {self.unit!r}, needed one of {', '.join(UNITS)}")
        if not (math.isfinite(self.amount) and self.amount > 0):
            raise BadSetting(f"{gate}: saw a budget of {self.amount} ({self.unit}), needed above 0")
        if self.unit == "share" and self.amount > 1:
            raise BadSetting(f"{gate}: saw a budget of {self.amount} of all checks, needed at most 1")

    def fits(self, gaps: Gaps) -> None:
        """Raise BadSetting if a share of the checks contradicts the bounds on a gap."""
        if self.unit != "share":
            return
        seen = f"gate {self.gate}: saw a budget of {self.amount} of all checks"
        if gaps.most is not None and self.amount * gaps.most < 1 - ROUNDING:
            raise BadSetting(
                f"{seen} with max_gap {gaps.most},"
                f" needed at least {1 / gaps.most:.3g} or max_gap at least {math.ceil(1 / self.amount)}"
            )
        if self.amount * gaps.least > 1 + ROUNDING:
            raise BadSetting(f"{seen} with min_gap {gaps.least}, needed at most {1 / gaps.least:.3g}")

    def describe(self) -> str:
        """Return the budget as text for the user."""
        unit = "of the rounds" if self.unit == "share" else self.unit
        return f"gate.budget {self.amount:g} {unit}"

    def pace(self, checks: int, spent: float, reports: Reports, *, densest: float = 1.0) -> SyncRate:
        """Return the rate at this check, after `checks` earlier ones that `spent` this much of the budget.

        `densest` is the largest share of checks that may be syncs.
        """
        even, left = self._even(checks, spent, reports)
        if reports.rounds_left is None:
            return even
        total, share = checks + left, min(even.rate / densest, 1.0) * left
        return replace(even, rate=densest * rising((checks + 0.5) / total, share / total))

    def even(self, checks: int, spent: float, reports: Reports, *, densest: float = 1.0) -> SyncRate:
        """Return the rate at this check that spends the rest evenly."""
        even, _ = self._even(checks, spent, reports)
        return replace(even, rate=min(even.rate, densest))

    def _even(self, checks: int, spent: float, reports: Reports) -> tuple[SyncRate, int]:
        """Return the even rate, and the checks that it is for."""
        left = self._horizon() if reports.rounds_left is None else reports.rounds_left + 1
        syncs = self._syncs(checks, spent, left, reports)
        if reports.rounds_left:
            syncs, left = syncs - 1, left - 1
        return SyncRate(min(max(syncs / left, 0.0), 1.0), affordable=syncs >= 1 - ROUNDING), left

    def cost(self, reports: Reports, *, sync: bool) -> float:
        """Return the cost of this check."""
        sync_cost, check_cost = self._costs(reports)
        return check_cost + (sync_cost if sync else 0.0)

    def _horizon(self) -> int:
        """Return the checks to plan for in a run without a known end."""
        if self.unit != "share":
            raise BadSetting(
                f"gate {self.gate}: a budget in {self.unit} needs to know how many checks are left"
            )
        return math.ceil(HORIZON / self.amount)

    def _syncs(self, checks: int, spent: float, left: int, reports: Reports) -> float:
        if self.unit == "share":
            return max(self.amount * (checks + left), 1.0) - spent  # a run needs at least one sync
        sync_cost, check_cost = self._costs(reports)
        if not sync_cost > 0:
            raise BadSetting(f"gate {self.gate}: saw a sync of {sync_cost} {self.unit}, needed above 0")
        return (self.amount - spent - check_cost * left) / sync_cost

    def _costs(self, reports: Reports) -> tuple[float, float]:
        if self.unit == "megabytes":
            return reports.sync_bytes / BYTES_PER_MEGABYTE, reports.check_bytes / BYTES_PER_MEGABYTE
        if self.unit == "seconds":
            return reports.sync_seconds, 0.0
        return 1.0, 0.0


def budget_of(settings: GateSettings) -> float:
    """Return the budget of the settings, or the default one, within the range that the bounds on a gap allow.

    >>> [budget_of(GateSettings(rounds=rounds, max_gap=32)) for rounds in (12, 20, 40, 200, 2000)]
    [1.0, 1.0, 0.5, 0.1, 0.1]
    """
    if settings.budget is not None:
        return settings.budget
    if settings.unit != "share":
        raise BadSetting(f"setting gate.budget: saw auto, needed a number of {settings.unit}")
    least = 1 / settings.max_gap if settings.max_gap else 0.0
    return min(max(SHARE_OF_ROUNDS, LEAST_EXCHANGES / settings.rounds, least), 1 / settings.min_gap)


def rising(passed: float, share: float) -> float:
    """Return the present rate of a schedule that rises linearly from the run's beginning, up to 1.

    After a share `passed` of the run, the rest must hold as many syncs as a `share` of all checks. That is
    the area from there on below the line steepness * x, capped at 1 from x = 1 / steepness on.

    >>> rising(0.5, 0.5), rising(0.0, 0.25), rising(0.0, 1.0), round(rising(0.5, 0.25), 3)
    (1.0, 0.0, 1.0, 0.333)
    """
    if passed + share >= 1:
        return 1.0
    steepness = 2 * share / (1 - passed**2)
    if steepness > 1:  # it reaches 1 before the end
        idle = 1 - share
        steepness = 1 / (idle + math.sqrt(idle**2 - passed**2))
    return min(steepness * passed, 1.0)
