"""The input and the output of a gate."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """The work of one source (a chunk in coded work, a client in local work) since the last sync.

    `squared_norm` is the one scalar that a gate uses: for `Drift` the squared distance from the last common
    model, for `RelativeChange` the squared norm of the newest gradient. The two are the same number when a
    check is one gradient step, as in gradient coding.
    """

    source: int | str
    steps: int
    samples: int
    squared_norm: float
    loss: float

    @property
    def usable(self) -> bool:
        """Return whether the norm is a finite number of 0 or more."""
        return math.isfinite(self.squared_norm) and self.squared_norm >= 0


@dataclass(frozen=True, slots=True)
class Reports:
    """The whole input of a gate at one check.

    Costs count all traffic: `sync` is an exchange (models down, vectors up), `check` is the cost of asking
    the gate. `rounds_left` counts the checks after this one (None: unknown). `forced` says why there is an
    exchange whatever the gate decides, if so: its state is then that after an exchange.
    """

    items: tuple[Report, ...]
    sync_bytes: int = 0
    sync_seconds: float = 0.0
    rounds_left: int | None = None
    check_bytes: int = 0
    learning_rate: float | None = None
    forced: str = ""

    def working(self) -> tuple[Report, ...]:
        """Return the reports that a gate may use: of sources that moved, with a usable norm."""
        return tuple(item for item in self.items if item.usable and item.steps > 0)

    def unusable(self) -> tuple[Report, ...]:
        """Return the reports whose norm is unusable."""
        return tuple(item for item in self.items if not item.usable)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to exchange, the reason, and the sources whose report was left out."""

    sync: bool
    reason: str
    left_out: tuple[int | str, ...] = ()
