"""Writing records inside a given transaction."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, exists, func, insert, select, update

from fedgc.errors import BadMessage
from fedgc.store import records, tables
from fedgc.store.append import append, client_ids, metrics_text
from fedgc.store.columns import metrics_in
from fedgc.store.plausible import number, text, whole
from fedgc.store.records import Record

LONGEST_JSON: Final = 1_000_000  # the state of a thousand clients takes a tenth of it
_WORDS: Final = ("name", "site", "link")
_SEEN: Final = (
    update(tables.Client)
    .where(tables.Client.id == bindparam("at"))
    .values(
        last_seen=bindparam("now"),
        **{
            word: func.coalesce(func.nullif(bindparam(f"new_{word}"), ""), getattr(tables.Client, word))
            for word in _WORDS
        },
    )
)


def write(connection: Connection, entries: Iterable[tuple[Record, str | None]]) -> None:
    """Write records in order; leave out those whose stamp is already stored."""
    for kind, group in groupby(entries, lambda entry: type(entry[0])):
        if kind is records.Seen:
            _seen(connection, [record for record, _ in group if isinstance(record, records.Seen)])
        elif kind is records.Audited:
            _audited(connection, [each for each in group if isinstance(each[0], records.Audited)])
        else:
            for record, stamp in group:
                _write_one(connection, record, stamp)


def _write_one(connection: Connection, record: Record, stamp: str | None) -> None:
    match record:
        case records.Begun():
            _begin(connection, record, stamp)
        case records.Appended():
            append(connection, record)
        case records.Evaluated() | records.Scored():
            _measured(connection, record)
        case records.Decided():
            _decided(connection, record, stamp)
        case records.Present() | records.Ended():
            _change_run(connection, record)


def _begin(connection: Connection, record: records.Begun, stamp: str | None) -> None:
    settings = _settings(connection, record.settings)
    fresh = {"state": "running", "reason": "", "ended": None, "present": "{}", "present_at": record.now}
    of_run = tables.Run.key == record.run
    before = connection.execute(select(tables.Run.state, tables.Run.started).where(of_run)).one_or_none()
    if not connection.execute(update(tables.Run).where(of_run).values(**settings, **fresh)).rowcount:
        begun = {"key": record.run, "started": record.now}
        connection.execute(insert(tables.Run), {**begun, **settings, **fresh})
    if before is not None and before.started != record.now:  # the same record may come twice
        _resumed(connection, record, stamp, crashed=before.state == "running")


def _settings(connection: Connection, settings: Mapping[str, records.Plain]) -> dict[str, object]:
    """Return the values of a run that its settings give."""
    task = text(records.task_in(settings))
    task_id = connection.scalar(select(tables.Task.id).where(tables.Task.name == task))
    if task_id is None:
        made = insert(tables.Task).values(name=task).returning(tables.Task.id)
        task_id = connection.execute(made).scalar_one()
    return {"settings": _json(settings), "task_id": task_id}


def _resumed(connection: Connection, record: records.Begun, stamp: str | None, *, crashed: bool) -> None:
    """Record that a run is resumed, and a crash if its server did not record its end."""
    crash = {"crash": "the server crashed"} if crashed else {}
    others = f" with other settings: {record.changes}" if record.changes else ""
    for kind, what in {**crash, "resumed": f"the run goes on from its last checkpoint{others}"}.items():
        audited = records.Audited(record.now, kind, "server", what, record.run)
        _audited(connection, [(audited, stamp and f"{stamp}-{kind}")])


def _run_id(connection: Connection, key: str) -> int:
    run_id = connection.scalar(select(tables.Run.id).where(tables.Run.key == key))
    if run_id is None:
        raise BadMessage(f"store: saw run {key!r}, needed one that has begun")
    return run_id


def _change_run(connection: Connection, record: records.Present | records.Ended) -> None:
    if isinstance(record, records.Present):
        values: dict[str, object] = {"present": _json(record.summary)}
    else:
        words = {"state": text(record.state), "reason": text(record.reason, 1000)}
        values = {**words, "ended": record.now}
        if record.settings:
            values |= _settings(connection, record.settings)
    at = tables.Run.id == _run_id(connection, record.run)
    connection.execute(update(tables.Run).where(at).values(present_at=record.now, **values))


def _measured(connection: Connection, record: records.Evaluated | records.Scored) -> None:
    if isinstance(record, records.Scored):
        _scored(connection, record)
    else:
        _evaluated(connection, record)


def _evaluated(connection: Connection, record: records.Evaluated) -> None:
    run_id = _run_id(connection, record.run)
    of_run = tables.Run.id == run_id
    at = (tables.Round.run_id == run_id, tables.Round.round == record.round)
    known = connection.scalar(select(tables.Round.metrics).where(*at))
    of_initial_model = known is None and record.round == 0
    if of_initial_model:
        known = connection.scalar(select(tables.Run.initial_metrics).where(of_run))
    if known is None:
        raise BadMessage(f"store: saw metrics of round {record.round}, needed one that was appended")
    joined = metrics_text({**metrics_in(known), **record.metrics})
    if of_initial_model:
        connection.execute(update(tables.Run).where(of_run).values(initial_metrics=joined))
    else:
        connection.execute(update(tables.Round).where(*at).values(metrics=joined))


def _scored(connection: Connection, record: records.Scored) -> None:
    key = text(record.client)
    client_id = client_ids(connection, [key], record.now)[key]
    at = {"run_id": _run_id(connection, record.run), "round": record.round, "client_id": client_id}
    same = (getattr(tables.Score, name) == value for name, value in at.items())
    connection.execute(delete(tables.Score).where(*same))
    says = {"samples": whole(record.samples), "metrics": metrics_text(record.metrics)}
    connection.execute(insert(tables.Score), {**at, **says})


def _seen(connection: Connection, many: Sequence[records.Seen]) -> None:
    """Write what clients are called now; an empty word changes nothing."""
    keys = [text(record.client) for record in many]
    ids = client_ids(connection, dict.fromkeys(keys), many[0].now)
    rows = [
        {"at": ids[key], "now": record.now, **{f"new_{word}": text(getattr(record, word)) for word in _WORDS}}
        for key, record in zip(keys, many, strict=True)
    ]
    connection.execute(_SEEN, rows)


def _decided(connection: Connection, record: records.Decided, stamp: str | None) -> None:
    if stamp is not None and connection.scalar(select(exists().where(tables.Decision.stamp == stamp))):
        return
    words = {"what": text(record.what), "reason": text(record.reason, 1000), "basis": _json(record.basis)}
    at = {"run_id": _run_id(connection, record.run), "round": record.round, "at": record.now}
    connection.execute(insert(tables.Decision), {"stamp": stamp, **at, **words})


def _audited(connection: Connection, many: Sequence[tuple[Record, str | None]]) -> None:
    stamps = [stamp for _, stamp in many if stamp is not None]
    known = set(connection.scalars(select(tables.Audit.stamp).where(tables.Audit.stamp.in_(stamps))))
    rows = [
        {
            "stamp": stamp,
            "at": record.now,
            **{name: text(getattr(record, name), 1000) for name in ("run", "kind", "who", "what")},
        }
        for record, stamp in many
        if stamp not in known
    ]
    if rows:
        connection.execute(insert(tables.Audit), rows)


def _json(value: Mapping[str, Any]) -> str:
    """Return a mapping as JSON that every reader accepts: no NaN, no NUL."""
    try:
        words = json.dumps(value, allow_nan=False, default=_plain)
    except (TypeError, ValueError):
        words = json.dumps(_sound(value), default=str)
    if len(words) > LONGEST_JSON:
        raise BadMessage(f"store: saw {len(words)} characters of JSON, needed at most {LONGEST_JSON}")
    return words


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _sound(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _sound(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_sound(each) for each in value]
    return number(value) if isinstance(value, float) else value
