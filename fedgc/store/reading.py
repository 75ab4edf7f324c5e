"""Queries on the history: runs, rounds, clients, decisions, audit."""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    ScalarSelect,
    Select,
    exists,
    func,
    select,
)
from sqlalchemy.orm import aliased

from fedgc.errors import Unusable, nearest
from fedgc.history import BestModel, ClientRow, PastRound, RoundRow, Score
from fedgc.messages import SUMMED
from fedgc.store import checkpoint, tables
from fedgc.store.columns import counts_in, mapping_in, metrics_in
from fedgc.store.engine import runs_folder
from fedgc.store.records import Audited, Decided
from fedgc.store.tables import Audit, ClientRound, Decision
from fedgc.store.views import Client, Round, Run

LATEST: Final = "latest"
SCORED_LATELY: Final = 64  # rounds before the newest in which the newest figures of a client are looked for
PLAN: Final = "plan"  # the decision for a plan
BEST: Final = "best"  # the decision that a model is the best so far
HOURS: Final = "hours"  # when a client may train
RESTORE: Final = "restore"  # the decision to go on from an earlier model
LOST: Final = "but no run of this name in the store, needed a backup of the store that has it"
USED: Final = "chunks"  # chunks of site data that a run has begun to use
_WITH_SUM: Final = SUMMED
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
    chosen = _runs().order_by(tables.Run.id.desc()).limit(limit)
    return tuple(_run(line) for line in connection.execute(chosen).mappings())


def run(connection: Connection, key: str) -> Run:
    """Return the run with this name, or the newest for "latest"."""
    chosen = _runs().where(tables.Run.id == run_id(connection, key))
    return _run(connection.execute(chosen).mappings().one())


def rounds(connection: Connection, key: str, after: int, limit: int) -> tuple[Round, ...]:
    """Return rounds of a run in order, after round `after`."""
    chosen = select(tables.Round.__table__).where(
        tables.Round.run_id == run_id(connection, key), tables.Round.round > after
    )
    lines = connection.execute(chosen.order_by(tables.Round.round).limit(limit)).mappings()
    return tuple(_round(line) for line in lines)


def client_rows(connection: Connection, key: str, round_number: int) -> tuple[ClientRow, ...]:
    """Return the client rows of a round; empty if they were folded."""
    chosen = client_rows_where(
        tables.Round.run_id == run_id(connection, key), tables.Round.round == round_number
    )
    lines = connection.execute(chosen.order_by(ClientRound.client_id)).mappings()
    return tuple(client_row(line) for line in lines)


def recent_rounds(connection: Connection, task_id: int | None, limit: int) -> tuple[PastRound, ...]:
    """Return the last rounds of a task that gave a sum, of all runs, with their client rows."""
    chosen = (
        select(tables.Round.__table__, tables.Run.key.label("run"), _plan_of(tables.Round).label("plan"))
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
        PastRound(
            line["run"],
            replace(_round(line).row, clients=tuple(by_round[line["id"]])),
            *(_time_in(line["plan"], name) for name in ("replay_s", "predicted_s")),
        )
        for line in lines
    )


def _plan_of(made: type[tables.Round]) -> ScalarSelect[str]:
    """Return the basis of the plan of a round; none after a skipped round, which leaves it less to do."""
    before = aliased(tables.Round)
    earlier = select(before.id).where(before.run_id == made.run_id, before.round == made.round - 1)
    skipped = earlier.where(before.outcome == "skipped").correlate(made).exists()
    return (
        select(Decision.basis)
        .where(Decision.run_id == made.run_id, Decision.what == PLAN, Decision.round <= made.round, ~skipped)
        .order_by(Decision.id.desc())
        .limit(1)
        .correlate(made)
        .scalar_subquery()
    )


def _time_in(basis: str | None, name: str) -> float | None:
    """Return a time that a plan has predicted, if it has."""
    seconds = mapping_in(basis or "").get(name)
    if isinstance(seconds, int | float) and math.isfinite(seconds) and seconds > 0:
        return float(seconds)
    return None


def client_history(
    connection: Connection, key: str, client: str, after: int
) -> tuple[tuple[int, ClientRow], ...]:
    """Return (round, row) of one client in a run, after round `after`."""
    chosen = client_rows_where(
        *(tables.Round.run_id == run_id(connection, key), tables.Round.round > after),
        tables.Client.key == client,
    )
    lines = connection.execute(chosen.order_by(tables.Round.round)).mappings()
    return tuple((line["round"], client_row(line)) for line in lines)


def clients(connection: Connection) -> tuple[Client, ...]:
    """Return every client, in the order first seen."""
    lines = connection.execute(select(tables.Client.__table__).order_by(tables.Client.id)).mappings()
    names = ("key", "name", "site", "link", "first_seen", "last_seen")
    return tuple(Client(*(line[name] for name in names)) for line in lines)


def took_part(connection: Connection, key: str) -> frozenset[str]:
    """Return the clients with a row in a round of this run, folded or not."""
    at, rows, folded = run_id(connection, key), tables.ClientRound, tables.Summary
    rounds = select(tables.Round.id).where(tables.Round.run_id == at)
    present = select(rows.client_id).where(rows.round_id.in_(rounds))
    before = select(folded.client_id).where(folded.run_id == at)
    ids = tables.Client.id.in_(present) | tables.Client.id.in_(before)
    return frozenset(connection.scalars(select(tables.Client.key).where(ids)))


def scores(connection: Connection, key: str) -> tuple[Score, ...]:
    """Return the figures of every client for the models of all rounds."""
    return _scores(connection, tables.Score.run_id == run_id(connection, key))


def last_scores(connection: Connection, key: str) -> tuple[Score, ...]:
    """Return the newest figures of every client, of those for the newest models of a run."""
    at = run_id(connection, key)
    last = connection.scalar(select(func.max(tables.Score.round)).where(tables.Score.run_id == at))
    if last is None:
        return ()
    lately = (tables.Score.run_id == at, tables.Score.round > last - SCORED_LATELY)
    newest = (
        select(tables.Score.client_id, func.max(tables.Score.round).label("round"))
        .where(*lately)
        .group_by(tables.Score.client_id)
        .subquery()
    )
    same = (newest.c.client_id == tables.Score.client_id) & (newest.c.round == tables.Score.round)
    return _scores(connection, *lately, exists().where(same).correlate(tables.Score))


def _scores(connection: Connection, *conditions: ColumnElement[bool]) -> tuple[Score, ...]:
    columns = (tables.Score.__table__, tables.Client.key.label("client"))
    chosen = select(*columns).join(tables.Client, tables.Client.id == tables.Score.client_id)
    lines = connection.execute(
        chosen.where(*conditions).order_by(tables.Score.round, tables.Score.client_id)
    ).mappings()
    return tuple(
        Score(line["round"], line["client"], line["samples"], metrics_in(line["metrics"])) for line in lines
    )


def best(connection: Connection, key: str) -> BestModel | None:
    """Return the best model of a run so far, if it is chosen by a figure."""
    chosen = (
        select(Decision.basis)
        .where(Decision.run_id == run_id(connection, key), Decision.what == BEST)
        .order_by(Decision.id.desc())
        .limit(1)
    )
    basis = connection.scalar(chosen)
    try:
        return BestModel(**mapping_in(basis)) if basis is not None else None
    except TypeError:  # a damaged row
        return None


def decisions(connection: Connection, key: str, limit: int, what: str | None = None) -> tuple[Decided, ...]:
    """Return the last decisions of a run, oldest first; of one kind, or of all."""
    at = run(connection, key).run
    chosen = select(Decision.__table__).where(Decision.run_id == run_id(connection, at))
    if what is not None:
        chosen = chosen.where(Decision.what == what)
    return tuple(
        Decided(line["at"], at, line["round"], line["what"], mapping_in(line["basis"]), line["reason"])
        for line in connection.execute(chosen.order_by(Decision.id.desc()).limit(limit))
        .mappings()
        .all()[::-1]
    )


def used_chunks(connection: Connection) -> Mapping[str, frozenset[str]]:
    """Return the chunks of site data that each run has used."""
    chosen = select(tables.Run.key, Decision.basis).join(tables.Run, tables.Run.id == Decision.run_id)
    found: dict[str, frozenset[str]] = {}
    for key, basis in connection.execute(chosen.where(Decision.what == USED)):
        found[key] = found.get(key, frozenset()) | frozenset(map(str, mapping_in(basis).get(USED, ())))
    return found


def audited(connection: Connection, key: str | None, limit: int) -> tuple[Audited, ...]:
    """Return the last audit entries, oldest first; of one run, or of all (None)."""
    chosen = select(Audit.__table__).order_by(Audit.id.desc()).limit(limit)
    if key is not None:
        chosen = chosen.where(Audit.run == run(connection, key).run)
    lines = connection.execute(chosen).mappings().all()[::-1]
    return tuple(Audited(line["at"], line["kind"], line["who"], line["what"], line["run"]) for line in lines)


def run_id(connection: Connection, key: str) -> int:
    """Return the id of the run with this name, or of the newest for "latest"."""
    named = select(tables.Run.id).where(tables.Run.key == key)
    newest = select(tables.Run.id).order_by(tables.Run.id.desc()).limit(1)  # clocks may be set back
    found = connection.scalar(newest if key == LATEST else named)
    if found is None:
        raise _no_run(connection, key)
    return found


def _no_run(connection: Connection, key: str) -> Unusable:
    kept = runs_folder("", os.environ) / key
    with suppress(OSError, ValueError):  # no name of a folder
        if checkpoint.versions(kept):
            return Unusable(f"run {key}: saw its checkpoints in {kept}, {LOST}")
    known = connection.scalars(select(tables.Run.key).order_by(tables.Run.id.desc()).limit(100)).all()
    if not known:
        return Unusable("store: saw no run yet, needed one")
    return Unusable(f"store: saw no run {key!r}, needed one that is there{nearest(key, known)}")


def _runs() -> Select[Any]:
    of_run = tables.Round.run_id == tables.Run.id
    counts = (
        select(func.count(tables.Round.id)).where(of_run).scalar_subquery().label("rounds"),
        select(func.max(tables.Round.round)).where(of_run).scalar_subquery().label("last_round"),
        select(func.count(tables.Round.id))
        .where(of_run, tables.Round.outcome.in_(SUMMED))
        .scalar_subquery()
        .label("models"),
    )
    columns = (tables.Run.__table__, tables.Task.name.label("task"))
    return select(*columns, *counts).join(tables.Task, tables.Task.id == tables.Run.task_id)


def _run(line: RowMapping) -> Run:
    return Run(
        run=line["key"],
        settings=mapping_in(line["settings"]),
        present=mapping_in(line["present"]),
        heard=line["present_at"],
        initial_metrics=metrics_in(line["initial_metrics"]),
        **{
            name: line[name]
            for name in ("task", "state", "reason", "started", "ended", "rounds", "last_round", "models")
        },
    )


def _round(line: RowMapping) -> Round:
    metrics = metrics_in(line["metrics"])
    row = RoundRow(
        **{name: line[name] for name in _ROUND_ROW},
        short=counts_in(line["short"]),
        metrics=MappingProxyType(metrics),
    )
    totals = ("clients", "finished", "counted", "up_bytes", "down_bytes", "control_bytes")
    return Round(row, *(line[name] for name in totals))


def client_rows_where(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Return the query for client rows with the number of their round, unordered."""
    columns = (ClientRound.__table__, tables.Client.key.label("client"), tables.Round.round)
    of_round = tables.Round.id == ClientRound.round_id
    return select(*columns).join(tables.Client).join(tables.Round, of_round).where(*conditions)


def client_row(line: RowMapping) -> ClientRow:
    """Return the row in one result line of that query."""
    failure, link = line["failure"] or "", line["link"] or ""
    numbers: dict[str, Any] = {name: line[name] for name in _CLIENT_ROW}
    return ClientRow(line["client"], **numbers, failure=failure, link=link)
