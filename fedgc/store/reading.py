"""Questions about what happened: runs, rounds, clients, decisions, audit."""

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, func, select

from fedgc.errors import Unusable, nearest
from fedgc.history import ClientRow, PastRound, RoundRow
from fedgc.store import tables
from fedgc.store.records import Audited, Decided
from fedgc.store.tables import Audit, ClientRound, Decision
from fedgc.store.views import Client, Round, Run

LATEST: Final = "latest"
_WITH_SUM: Final = ("synced", "approximate")
_CLIENT_ROW: Final = (
    "finished", "counted", "steps", "busy_s", "step_s", "spread_s", "upload_s", "download_s", "up_bytes",
    "down_bytes", "control_bytes", "refused",
)  # fmt: skip
_ROUND_ROW: Final = (
    "round", "version", "started", "working_s", "collecting_s", "outcome", "chunks", "covered", "replicas",
    "blocks", "needed", "amplification", "error", "loss", "samples", "skips", "takes", "pruned", "repairs",
    "reason", "known_samples", "counted_samples", "left_out",
)  # fmt: skip


def runs(connection: Connection, limit: int) -> tuple[Run, ...]:
    """Return the newest runs, newest first."""
    chosen = _runs().order_by(tables.Run.started.desc(), tables.Run.id.desc()).limit(limit)
    return tuple(_run(line) for line in connection.execute(chosen).mappings())


def run(connection: Connection, key: str) -> Run:
    """Return the run of that name, or the newest for "latest"."""
    chosen = _runs().where(tables.Run.id == run_id(connection, key))
    return _run(connection.execute(chosen).mappings().one())


def rounds(connection: Connection, key: str, after: int, limit: int) -> tuple[Round, ...]:
    """Return rounds of a run in their order, beginning behind `after`."""
    chosen = select(tables.Round.__table__).where(
        tables.Round.run_id == run_id(connection, key), tables.Round.round > after
    )
    lines = connection.execute(chosen.order_by(tables.Round.round).limit(limit)).mappings()
    return tuple(_round(line) for line in lines)


def client_rows(connection: Connection, key: str, round_number: int) -> tuple[ClientRow, ...]:
    """Return the client rows of a round; none where they were folded."""
    chosen = client_rows_where(
        tables.Round.run_id == run_id(connection, key), tables.Round.round == round_number
    )
    lines = connection.execute(chosen.order_by(ClientRound.client_id)).mappings()
    return tuple(client_row(line) for line in lines)


def told(connection: Connection, task_id: int | None, limit: int) -> tuple[PastRound, ...]:
    """Return the last rounds of a task that gave a sum, of whatever runs, with their client rows."""
    chosen = (
        select(tables.Round.__table__, tables.Run.key.label("run"))
        .join(tables.Run, tables.Run.id == tables.Round.run_id)
        .where(tables.Run.task_id == task_id, tables.Round.outcome.in_(_WITH_SUM))
        .order_by(tables.Round.id.desc())
        .limit(limit)
    )
    lines = connection.execute(chosen).mappings().all()[::-1]
    rows = client_rows_where(ClientRound.round_id.in_([line["id"] for line in lines]))
    by_round: dict[int, list[ClientRow]] = {line["id"]: [] for line in lines}
    for each in connection.execute(rows.order_by(ClientRound.client_id)).mappings():
        by_round[each["round_id"]].append(client_row(each))
    return tuple(
        PastRound(line["run"], replace(_round(line).row, clients=tuple(by_round[line["id"]])))
        for line in lines
    )


def client_history(
    connection: Connection, key: str, client: str, after: int
) -> tuple[tuple[int, ClientRow], ...]:
    """Return (round, row) of one client in a run, beginning behind `after`."""
    chosen = client_rows_where(
        *(tables.Round.run_id == run_id(connection, key), tables.Round.round > after),
        tables.Client.key == client,
    )
    lines = connection.execute(chosen.order_by(tables.Round.round)).mappings()
    return tuple((line["round"], client_row(line)) for line in lines)


def clients(connection: Connection) -> tuple[Client, ...]:
    """Return every client, as first seen."""
    lines = connection.execute(select(tables.Client.__table__).order_by(tables.Client.id)).mappings()
    names = ("key", "name", "site", "link", "first_seen", "last_seen")
    return tuple(Client(*(line[name] for name in names)) for line in lines)


def decisions(connection: Connection, key: str, after: int, limit: int) -> tuple[Decided, ...]:
    """Return the last that was decided in a run behind round `after`, in the order it was told."""
    at = run(connection, key).run
    chosen = select(Decision.__table__).where(
        Decision.run_id == run_id(connection, at), Decision.round > after
    )
    return tuple(
        Decided(line["at"], at, line["round"], line["what"], _mapping(line["basis"]), line["reason"])
        for line in connection.execute(chosen.order_by(Decision.id.desc()).limit(limit))
        .mappings()
        .all()[::-1]
    )


def audited(connection: Connection, key: str | None, limit: int) -> tuple[Audited, ...]:
    """Return the last of the audit, oldest first; of one run, or of all (None)."""
    chosen = select(Audit.__table__).order_by(Audit.id.desc()).limit(limit)
    if key is not None:
        chosen = chosen.where(Audit.run == run(connection, key).run)
    lines = connection.execute(chosen).mappings().all()[::-1]
    return tuple(Audited(line["at"], line["kind"], line["who"], line["what"], line["run"]) for line in lines)


def run_id(connection: Connection, key: str) -> int:
    """Return the number of the run of that name, or of the newest for "latest"."""
    named = select(tables.Run.id).where(tables.Run.key == key)
    newest = select(tables.Run.id).order_by(tables.Run.started.desc(), tables.Run.id.desc()).limit(1)
    found = connection.scalar(newest if key == LATEST else named)
    if found is None:
        raise _no_run(connection, key)
    return found


def _no_run(connection: Connection, key: str) -> Unusable:
    known = connection.scalars(select(tables.Run.key).order_by(tables.Run.id.desc()).limit(100)).all()
    if not known:
        return Unusable("store: saw no run yet, needed one")
    return Unusable(f"store: saw no run {key!r}, needed one that is there{nearest(key, known)}")


def _runs() -> Select[Any]:
    of_run = tables.Round.run_id == tables.Run.id
    counts = (
        select(func.count(tables.Round.id)).where(of_run).scalar_subquery().label("rounds"),
        select(func.max(tables.Round.round)).where(of_run).scalar_subquery().label("last_round"),
    )
    columns = (tables.Run.__table__, tables.Task.name.label("task"))
    return select(*columns, *counts).join(tables.Task, tables.Task.id == tables.Run.task_id)


def _run(line: RowMapping) -> Run:
    return Run(
        run=line["key"],
        settings=_mapping(line["settings"]),
        present=_mapping(line["present"]),
        heard=line["present_at"],
        **{
            name: line[name]
            for name in ("task", "state", "reason", "started", "ended", "rounds", "last_round")
        },
    )


def _round(line: RowMapping) -> Round:
    metrics = metrics_of(json.loads(line["metrics"]))
    row = RoundRow(
        **{name: line[name] for name in _ROUND_ROW},
        short=tuple(json.loads(line["short"])),
        metrics=MappingProxyType(metrics),
    )
    totals = ("clients", "finished", "counted", "up_bytes", "down_bytes", "control_bytes")
    return Round(row, *(line[name] for name in totals))


def metrics_of(words: Mapping[str, float | None]) -> dict[str, float]:
    """Return metrics as they were measured: what JSON cannot say was not a number."""
    return {name: float("nan") if value is None else value for name, value in words.items()}


def client_rows_where(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Return the question for client rows with the number of their round, in no order yet."""
    columns = (ClientRound.__table__, tables.Client.key.label("client"), tables.Round.round)
    of_round = tables.Round.id == ClientRound.round_id
    return select(*columns).join(tables.Client).join(tables.Round, of_round).where(*conditions)


def client_row(line: RowMapping) -> ClientRow:
    """Return the row that a line of that question holds."""
    failure, link = line["failure"] or "", line["link"] or ""
    numbers: dict[str, Any] = {name: line[name] for name in _CLIENT_ROW}
    return ClientRow(line["client"], **numbers, failure=failure, link=link)


def _mapping(text: str) -> Mapping[str, Any]:
    return MappingProxyType(json.loads(text))
