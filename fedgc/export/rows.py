"""A run as lines: one a round, and one a client in a round.

The client lines of a large fleet do not fit in memory, so they come in parts of whole rounds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

from fedgc.history import ClientRow, RoundRow
from fedgc.messages import Outcome
from fedgc.store.database import Store
from fedgc.store.views import Round, Run

PART: Final = 50_000  # client lines held at a time
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
    """One column: what it is called, and what stands in it where it is not empty."""

    name: str
    kind: type[str] | type[int] | type[float]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a run: its columns, and its lines part by part."""

    name: str
    columns: tuple[Column, ...]
    parts: Iterator[Sequence[Sequence[Cell]]]


def tables(store: Store, run: Run) -> tuple[Table, Table]:
    """Return the rounds of a run, and its clients round by round."""
    rounds = store.rounds(run.run)
    return _rounds(run, rounds), _clients(store, run, rounds)


def measures(each: Round) -> dict[str, float]:
    """Return the figures of a round by name, in groups, as TensorBoard and MLflow show them."""
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
        for first, last in spans(rounds):
            yield [
                [
                    run.run,
                    number,
                    *names.get(row.client, ("", "")),
                    *(getattr(row, each.name) for each in plain),
                ]
                for number, row in store.client_rounds(run.run, first, last)
            ]

    columns = (Column("run", str), Column("round", int), Column("name", str), Column("site", str), *plain)
    return Table("clients", columns, parts())


def _columns(row: type[RoundRow] | type[ClientRow]) -> tuple[Column, ...]:
    kinds: dict[object, type[str] | type[int] | type[float]] = {int: int, str: str, Outcome: str}
    return tuple(Column(each.name, kinds.get(each.type, float)) for each in fields(row))


def spans(rounds: Sequence[Round]) -> Iterator[tuple[int, int]]:
    """Return (first, last) of consecutive rounds whose client lines fit in one part."""
    part: list[int] = []
    held = 0
    for each in rounds:
        if part and held + each.clients > PART:
            yield part[0], part[-1]
            part, held = [], 0
        part.append(each.row.round)
        held += each.clients
    if part:
        yield part[0], part[-1]


def moment(seconds: float) -> str:
    """Return a moment as every program reads it.

    >>> moment(1_700_000_000.0)
    '2023-11-14T22:13:20.000+00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
