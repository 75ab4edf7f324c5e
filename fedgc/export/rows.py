"""A run as table rows: one per round, and one per client and round.

The client rows of a large fleet do not fit in memory, so they come in parts of whole rounds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

from fedgc.history import ClientRow, RoundRow, Score
from fedgc.messages import Outcome
from fedgc.store.database import Store
from fedgc.store.parts import client_parts
from fedgc.store.views import Round, Run, labels_of

_KINDS: Final[dict[str, type]] = {
    "int": int,
    "float": float,
    "float | None": float,
    "Outcome": str,
    "str": str,
}
_TOTALS: Final = ("clients", "finished", "counted", "up_bytes", "down_bytes", "control_bytes")
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name and its type."""

    name: str
    kind: type[str] | type[int] | type[float]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a run: its columns, and its rows part by part."""

    name: str
    columns: tuple[Column, ...]
    parts: Iterator[Sequence[Sequence[Cell]]]


def tables(store: Store, run: Run) -> tuple[Table, ...]:
    """Return the tables of rounds, of clients and, if clients scored models, of their figures."""
    rounds, scores = store.rounds(run.run), store.scores(run.run)
    found = (_rounds(run, rounds), _clients(store, run, rounds))
    return (*found, _scores(store, run, scores)) if scores else found


def scored_measures(store: Store, run: Run) -> dict[int, dict[str, float]]:
    """Return the figures of each client by round, named as in TensorBoard; 0 is the initial model."""
    scores = store.scores(run.run)
    scored = {each.client for each in scores}
    names = labels_of(each for each in store.clients() if each.client in scored)
    found: dict[int, dict[str, float]] = {}
    if run.initial_metrics:
        found[0] = {f"measured/{name}": value for name, value in run.initial_metrics.items()}
    for each in scores:
        own = found.setdefault(each.round, {})
        own |= {
            f"clients/{name}/{names.get(each.client) or each.client}": value
            for name, value in each.metrics.items()
        }
    return found


def measures(each: Round) -> dict[str, float]:
    """Return the measures of a round by name, in groups, as in TensorBoard and MLflow."""
    row = each.row
    found = {
        "train/loss": row.loss,
        **{f"measured/{name}": value for name, value in row.metrics.items()},
        "time/working_s": row.working_s,
        "time/collecting_s": row.collecting_s,
        "bytes/up": each.up_bytes,
        "bytes/down": each.down_bytes,
        "bytes/control": each.control_bytes,
        "work/finished": each.finished,
        "work/counted": each.counted,
        "work/missing_chunks": len(row.short),
        "code/blocks": row.blocks,
        "code/replicas": row.replicas,
        "code/amplification": row.amplification,
        "code/error": row.error,
        "clients": each.clients,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _rounds(run: Run, rounds: Sequence[Round]) -> Table:
    names = [each.name for each in fields(RoundRow) if each.name not in ("clients", "short", "metrics")]
    plain = [column for column in _columns(RoundRow) if column.name in names]
    measured = sorted({name for each in rounds for name in each.row.metrics})
    columns = (
        Column("run", str),
        *plain,
        Column("short", int),
        Column("ended", str),
        *(Column(name, int) for name in _TOTALS),
        *(Column(f"measured_{name}", float) for name in measured),
    )

    def line(each: Round) -> list[Cell]:
        row: Any = each.row
        return [
            run.run,
            *(getattr(row, name) for name in names),
            len(row.short),
            moment(row.started + row.working_s + row.collecting_s),
            *(getattr(each, name) for name in _TOTALS),
            *(row.metrics.get(name) for name in measured),
        ]

    return Table("rounds", columns, iter([[line(each) for each in rounds]]))


def _clients(store: Store, run: Run, rounds: Sequence[Round]) -> Table:
    plain = _columns(ClientRow)
    names = {each.client: (each.name, each.site) for each in store.clients()}

    def parts() -> Iterator[Sequence[Sequence[Cell]]]:
        for part in client_parts(store, run.run, rounds):
            yield [
                [
                    run.run,
                    number,
                    *names.get(row.client, ("", "")),
                    *(getattr(row, each.name) for each in plain),
                ]
                for number, row in part
            ]

    columns = (Column("run", str), Column("round", int), Column("name", str), Column("site", str), *plain)
    return Table("clients", columns, parts())


def _scores(store: Store, run: Run, scores: Sequence[Score]) -> Table:
    names = {each.client: (each.name, each.site) for each in store.clients()}
    measured = sorted({name for each in scores for name in each.metrics})
    columns = (
        *(Column("run", str), Column("round", int), Column("name", str), Column("site", str)),
        *(Column("client", str), Column("samples", int)),
        *(Column(f"measured_{name}", float) for name in measured),
    )

    def line(each: Score) -> list[Cell]:
        about = (run.run, each.round, *names.get(each.client, ("", "")), each.client, each.samples)
        return [*about, *(each.metrics.get(name) for name in measured)]

    return Table("scores", columns, iter([[line(each) for each in scores]]))


def _columns(row: type[RoundRow] | type[ClientRow]) -> tuple[Column, ...]:
    kinds: dict[object, type[str] | type[int] | type[float]] = {int: int, str: str, Outcome: str}
    return tuple(Column(each.name, kinds.get(each.type, float)) for each in fields(row))


def moment(seconds: float) -> str:
    """Return a time in ISO 8601.

    >>> moment(1_700_000_000.0)
    '2023-11-14T22:13:20.000+00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
