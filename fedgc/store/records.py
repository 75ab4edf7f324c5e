"""Records: the values that the store writes, and their form as lines of text in the spool file.

A record states one event and its time (`now`, seconds since 1970 on the server's clock; clocks of clients are
not used). `Store.write` takes any of them. A record can also be queued, written to a file and stored later.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, Final

from fedgc.errors import BadMessage
from fedgc.history import ClientRow, RoundRow

Plain = str | int | float | bool | None


def _check(record: object, *names: str) -> None:
    now = getattr(record, "now")  # noqa: B009  (records share the field, not a type)
    if not math.isfinite(now):
        raise BadMessage(f"{type(record).__name__}: saw now={now}, needed a finite time")
    for name in names:
        if not getattr(record, name):
            raise BadMessage(f"{type(record).__name__}: saw an empty {name}, needed its name")


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


def task_in(settings: Mapping[str, Plain]) -> str:
    """Return the task that these settings name, or what is trained in its place: a script, a stock app."""
    if settings.get("client.app") == "stock":
        return "stock"
    return str(settings.get("script") or settings["task"])


@dataclass(frozen=True, slots=True)
class Begun:
    """A run begins or is resumed; its settings are the flat table of `RunConfig`.

    `changes` describes those that a resume changes.
    """

    now: float
    run: str
    settings: Mapping[str, Plain]
    changes: str = ""

    def __post_init__(self) -> None:
        _check(self, "run")
        if not self.settings.get("task"):
            raise BadMessage(f"run {self.run}: saw settings without a task, needed one")


@dataclass(frozen=True, slots=True)
class Appended:
    """A round is over. The same round recorded again replaces the first row."""

    now: float
    run: str
    row: RoundRow

    def __post_init__(self) -> None:
        _check(self, "run")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The model after a round was evaluated; the metrics join those of the round (0: before the first)."""

    now: float
    run: str
    round: int
    metrics: Mapping[str, float]

    def __post_init__(self) -> None:
        _check(self, "run")


@dataclass(frozen=True, slots=True)
class Scored:
    """A client scored the model after a round on its own data. The same again replaces the first."""

    now: float
    run: str
    round: int
    client: str
    samples: int
    metrics: Mapping[str, float]

    def __post_init__(self) -> None:
        _check(self, "run", "client")


@dataclass(frozen=True, slots=True)
class Present:
    """The state of the current round; the next one overwrites it."""

    now: float
    run: str
    summary: Mapping[str, Any]

    def __post_init__(self) -> None:
        _check(self, "run")


@dataclass(frozen=True, slots=True)
class Seen:
    """A client is present. Empty texts leave the known values as they are."""

    now: float
    client: str
    name: str = ""
    site: str = ""
    link: str = ""

    def __post_init__(self) -> None:
        _check(self, "client")


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision before or in a round: what was chosen, from what, and why."""

    now: float
    run: str
    round: int
    what: str
    basis: Mapping[str, Any] = field(default_factory=_nothing)
    reason: str = ""

    def __post_init__(self) -> None:
        _check(self, "run", "what")


@dataclass(frozen=True, slots=True)
class Audited:
    """An event for the audit: clients that joined, refusals, keys."""

    now: float
    kind: str
    who: str
    what: str
    run: str = ""

    def __post_init__(self) -> None:
        _check(self, "kind")


@dataclass(frozen=True, slots=True)
class Ended:
    """A run is over, complete or not; `settings` are those to go on with, if others than before."""

    now: float
    run: str
    state: str
    reason: str = ""
    settings: Mapping[str, Plain] = field(default_factory=_nothing)

    def __post_init__(self) -> None:
        _check(self, "run", "state")


Record = Begun | Appended | Evaluated | Scored | Present | Seen | Decided | Audited | Ended
_KINDS: Final[Mapping[str, type[Record]]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (Begun, Appended, Evaluated, Scored, Present, Seen, Decided, Audited, Ended)
    }
)


def to_line(record: Record, stamp: str) -> str:
    """Return the record as one line; the `stamp` identifies it, so that writing it twice stores it once."""
    return json.dumps({"stamp": stamp, "kind": type(record).__name__, "says": record}, default=_plain) + "\n"


def from_line(line: str) -> tuple[Record, str]:
    """Return the record and stamp of a line.

    >>> line = to_line(Seen(5.0, "a", site="north"), "s1")
    >>> from_line(line)
    (Seen(now=5.0, client='a', name='', site='north', link=''), 's1')
    """
    try:
        words = json.loads(line)
        says = dict(words["says"])
        if words["kind"] == "Appended":
            says["row"] = _row(says["row"])
        for name in ("settings", "metrics", "summary", "basis"):
            if name in says:
                says[name] = MappingProxyType(says[name])
        return _KINDS[words["kind"]](**says), str(words["stamp"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadMessage(f"record kept aside: saw {line[:60]!r} ({error}), needed a whole line") from error


def _plain(value: object) -> object:
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


def _row(words: Mapping[str, Any]) -> RoundRow:
    lists = {
        "short": tuple(words["short"]),
        "clients": tuple(ClientRow(**client) for client in words["clients"]),
        "metrics": MappingProxyType(words["metrics"]),
    }
    return RoundRow(**{**words, **lists})
