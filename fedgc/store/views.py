"""Values that the store returns to the command line, the page and exports."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedgc.history import RoundRow, Speed


@dataclass(frozen=True, slots=True)
class Run:
    """A run; `heard` is the time of its last record, which tells a dead run from a long round.

    `models` of its rounds have made a model.
    """

    run: str
    task: str
    settings: Mapping[str, Any]
    state: str
    reason: str
    started: float
    ended: float | None
    rounds: int
    last_round: int | None
    present: Mapping[str, Any]
    heard: float
    initial_metrics: Mapping[str, float] = field(default_factory=dict)  # of the model before round 1
    models: int = 0

    @property
    def first_start(self) -> str:
        """The run of the first `FedGC.start` of this run's app, by which the app is resumed."""
        first = str(self.settings.get("run", ""))
        return first if first and re.fullmatch(re.escape(first) + r"-\d+", self.run) else self.run


@dataclass(frozen=True, slots=True)
class Round:
    """A round and the totals of its clients, which exist even if their rows were folded."""

    row: RoundRow
    clients: int
    finished: int
    counted: int
    up_bytes: int
    down_bytes: int
    control_bytes: int


@dataclass(frozen=True, slots=True)
class Client:
    """A client as it was last seen."""

    client: str
    name: str
    site: str
    link: str
    first_seen: float
    last_seen: float


class Named(Protocol):
    """What has the identity and the name of a client."""

    @property
    def client(self) -> str:
        """The identity."""

    @property
    def name(self) -> str:
        """The name; others may have the same."""


def labels_of(clients: Iterable[Named]) -> dict[str, str]:
    """Return the names of clients, with their identities where a name is shared or empty."""
    named = {each.client: each.name for each in clients}
    names = Counter(named.values())
    return {
        client: " ".join(filter(None, (name, client if names[name] > 1 or not name else "")))
        for client, name in named.items()
    }


@dataclass(frozen=True, slots=True)
class MeasuredSpeeds:
    """A client at one task: `speed` and `trend` of its last rounds, the counts of all of them.

    `trend` holds the time of a step in each of those rounds, oldest first.
    """

    client: Client
    speed: Speed | None
    trend: tuple[float, ...]
    rounds: int
    finished: int
    counted: int
    failures: int
    implausible: int

    @property
    def counted_share(self) -> float | None:
        """The share of its finished work that is in a sum; None if nothing was finished."""
        return self.counted / self.finished if self.finished else None


@dataclass(frozen=True, slots=True)
class Pulse:
    """Values that change at news: of the rounds, measurements and decisions of a run, and of the queue."""

    run: str
    state: str
    heard: float
    last_round: int | None
    marks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive rounds of a run added up, from `first` to `last`; `loss` is their mean.

    `clients` counts a client once for each round; `skipped_bytes` and `skipped_clients` are the part of
    skipped rounds, the former without models. `metrics` has the newest value of each measure.
    """

    first: int
    last: int
    rounds: int
    synced: int
    approximate: int
    skipped: int
    working_s: float
    collecting_s: float
    clients: int
    finished: int
    counted: int
    up_bytes: int
    down_bytes: int
    control_bytes: int
    skipped_bytes: int
    skipped_clients: int
    repairs: int
    loss: float | None
    metrics: Mapping[str, float]

    @property
    def bytes(self) -> int:
        """All bytes sent, in both directions."""
        return self.up_bytes + self.down_bytes + self.control_bytes


@dataclass(frozen=True, slots=True)
class Lately:
    """A client over the newest rounds of a run, summed."""

    client: str
    rounds: int
    finished: int
    counted: int
    steps: int
    busy_s: float
    up_bytes: int
    down_bytes: int
    control_bytes: int
    failures: int
    refused: int


@dataclass(frozen=True, slots=True)
class Health:
    """The result of a check: `faults` is empty if there is no damage."""

    name: str
    schema: str
    size_bytes: int
    runs: int
    rounds: int
    clients: int
    client_rounds: int
    folded: int
    faults: tuple[str, ...]
