"""A gate from plain settings; which of them it needs is said here and nowhere else."""

from dataclasses import dataclass
from typing import Any, Final

from fedgc.errors import BadSetting, nearest
from fedgc.gates.budget import Unit
from fedgc.gates.drift import Drift
from fedgc.gates.relative_change import RelativeChange
from fedgc.gates.reports import Gate
from fedgc.gates.schedule import QSR, Every

GATES: Final = ("every", "drift", "relative-change", "qsr")


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What the gates are made of. A setting that the chosen gate has no use for is not looked at."""

    period: int  # every: checks from one sync to the next
    budget: float  # drift: of the whole run, in `unit`
    unit: Unit
    delta: float  # relative-change: the paper's threshold
    window: int
    base: int  # qsr: the fewest local steps between syncs
    growth: float
    check_steps: int  # local steps between two checks
    max_gap: int  # checks; 0: no bound
    min_gap: int


def make_gate(name: str, settings: GateSettings) -> Gate[Any]:
    """Return the gate of this name."""
    most, least = settings.max_gap or None, settings.min_gap
    if name == "every":
        return Every(settings.period, most, least)
    if name == "drift":
        return Drift(settings.budget, most, least, settings.unit)
    if name == "relative-change":
        return RelativeChange(settings.delta, settings.window, max_gap=most, min_gap=least)
    if name == "qsr":
        return QSR(settings.base, settings.growth, settings.check_steps, most, least)
    raise BadSetting(f"gate: saw {name!r}, needed one of {', '.join(GATES)}{nearest(name, GATES)}")
