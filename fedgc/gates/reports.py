"""What a gate sees and what it answers."""

import math
from dataclasses import dataclass

from fedgc.errors import BadSetting


@dataclass(frozen=True, slots=True)
class Report:
    """What one source (a chunk in coded work, a client in local work) did since the last sync.

    `squared_norm` is the one scalar that a gate weighs. `Drift` takes the squared distance from the last
    common model; `RelativeChange` takes the squared norm of the newest gradient. The two are one number
    when a check is one gradient step, as in gradient coding.
    """

    source: int | str
    steps: int
    samples: int
    squared_norm: float
    loss: float

    @property
    def usable(self) -> bool:
        """Whether the norm can be weighed at all."""
        return math.isfinite(self.squared_norm) and self.squared_norm >= 0


@dataclass(frozen=True, slots=True)
class Reports:
    """All that a gate may look at.

    The costs count everything that moves: `sync` is an exchange (models down, vectors up), `check` is what
    asking the gate costs whatever it answers. `rounds_left` counts the checks still to come after this one
    (None: nobody knows). `alpha` is the weight of a client's own gradient in every local step, the rest being
    the shared momentum (1: there is none); `shared_norm` is the squared length of that shared step.
    """

    items: tuple[Report, ...]
    sync_bytes: int = 0
    sync_seconds: float = 0.0
    rounds_left: int | None = None
    check_bytes: int = 0
    check_seconds: float = 0.0
    learning_rate: float | None = None
    alpha: float = 1.0
    shared_norm: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise BadSetting(f"shared momentum: saw alpha {self.alpha}, needed above 0 and at most 1")
        if not (math.isfinite(self.shared_norm) and self.shared_norm >= 0):
            raise BadSetting(f"shared momentum: saw a squared length of {self.shared_norm}, needed 0 or more")

    def working(self) -> tuple[Report, ...]:
        """Return the reports that a gate may weigh: of sources that moved, and say so in numbers."""
        return tuple(item for item in self.items if item.usable and item.steps > 0)

    def unusable(self) -> tuple[Report, ...]:
        """Return the reports whose norm cannot be weighed."""
        return tuple(item for item in self.items if not item.usable)


@dataclass(frozen=True, slots=True)
class Decision:
    """Exchange now, or carry on locally; why; and whose report was left out of it."""

    sync: bool
    reason: str
    left_out: tuple[int | str, ...] = ()
