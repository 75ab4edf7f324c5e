"""The interface of a gate, and the settings that gates are made from."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, Literal, Self, TypeVar, get_args

from fedgc.gates.reports import Decision, Reports

Measure = Literal["none", "distance", "gradient"]
MEASURES: Final[tuple[str, ...]] = get_args(Measure)
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class GateSettings:
    """The settings that gates may use; a gate ignores the others.

    Counts are in checks: one check per round.
    """

    rounds: int  # of the whole run
    period: int = 1  # gate.period: checks from one exchange to the next
    budget: float | None = None  # gate.budget, None: auto
    unit: Literal["share", "megabytes", "seconds"] = "share"  # gate.budget-unit
    check_steps: int = 1  # local steps between two checks
    max_gap: int | None = None  # largest number of checks between two exchanges, None: no bound
    min_gap: int = 1


class Gate(ABC, Generic[State]):
    """The base class of every gate: decides whether a round is exchanged.

    To add a gate, write one class and register it as an entry point of the group `fedgc.gates`; the setting
    `gate` then takes its name. Keyword-only arguments of `make` are the gate's own options: the setting
    `gate.options` gives them as "name=value, name=value", converted to the type of their default.

    A gate is a frozen value. Its state is plain data (numbers, texts, tuples of them): a checkpoint stores it
    as JSON, and `step` accepts the lists that JSON returns.

    >>> from fedgc.gates.every import Every
    >>> gate = Every.make(GateSettings(rounds=10, period=2))
    >>> gate.step(gate.init(), Reports(()))[1].sync
    False
    """

    __slots__ = ()

    summary: ClassVar[str] = ""
    """A description of the gate for `fedgc config`, in a few words."""
    measure: ClassVar[Measure] = "none"
    """The meaning of `Report.squared_norm`: distance is the squared distance from the last
    common model, gradient the squared norm of the newest gradient, for which clients wait at each check."""
    reads_losses: ClassVar[bool] = False
    """Whether the gate needs `Report.loss`, which a site's policy may keep from leaving."""
    advice: ClassVar[str] = ""
    """The advice to a user whose gate skips more rounds than wanted."""

    @classmethod
    @abstractmethod
    def make(cls, settings: GateSettings) -> Self:
        """Return the gate with these settings; raise BadSetting if it cannot work with them."""

    @abstractmethod
    def init(self) -> State:
        """Return the state before the first check."""

    @abstractmethod
    def step(self, state: State, reports: Reports) -> tuple[State, Decision]:
        """Return the state after these reports, and the decision."""

    @property
    def always_syncs(self) -> bool:
        """Return whether every round is exchanged."""
        return False

    def describe(self) -> str:
        """Return the settings that decide how many rounds are skipped, as text for the user."""
        return ""
