"""What the store is told, as values, and as lines of text where they must wait for it.

A record says one thing that happened, and when (`now`, seconds since 1970 on the server's clock: a
client's own clock is never asked). `Store.write` takes any of them, so that a record can also be queued,
put aside in a file and written later, by the same words.
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


@dataclass(frozen=True, slots=True)
class Begun:
    """A run begins, or is resumed; its settings are the flat table of `RunConfig`."""

    now: float
    run: str
    settings: Mapping[str, Plain]

    def __post_init__(self) -> None:
        _check(self, "run")
        if not self.settings.get("task"):
            raise BadMessage(f"run {self.run}: saw settings without a task, needed one")

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.settings["task"])


@dataclass(frozen=True, slots=True)
class Appended:
    """A round is over. The same round told again takes the place of the first telling."""

    now: float
    run: str
    row: RoundRow

    def __post_init__(self) -> None:
        _check(self, "run")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The model after a round was measured; the metrics join those of the round."""

    now: float
    run: str
    round: int
    metrics: Mapping[str, float]

    def __post_init__(self) -> None:
        _check(self, "run")


@dataclass(frozen=True, slots=True)
class Present:
    """How the round under way stands: small, and overwritten by the next."""

    now: float
    run: str
    summary: Mapping[str, Any]

    def __post_init__(self) -> None:
        _check(self, "run")


@dataclass(frozen=True, slots=True)
class Seen:
    """A client is there. Empty words leave what is known as it is."""

    now: float
    client: str
    name: str = ""
    site: str = ""
    link: str = ""

    def __post_init__(self) -> None:
        _check(self, "client")


@dataclass(frozen=True, slots=True)
class Decided:
    """What was chosen before or in a round, from what, and why."""

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
    """Something that must stay on record: who joined, what was refused, which keys."""

    now: float
    kind: str
    who: str
    what: str
    run: str = ""

    def __post_init__(self) -> None:
        _check(self, "kind")


@dataclass(frozen=True, slots=True)
class Ended:
    """A run is over, one way or another."""

    now: float
    run: str
    state: str
    reason: str = ""

    def __post_init__(self) -> None:
        _check(self, "run", "state")


Record = Begun | Appended | Evaluated | Present | Seen | Decided | Audited | Ended
_KINDS: Final[Mapping[str, type[Record]]] = MappingProxyType(
    {kind.__name__: kind for kind in (Begun, Appended, Evaluated, Present, Seen, Decided, Audited, Ended)}
)


def to_line(record: Record, stamp: str) -> str:
    """Return the record as one line; `stamp` is its own, so that writing it twice writes it once."""
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
