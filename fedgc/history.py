"""History values: a row for each round and client, and the speeds computed from them.

`run` makes rows, the driver adds the bytes it counted, `store` keeps them; before a run the store returns
`Speeds`, which `plan` and the tuner read. This module is below all of these, so no module below the driver
needs a database.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import Final

from fedgc.errors import BadMessage
from fedgc.messages import SUMMED, Outcome
from fedgc.values import value

BY_SITE: Final = "policy"  # kind of an audit entry: the policy of a client's site refuses the run
APP_FAILED: Final = "app failed"  # kind of an audit entry: the app of a connected client failed
APP_FAILS_NOT: Final = "app fails no longer"  # kind of an audit entry: it takes part, or is not connected
WINDOW: Final = 20  # past rounds used to plan the next ones
LEFT_OUT: Final = "the mean update is left out"
_IN_REASON: Final = "update is left out"  # also of rows of earlier versions


def median_and_spread(values: Collection[float]) -> tuple[float, float]:
    """Return the median, and the median absolute deviation, scaled to that of a normal distribution.

    (Rousseeuw and Croux, "Alternatives to the median absolute deviation", 1993)

    >>> median_and_spread([1.0, 1.0, 2.0, 9.0])
    (1.5, 0.7413)
    """
    middle = median(values)
    return middle, 1.4826 * median(abs(each - middle) for each in values)


@value
class ClientRow:
    """One client in one round.

    `finished` chunks reached the target; `counted` of them are in the sum, the rest was discarded. In local
    work both are local steps since the last exchange, and finished are those that this round has counted or
    discarded; `steps` are those done in this round, also if a later sum can still count them. `step_s` is the
    mean time of one local step over the finished chunks, `spread_s` its deviation between chunks; both are
    None if nothing was finished. `failure` names the failure, or is empty.
    """

    client: str
    finished: int = 0
    counted: int = 0
    steps: int = 0
    busy_s: float = 0.0
    step_s: float | None = None
    spread_s: float | None = None
    upload_s: float = 0.0
    download_s: float = 0.0
    up_bytes: int = 0
    down_bytes: int = 0
    control_bytes: int = 0
    refused: int = 0
    failure: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round: its cost, its result, and the inputs of its decisions.

    `known_samples` counts all data that clients announced to the run and did not withdraw, including lost
    clients and refused data; of a sample of clients, only theirs; 0: unknown.
    `counted_samples` of them are in the sum. `left_out` describes whose data was refused, and why.
    With stock clients `replicas` and `blocks` are 0, and `chunks` are the clients that were asked.
    """

    round: int
    version: int
    started: float
    working_s: float
    collecting_s: float
    outcome: Outcome
    chunks: int
    covered: int
    short: tuple[int, ...]
    replicas: int
    blocks: int
    needed: int
    amplification: float | None
    error: float | None
    loss: float | None
    samples: int
    skips: int
    takes: int
    pruned: int
    repairs: int
    reason: str
    clients: tuple[ClientRow, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    known_samples: int = 0
    counted_samples: int = 0
    left_out: str = ""

    @property
    def coverage(self) -> float | None:
        """The share of the known samples that is in the sum; None if no sum was wanted."""
        if not self.known_samples or self.outcome in ("skipped", "stopped"):
            return None
        return self.counted_samples / self.known_samples

    @property
    def lacking(self) -> str:
        """The share of the samples that counted, in words; empty if all did.

        >>> from dataclasses import fields
        >>> zero = {each.name: 0 for each in fields(RoundRow)}
        >>> row = RoundRow(**{**zero, "outcome": "synced", "known_samples": 1000, "counted_samples": 999})
        >>> row.lacking
        '99% of the samples'
        """
        if self.coverage is None or (self.coverage >= 1.0 and not self.left_out):
            return ""
        return f"{math.floor(100 * self.coverage)}% of the samples"

    @property
    def discarded(self) -> int:
        """Finished replicas of chunks, or local steps, that are in no sum; continued work is not included."""
        return 0 if self.outcome == "skipped" else sum(row.finished - row.counted for row in self.clients)

    @property
    def is_left_out(self) -> bool:
        """Whether there was an exchange, and the server has left out its update."""
        return _IN_REASON in self.reason

    def without_steps_of(self, clients: Collection[str]) -> "RoundRow":
        """Return the row of a round in which the steps of these clients do not count."""
        if not clients or self.outcome not in SUMMED:
            return self
        rows = (replace(each, counted=0) if each.client in clients else each for each in self.clients)
        return replace(self, clients=tuple(rows))

    def without_update(self, why: str) -> "RoundRow":
        """Return the row of an exchange whose update the server has left out: nothing counts."""
        reason = "; ".join(filter(None, (self.reason, f"{LEFT_OUT}: {why}")))
        clients = tuple(replace(each, counted=0) for each in self.clients)
        return replace(self, outcome="approximate", counted_samples=0, reason=reason, clients=clients)


@dataclass(frozen=True, slots=True)
class BestModel:
    """The best model of a run so far, by the figure that `validate.best` names.

    >>> str(BestModel("accuracy", 7, 9, 0.93))
    'version 7, round 9, accuracy 0.93'
    """

    figure: str
    version: int
    round: int
    value: float

    def __str__(self) -> str:
        """Return the version, its round and its figure."""
        return f"version {self.version}, round {self.round}, {self.figure} {self.value:.4g}"


@dataclass(frozen=True, slots=True)
class KnownBest(BestModel):
    """The best model before a resume, and how many evaluations have given no better one since."""

    since: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """The figures of one client for the model after a round, measured on `samples` samples of its own."""

    round: int
    client: str
    samples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PastRound:
    """A round's row, with its run, and what its plan predicted (None: nothing).

    `replay_s` is the mean of the replays, `predicted_s` that mean corrected by the rounds before.
    """

    run: str
    row: RoundRow
    replay_s: float | None = None
    predicted_s: float | None = None

    @property
    def error(self) -> float | None:
        """The error of the prediction as a share of the time that the round took."""
        took_s = self.row.working_s + self.row.collecting_s
        return abs(self.predicted_s / took_s - 1.0) if self.predicted_s and took_s > 0 else None


@value
class Speed:
    """The measured speed of one client; what it fetches is known of the present run alone."""

    client: str
    step_s: float
    spread_s: float = 0.0
    failures: float = 0.0
    up_bytes_s: float | None = None
    down_bytes_s: float | None = None
    rounds: int = 1
    fetch_bytes_s: float | None = None  # of chunks, from the store of its site
    chunk_bytes: float | None = None  # of each of them

    def __post_init__(self) -> None:
        for name in ("step_s", "spread_s", "failures"):
            seen = getattr(self, name)
            if not (math.isfinite(seen) and seen >= 0):
                raise BadMessage(
                    f"speed of {self.client}: saw {name}={seen}, needed a finite number of 0 or more"
                )
        if self.step_s == 0:
            raise BadMessage(f"speed of {self.client}: saw step_s=0, needed more")
        for name in ("up_bytes_s", "down_bytes_s", "fetch_bytes_s", "chunk_bytes"):
            seen = getattr(self, name)
            if seen is not None and not (math.isfinite(seen) and seen > 0):
                raise BadMessage(
                    f"speed of {self.client}: saw {name}={seen}, needed a number above 0, or none"
                )


@dataclass(frozen=True, slots=True)
class Speeds:
    """The known speeds by client; a client without history is absent.

    `recent` are the last rounds of the task over all runs, oldest first.
    """

    known: Mapping[str, Speed] = field(default_factory=lambda: MappingProxyType({}))
    recent: tuple[PastRound, ...] = ()

    def step_s(self, client: str, default: float) -> float:
        """Return the seconds of one local step on `client`, or the default if unknown."""
        speed = self.known.get(client)
        return speed.step_s if speed else default
