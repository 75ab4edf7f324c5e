"""Writing a round: its row, its client rows, and their changes to the totals, in one transaction.

A resumed run repeats the round in which the server died, or, from an earlier model, several. Its first row
removes those of all rounds that it abandons, and subtracts their amounts from the totals. A writer that lost
the database's answer writes the same round again: it replaces its first row, and the ring advances only for
clients that were not in it.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import Connection, case, delete, insert, select, update

from fedgc.errors import BadMessage
from fedgc.history import ClientRow, RoundRow
from fedgc.store.plausible import bound_s, checked, number, text, whole
from fedgc.store.records import Appended
from fedgc.store.tables import WINDOW, Client, ClientRound, Recent, Round, Run, Score, Track

_COPIED = (  # the columns of a round that are copied from RoundRow
    "round", "version", "started", "working_s", "collecting_s", "outcome", "chunks", "covered", "replicas",
    "blocks", "needed", "skips", "takes", "pruned", "repairs",
)  # fmt: skip
_CLAIMED = ("samples", "known_samples", "counted_samples")
_MEASURED = ("amplification", "error", "loss")
_SUMMED = ("finished", "counted", "up_bytes", "down_bytes", "control_bytes")
_CLIENT = (
    "finished", "counted", "steps", "busy_s", "step_s", "spread_s", "upload_s", "download_s", "up_bytes",
    "down_bytes", "control_bytes", "refused",
)  # fmt: skip


_Item = TypeVar("_Item")
_BATCH: Final = 10_000  # keys in one query; databases limit the number of its parameters


class _OfRun(NamedTuple):
    id: int
    task_id: int
    started: float


def append(connection: Connection, record: Appended) -> None:
    """Write a round of a run that exists."""
    run = _run(connection, record.run)
    elapsed_s = bound_s(record.row, record.now - run.started)
    rows = {
        text(row.client): checked(row, elapsed_s)  # a client counts once; its last row holds
        for row in record.row.clients
    }
    ids = client_ids(connection, rows, record.now)
    _forget_abandoned(connection, run, record.row)
    round_id, before = _round(connection, run, record.row, [row for row, _ in rows.values()])
    values = [_client_values(round_id, ids[key], row, struck) for key, (row, struck) in rows.items()]
    if values:
        connection.execute(insert(ClientRound), values)
    of_round = select(ClientRound.client_id).where(ClientRound.round_id == round_id)
    connection.execute(update(Client).where(Client.id.in_(of_round)).values(last_seen=record.now))
    turns = _turns(connection, run.task_id, set(ids.values()) - before)
    _count(connection, run.task_id, round_id, 1)
    _point(connection, run.task_id, round_id, turns)


def _run(connection: Connection, key: str) -> _OfRun:
    run = connection.execute(select(Run.id, Run.task_id, Run.started).where(Run.key == key)).one_or_none()
    if run is None:
        raise BadMessage(f"store: saw a round of run {key!r}, needed one that has begun")
    return _OfRun._make(run)


def client_ids(connection: Connection, keys: Iterable[str], now: float) -> dict[str, int]:
    """Return the ids of clients; insert new ones."""
    wanted = list(keys)
    ids = _ids(connection, wanted)
    new = [key for key in wanted if key not in ids]
    if new:
        unknown = {"site": "", "link": "", "first_seen": now, "last_seen": now}
        connection.execute(insert(Client), [{"key": key, "name": key, **unknown} for key in new])
        ids |= _ids(connection, new)
    return ids


def _ids(connection: Connection, keys: Sequence[str]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for batch in _batches(keys):
        found = connection.execute(select(Client.key, Client.id).where(Client.key.in_(batch)))
        ids.update(dict(found.all()))
    return ids


def _round(
    connection: Connection, run: _OfRun, row: RoundRow, clients: list[ClientRow]
) -> tuple[int, set[int]]:
    """Write the round's row; return its id, and the clients of an earlier row that it replaces."""
    values = {"run_id": run.id, **_round_values(row, clients)}
    at = select(Round.id).where(Round.run_id == run.id, Round.round == row.round)
    round_id = connection.scalar(at)
    if round_id is None:
        return connection.execute(insert(Round).values(values).returning(Round.id)).scalar_one(), set()
    of_round = ClientRound.round_id == round_id
    before = set(connection.scalars(select(ClientRound.client_id).where(of_round)))
    _count(connection, run.task_id, round_id, -1)
    connection.execute(delete(ClientRound).where(of_round))
    connection.execute(delete(Score).where(Score.run_id == run.id, Score.round == row.round))
    connection.execute(update(Round).where(Round.id == round_id).values(values))
    return round_id, before


def _round_values(row: RoundRow, clients: list[ClientRow]) -> dict[str, object]:
    return {
        **{name: getattr(row, name) for name in _COPIED},
        **{name: whole(getattr(row, name)) for name in _CLAIMED},
        **{name: number(getattr(row, name)) for name in _MEASURED},
        **{name: sum(getattr(client, name) for client in clients) for name in _SUMMED},
        "short": json.dumps(row.short),
        "metrics": metrics_text(row.metrics),
        "reason": text(row.reason, 1000),
        "left_out": text(row.left_out, 1000),
        "clients": len(clients),
    }


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return metrics as JSON, with null for NaN and infinities."""
    return json.dumps({text(name): number(value) for name, value in metrics.items()})


def _client_values(round_id: int, client_id: int, row: ClientRow, struck: int) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in _CLIENT}
    named = {"failure": row.failure or None, "link": row.link or None}
    return {"round_id": round_id, "client_id": client_id, **values, **named, "implausible": struck}


def _forget_abandoned(connection: Connection, run: _OfRun, row: RoundRow) -> None:
    """Remove this and later rounds of a run that began before this row, and their share of the totals."""
    before = (Round.run_id == run.id, Round.round >= row.round, Round.started < row.started)
    chosen = select(Round.id).where(*before)
    ids = connection.scalars(chosen).all()
    for round_id in ids:
        _count(connection, run.task_id, round_id, -1, rows=-1)
    if ids:
        connection.execute(delete(Recent).where(Recent.round_id.in_(chosen)))
        connection.execute(delete(ClientRound).where(ClientRound.round_id.in_(chosen)))
        connection.execute(delete(Round).where(*before))
        connection.execute(delete(Score).where(Score.run_id == run.id, Score.round >= row.round))


def _count(connection: Connection, task_id: int, round_id: int, sign: int, rows: int = 0) -> None:
    """Add what the clients did in the round to their tracks, or subtract it."""
    failed = ClientRound.failure.is_not(None) | (ClientRound.implausible > 0)
    change = {
        "rows": Track.rows + rows,
        "finished": Track.finished + sign * ClientRound.finished,
        "counted": Track.counted + sign * ClientRound.counted,
        "failures": Track.failures + sign * case((failed, 1), else_=0),
        "implausible": Track.implausible + sign * ClientRound.implausible,
    }
    of_round = (ClientRound.round_id == round_id, ClientRound.client_id == Track.client_id)
    connection.execute(update(Track).where(Track.task_id == task_id, *of_round).values(change))


def _turns(connection: Connection, task_id: int, clients: set[int]) -> Mapping[int, list[int]]:
    """Count one more round for each client; return the clients by their number of earlier rounds."""
    turns = defaultdict(list)
    for batch in _batches(sorted(clients)):
        counted = update(Track).where(Track.task_id == task_id, Track.client_id.in_(batch))
        updated = counted.values(rows=Track.rows + 1).returning(Track.client_id, Track.rows)
        for client, rows in connection.execute(updated).all():
            turns[rows - 1].append(client)
    new = sorted(clients.difference(*turns.values()))
    if new:
        first = {"task_id": task_id, "rows": 1}
        nothing = {"finished": 0, "counted": 0, "failures": 0, "implausible": 0}
        connection.execute(insert(Track), [{"client_id": client, **first, **nothing} for client in new])
        turns[0] = new
    return turns


def _point(connection: Connection, task_id: int, round_id: int, turns: Mapping[int, list[int]]) -> None:
    """Point the next slot of each client's ring to the round."""
    to_round = {"task_id": task_id, "round_id": round_id}
    for rows, clients in turns.items():
        at_slot = {"slot": rows % WINDOW, **to_round}
        same = (Recent.task_id == task_id, Recent.slot == rows % WINDOW)
        for batch in _batches(clients):
            again = update(Recent).where(*same, Recent.client_id.in_(batch)).values(round_id=round_id)
            there = set(connection.scalars(again.returning(Recent.client_id)))
            lines = [{"client_id": client, **at_slot} for client in batch if client not in there]
            if lines:
                connection.execute(insert(Recent), lines)


def _batches(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for first in range(0, len(items), _BATCH):
        yield items[first : first + _BATCH]
