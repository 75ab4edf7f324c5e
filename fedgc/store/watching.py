"""Queries for monitoring a run: the cost of each does not grow with the number of rounds.

A page asks again after every round, so none of these may read all client rows (clients times rounds). The
history of a run is summed into stretches of rounds, as many as a chart has room for; rows of single clients
are read for the newest rounds only.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    RowMapping,
    Select,
    case,
    func,
    literal_column,
    or_,
    select,
    true,
)

from fedgc.history import ClientRow
from fedgc.store import tables
from fedgc.store.columns import mapping_in, metrics_in
from fedgc.store.reading import client_row, client_rows_where, run_id
from fedgc.store.run_queue import queue_marks
from fedgc.store.tables import ClientRound, Decision
from fedgc.store.views import Lately, Pulse, Stretch
from fedgc.store.work import is_local

MEASURED_LATE: Final = 64  # rounds before the newest in which a pulse still notices a new measurement
_LEFT_OUT: Final = ("first", "last", "loss", "metrics", "mean_loss", "stretch")


def pulse(connection: Connection, key: str) -> Pulse:
    """Return a value that changes when the run or the queue does; an equal one means no news."""
    at = run_id(connection, key)
    of_run = tables.Round.run_id == at
    last = connection.scalar(select(func.max(tables.Round.round)).where(of_run))
    newest = -1 if last is None else last
    lately = select(func.count(), func.coalesce(func.sum(func.length(tables.Round.metrics)), 0))
    rounds = connection.execute(lately.where(of_run, tables.Round.round > newest - MEASURED_LATE)).one()
    scored = connection.scalar(
        select(func.count())
        .select_from(tables.Score)
        .where(tables.Score.run_id == at, tables.Score.round >= newest)
    )
    decided = connection.scalar(select(func.max(Decision.id)).where(Decision.run_id == at))
    found = connection.execute(
        select(tables.Run.key, tables.Run.state, tables.Run.present_at).where(tables.Run.id == at)
    ).one()
    return Pulse(*found, last, (*rounds, decided or 0, scored or 0, *queue_marks(connection)))


def stretches(connection: Connection, key: str, most: int) -> tuple[Stretch, ...]:
    """Return a run's rounds in order, summed into at most `most` stretches of equal length."""
    of_run = tables.Round.run_id == run_id(connection, key)
    ends = select(func.min(tables.Round.round), func.max(tables.Round.round)).where(of_run)
    first, last = connection.execute(ends).one()
    if first is None:
        return ()
    width = _width(first, last, most)
    number = (tables.Round.round // literal_column(str(width), Integer)).label("stretch")
    added = select(number, *_sums(_settles(connection, key))).where(of_run).group_by(number).order_by(number)
    lines = connection.execute(added).mappings().all()
    # A round has a few measures or, if its model was evaluated, more: the newest round of each count is read.
    texts = tables.Round.metrics
    count = func.length(texts) - func.length(func.replace(texts, '": ', ""))
    newest = select(func.max(tables.Round.round)).where(of_run, texts != "{}").group_by(number, count)
    chosen = select(number, texts).where(of_run, tables.Round.round.in_(newest)).order_by(tables.Round.round)
    metrics: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for at, measured in connection.execute(chosen):
        metrics[at] |= metrics_in(measured)
    return tuple(_stretch(line, metrics[line["stretch"]]) for line in lines)


def lately(connection: Connection, key: str, rounds: int) -> tuple[Lately, ...]:
    """Return every client with work in the newest rounds of a run, and its total in them."""
    ids = _newest(connection, key, rounds)
    settling = ClientRound.round_id.in_(select(tables.Round.id).where(_settles(connection, key)))
    sums = (
        *_settled(ClientRound, settling),
        *(
            func.sum(getattr(ClientRound, name)).label(name)
            for name in ("steps", "busy_s", "up_bytes", "down_bytes", "control_bytes", "refused")
        ),
    )
    counts = (func.count().label("rounds"), func.count(ClientRound.failure).label("failures"))
    added = select(ClientRound.client_id, *counts, *sums).where(ClientRound.round_id.in_(ids))
    totals = added.group_by(ClientRound.client_id).subquery()
    chosen = select(totals, tables.Client.key).join(tables.Client, tables.Client.id == totals.c.client_id)
    lines = connection.execute(chosen.order_by(tables.Client.id)).mappings()
    return tuple(_lately(line) for line in lines)


def strips(
    connection: Connection, key: str, clients: Collection[str], rounds: int
) -> tuple[tuple[int, ClientRow], ...]:
    """Return (round, row) of these clients in the newest rounds of a run, oldest first."""
    ids = _newest(connection, key, rounds)
    chosen = client_rows_where(ClientRound.round_id.in_(ids), ClientRound.client_id.in_(_ids(clients)))
    return _numbered(connection, chosen.order_by(ClientRound.round_id, ClientRound.client_id))


def faults(connection: Connection, key: str, rounds: int, limit: int) -> tuple[tuple[int, ClientRow], ...]:
    """Return (round, row) of each failure and refusal in the newest rounds, newest first."""
    ids = _newest(connection, key, rounds)
    went_wrong = or_(ClientRound.failure.is_not(None), ClientRound.refused > 0)
    chosen = client_rows_where(ClientRound.round_id.in_(ids), went_wrong)
    newest_first = chosen.order_by(ClientRound.round_id.desc(), ClientRound.client_id)
    return _numbered(connection, newest_first.limit(limit))


def client_rounds(
    connection: Connection, key: str, first: int, last: int
) -> tuple[tuple[int, ClientRow], ...]:
    """Return (round, row) of every client in the rounds from `first` to `last`, both included."""
    of_run = tables.Round.run_id == run_id(connection, key)
    chosen = client_rows_where(of_run, tables.Round.round.between(first, last))
    return _numbered(connection, chosen.order_by(tables.Round.round, ClientRound.client_id))


def _newest(connection: Connection, key: str, rounds: int) -> list[int]:
    """Return the ids of the newest rounds, as numbers, so that every database uses its index."""
    chosen = select(tables.Round.id).where(tables.Round.run_id == run_id(connection, key))
    return list(connection.scalars(chosen.order_by(tables.Round.round.desc()).limit(rounds)).all())


def _ids(clients: Collection[str]) -> Select[int]:
    return select(tables.Client.id).where(tables.Client.key.in_(clients))


def _numbered(connection: Connection, chosen: Select[Any]) -> tuple[tuple[int, ClientRow], ...]:
    return tuple((line["round"], client_row(line)) for line in connection.execute(chosen).mappings())


def _width(first: int, last: int, most: int) -> int:
    """Return how many rounds a stretch has: 1, 2, 5, 10, ..., so that a chart seldom changes its scale.

    >>> _width(1, 30, 240), _width(1, 10_000, 240), _width(9, 10, 1)
    (1, 50, 20)
    """
    widths = (step * 10**scale for scale in range(len(str(last)) + 1) for step in (1, 2, 5))
    return next((width for width in widths if last // width - first // width < most), last + 1)


def _settles(connection: Connection, key: str) -> ColumnElement[bool]:
    """Return whether a round settles its work; that of a skipped round of coded work is settled later."""
    run = connection.execute(
        select(tables.Run.settings, tables.Task.name)
        .join(tables.Task)
        .where(tables.Run.id == run_id(connection, key))
    ).one()
    return true() if is_local(mapping_in(run.settings), run.name) else tables.Round.outcome != "skipped"


def _settled(rows: Any, settling: ColumnElement[bool]) -> list[Any]:  # noqa: ANN401  a table
    """Return the sums of the work that is settled in some rows."""
    return [
        func.sum(case((settling, getattr(rows, name)), else_=0)).label(name)
        for name in ("finished", "counted")
    ]


def _sums(settling: ColumnElement[bool]) -> list[Any]:
    columns = tables.Round
    is_skip = columns.outcome == "skipped"
    added = (
        "working_s", "collecting_s", "up_bytes", "down_bytes", "control_bytes", "clients", "repairs",
    )  # fmt: skip
    return [
        func.min(columns.round).label("first"),
        func.max(columns.round).label("last"),
        func.count().label("rounds"),
        *_settled(columns, settling),
        *(func.sum(getattr(columns, name)).label(name) for name in added),
        *(
            func.sum(case((columns.outcome == outcome, 1), else_=0)).label(outcome)
            for outcome in ("synced", "approximate", "skipped")
        ),
        func.sum(case((is_skip, columns.up_bytes + columns.control_bytes), else_=0)).label("skipped_bytes"),
        func.sum(case((is_skip, columns.clients), else_=0)).label("skipped_clients"),
        func.avg(columns.loss).label("mean_loss"),
    ]


def _stretch(line: RowMapping, metrics: Mapping[str, float]) -> Stretch:
    sums = {name: value for name, value in line.items() if name not in _LEFT_OUT}
    numbers: dict[str, Any] = {
        name: value if name.endswith("_s") else int(value) for name, value in sums.items()
    }
    return Stretch(
        first=line["first"],
        last=line["last"],
        loss=line["mean_loss"],
        metrics=MappingProxyType(metrics),
        **numbers,
    )


def _lately(line: RowMapping) -> Lately:
    counts: dict[str, Any] = {
        name: int(line[name])  # PostgreSQL sums integers as decimals
        for name in (
            "rounds", "finished", "counted", "steps", "up_bytes", "down_bytes", "control_bytes", "failures",
            "refused",
        )
    }  # fmt: skip
    return Lately(client=line["key"], busy_s=line["busy_s"], **counts)
