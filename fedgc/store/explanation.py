"""Why a run stands where it stands: `fedgc status --why`, and the page.

The first line is the first cause: of a run that ended, what went wrong first; of one that is running, whom it
waits for. The others say how much of the data is present and was counted, what came of the last round, and
what an operator can do.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fedgc.errors import numbered
from fedgc.history import APP_FAILED, APP_FAILS_NOT, BY_SITE, ClientRow, RoundRow
from fedgc.messages import SUMMED
from fedgc.store.database import Store
from fedgc.store.liveness import (
    ALIVE_S,
    CRASHED,
    SUPERLINK,
    SUPERLINK_ENDED,
    advice_for,
    busy_with,
    lost,
    reason_of,
    state_of,
)
from fedgc.store.records import Audited
from fedgc.store.views import Round, Run

INCOMPLETE: Final = "the run did not complete: "  # the prefix of the reason when the server gave up
NAMED: Final = 5  # clients that a line names
START_TIMEOUT: Final = "timing.start-timeout-s"
ONE_RUN: Final = "a SuperNode serves one run at a time"
BACK: Final = "what it has finished counts once it is back"
LEFT: Final = "has left the run"
LACKS: Final = "until then the model lacks its data"  # local work
NAMED_CLIENT: Final = re.compile(r"(client \S+): (.+)")
NOT_YET: Final = "the server has started, and has recorded nothing yet"
LOOK: Final = "to do: look at the server's machine and its log"


@dataclass(frozen=True, slots=True)
class Awaited:
    """A client that the run waits for."""

    client: str
    name: str
    present: bool
    finished: int  # chunks or local steps of this round
    held: int  # of so many
    last_seen: float | None
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a run stands where it stands; the clients that it waits for, since when and until when.

    Times are seconds since 1970.
    """

    lines: tuple[str, ...]
    awaited: tuple[Awaited, ...] = ()
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """What the store knows of a run."""

    run: Run
    last: Round | None
    rows: tuple[ClientRow, ...]  # of the last round
    names: Mapping[str, str]
    seen: Mapping[str, float]
    now: float
    refusals: tuple[str, ...]  # by the policies of sites, of clients that have not joined since
    failures: tuple[str, ...]  # of the apps of connected clients
    others: tuple[str, ...]  # runs on the same SuperLink

    def name(self, client: str) -> str:
        return self.names.get(client) or client

    @property
    def unit(self) -> str:
        """What amounts of data count: under masks no site tells its samples, and each chunk counts as one."""
        return "chunks" if self.run.settings.get("secrecy") == "masked" else "samples"

    @property
    def left(self) -> frozenset[str]:
        """The clients that have left, or are leaving."""
        return frozenset(str(each["client"]) for each in self.clients if each.get("leaves"))

    @property
    def clients(self) -> Sequence[Mapping[str, Any]]:
        """The clients of the live state."""
        return _live(self.run)


def explain(store: Store, run: Run, now: float) -> Explanation:
    """Return why this run stands where it stands."""
    last = next(iter(store.rounds(run.run, after=(run.last_round or 0) - 1)), None)
    rows = store.client_rows(run.run, last.row.round) if last else ()
    clients = store.clients()
    names = {str(each["client"]): str(each.get("name", "")) for each in _live(run)}
    names |= {each.client: each.name for each in clients}
    audited = store.audited(run.run)
    known = _Known(
        run,
        last,
        rows,
        names,
        {each.client: each.last_seen for each in clients},
        now,
        _refusals(audited, names),
        _failures(audited),
        busy_with(store.runs(), run.run, run.present.get(SUPERLINK), now),
    )
    if state_of(run) != "running":
        lines = (_ended(known), *_data(known), *_last_round(known), *known.refusals, *known.failures)
        return Explanation((*lines, *_resume(known)))
    return _running(known)


def _refusals(audited: Sequence[Audited], names: Mapping[str, str]) -> tuple[str, ...]:
    latest: dict[str, str] = {}
    for each in audited:
        if each.kind == BY_SITE:
            latest[each.who] = each.what
        elif each.kind == "joined":
            # An app that was refused before it began has told the client's name, and not its identity.
            named = f"client {names.get(each.who) or 'without a name'}: "
            ended = [
                who for who, what in latest.items() if who.startswith("node ") and what.startswith(named)
            ]
            for who in (each.who, *ended):
                latest.pop(who, None)
    return tuple(f"refused by its site: {each}" for each in latest.values())


def _failures(audited: Sequence[Audited]) -> tuple[str, ...]:
    """Return the failures of apps that last, with one line for all clients of one failure."""
    latest: dict[str, str] = {}
    for each in audited:
        if each.kind == APP_FAILED:
            latest[each.who] = each.what
        elif each.kind == APP_FAILS_NOT:
            latest.pop(each.who, None)
        elif each.kind == "resumed":  # by another server, to which nodes may have other numbers
            latest.clear()
    whose: dict[str, list[str]] = {}
    for node, what in latest.items():
        client = NAMED_CLIENT.fullmatch(what)
        whose.setdefault(client[2] if client else what, []).append(client[1] if client else node)
    return tuple(f"app failed: {_some(each)}: {what}" for what, each in whose.items())


def _live(run: Run) -> Sequence[Mapping[str, Any]]:
    found = run.present.get("clients", ())
    return [each for each in found if isinstance(each, Mapping) and "client" in each]


# ---- a run that is over


def _ended(known: _Known) -> str:
    """Return how the run ended: the first cause of it, before what followed."""
    run = known.run
    reason = reason_of(run).removeprefix(INCOMPLETE)
    return f"{state_of(run)}: {reason}" if reason else state_of(run)


def _resume(known: _Known) -> Iterator[str]:
    run = known.run
    if state_of(run) == "completed":
        return
    if state_of(run) == CRASHED and (advice := advice_for(run)):
        yield f"to do: {advice}"
    elif run.state == "stopped":
        resume = f"`fedgc run --resume {run.first_start}` goes on"
        goes_on = resume if run.models else "it has no model to go on from"
        act = (
            "see in its log why the SuperLink has ended"
            if run.reason.startswith(SUPERLINK_ENDED)
            else "nothing"
        )
        yield f"to do: {act}; {goes_on}"
    elif run.models:
        yield f"to do: remove the cause, then `fedgc run --resume {run.first_start}` goes on"
    else:
        yield "to do: remove the cause, and start the run again; it has no model to go on from"


# ---- a run under way


def _running(known: _Known) -> Explanation:
    live = known.run.present
    silent = known.now - known.run.heard
    if lost(known.run) is None and abs(silent) > ALIVE_S:
        what = f"no record for {span(silent)}: the server is gone, or cannot reach this store"
        if silent < 0:
            what = f"its last record is {span(-silent)} ahead of this machine's clock: set the clock of one"
        return Explanation((what, *_data(known), *_last_round(known), LOOK))
    if "phase" not in live:
        return Explanation((NOT_YET,))
    awaited = tuple(_awaited(known))
    since, until = _time(live, "since"), _time(live, "until")
    lines = [_waits(known, awaited, since, until), *_data(known), *_last_round(known)]
    lines += [*_idle(known), *_hours(known), *known.refusals, *known.failures]
    return Explanation((*lines, *_to_do(known, awaited, until)), awaited, since, until)


def _awaited(known: _Known) -> Iterator[Awaited]:
    for each in known.clients:
        if each.get("awaited") and not each.get("idle"):
            client = str(each["client"])
            yield Awaited(
                client,
                known.name(client),
                bool(each.get("present")),
                _whole(each, "finished"),
                _whole(each, "held"),
                known.seen.get(client),
                bool(each.get("leaves")),
            )


def _waits(known: _Known, awaited: Sequence[Awaited], since: float | None, until: float | None) -> str:
    live = known.run.present
    rounds = _whole(live, "rounds")
    number = min(_whole(live, "round"), rounds)  # after the last round the run counts on
    if known.last is not None and known.last.row.round == number and not _began_after(known.last.row, since):
        return f"round {number} of {rounds} is over" + ("; the next one begins" if number < rounds else "")
    unit = "steps" if live.get("unit") == "clients" else "chunks"
    phase = str(live.get("phase"))
    head = f"round {number} of {rounds}, {phase}"
    needed = _whole(live, "needed")
    if needed:
        head += f": {numbered(needed, 'more client')} must come"
    lasts = f"{f', for {span(known.now - since)}' if since is not None else ''}"
    limit = f", at most {span(until - known.now)} longer" if until is not None and until > known.now else ""
    if not awaited:
        return f"{head}{lasts}{limit}" + ("" if needed else "; no client is awaited")
    who = _some([_progress_of(each, unit, phase, known.now) for each in awaited])
    return f"{head}{'; known and awaited' if needed else '; awaited'}: {who}{lasts}{limit}"


def _began_after(row: RoundRow, since: float | None) -> bool:
    """Whether the present phase began after this round: a resumed run does its last round again."""
    return since is not None and since > row.started + row.working_s + row.collecting_s


def _progress_of(each: Awaited, unit: str, phase: str, now: float) -> str:
    if not each.present:
        seen = f", last seen {span(now - each.last_seen)} ago" if each.last_seen is not None else ""
        return f"{each.name} (not connected{seen})"
    if each.leaves:
        return f"{each.name} ({LEFT})"
    if phase == "working" and each.held:
        trains = unit == "steps" and not each.finished  # clients report their steps when they are done
        done = f"trains for {each.held}" if trains else f"{each.finished} of {each.held}"
        return f"{each.name} ({done} {unit})"
    return each.name


def _to_do(known: _Known, awaited: Sequence[Awaited], until: float | None) -> Iterator[str]:
    """Return what an operator can do about the awaited clients."""
    live = known.run.present
    absent = _some([each.name for each in awaited if not each.present])
    if _whole(live, "needed"):
        if known.others:
            busy = f"run {_some(known.others)} has the clients ({ONE_RUN})"
            ends = "" if until is None else f"; otherwise this run ends at {_clock(until)} ({START_TIMEOUT})"
            yield f"to do: {busy}: wait for its end, or stop it{ends}"
            return
        ends = "" if until is None else f" by {_clock(until)}, or the run ends ({START_TIMEOUT})"
        more = "clients whose sites allow the run" if known.refusals else "more clients"
        start = f"start {absent or more}"
        if known.failures:
            start = f"remove what makes the apps fail, or {start}"
        idle = not absent and any(_idle(known))
        if idle:
            start += " with data that the run can use"
        explained = absent or idle or known.refusals or known.failures or known.left
        busy = "" if explained else f"; {ONE_RUN}, so clients may be busy with another one"
        gone = f"; {_some(sorted(map(known.name, known.left)))} left" if known.left else ""
        yield f"to do: {start}{ends}{gone}; min-clients says how many a run needs to begin{busy}"
        return
    away = [
        str(each["client"])
        for each in known.clients
        if not each.get("present") and each.get("samples") and not each.get("leaves")
    ]
    if away:
        back = LACKS if live.get("unit") == "clients" else BACK
        yield f"to do: restart {_some([known.name(client) for client in away])}; {back}"
    elif awaited and until is not None and until > known.now:
        yield f"to do: nothing; at {_clock(until)} the round goes on with what is there"
    else:
        yield "to do: nothing"


def _idle(known: _Known) -> Iterator[str]:
    """Return which clients take no part, though they are there, and why."""
    for each in known.clients:
        if each.get("present") and (why := each.get("idle")):
            yield f"takes no part: {known.name(str(each['client']))}: {why}"


def _hours(known: _Known) -> Iterator[str]:
    """Return how long clients may train whose sites have hours."""
    closes = [(known.name(str(each["client"])), _time(each, "closes")) for each in known.clients]
    said = [f"{name} for {span(at - known.now)}" for name, at in closes if at is not None and at > known.now]
    if said:
        yield f"hours: may train longer: {_some(said)}"


# ---- data and the last round


def _data(known: _Known) -> Iterator[str]:
    """Return how much of the data is present, and who is not; what they can load, others may load too."""
    data = known.run.present.get("data")
    if not isinstance(data, Mapping) or not data.get("known_samples"):
        return
    here, every = _whole(data, "present_samples"), _whole(data, "known_samples")
    amounts = [f"{here} of {every} samples"] if known.unit == "samples" else []
    amounts.append(f"{_whole(data, 'present_chunks')} of {_whole(data, 'known_chunks')} chunks")
    absent = [each for each in known.clients if not each.get("present") and each.get("samples")]
    away = _some([f"{known.name(str(each['client']))} (can load {each['samples']})" for each in absent])
    whose = f"; not connected: {away}" if away else ""
    when = "present" if state_of(known.run) == "running" else "present at the end"
    yield f"data {when}: {', '.join(amounts)}{whose}"
    if fetched := _whole(data, "fetched_chunks"):
        size = f"{_whole(data, 'fetched_bytes') / 1e6:.3g} MB"
        yield f"chunks fetched from stores of sites: {fetched}, {size}"


def _last_round(known: _Known) -> Iterator[str]:
    """Return what came of the last round, why, and whose data it lacks."""
    if known.last is None:
        return
    row = known.last.row
    parts = [f"round {row.round} was {row.outcome}"]
    if _sample(known):
        parts.append(f"asked {len(known.rows)} of {len(known.clients)} clients")
    if row.outcome in SUMMED and row.known_samples:
        parts.append(f"counted {row.counted_samples} of {row.known_samples} {known.unit}")
    why = _why_empty(row, known.rows) if row.outcome == "empty" else _why_so(row)
    parts += [why] if why else []
    if row.outcome != "skipped" and (lacking := _some(_uncounted(known))):
        parts.append(f"not counted: {lacking}")
    if row.left_out:
        parts.append(row.left_out)
    yield "; ".join(parts)


def _why_empty(row: RoundRow, rows: Sequence[ClientRow]) -> str:
    """Return why a round has no sum; its own reason says at which limit it ended."""
    if rows and all(each.failure for each in rows):
        return "; ".join(filter(None, ("all its clients failed or were lost", row.reason)))
    return row.reason or "nothing was finished in time, or no update came"


def _why_so(row: RoundRow) -> str:
    if row.outcome == "skipped":
        return f"{row.reason or 'the gate decided so'}; clients continue from where they are"
    if row.outcome == "approximate":
        missing = f"{len(row.short)} of {row.chunks} chunks are not in the sum"
        if not (row.blocks or row.replicas):  # stock clients
            missing = f"{row.chunks - row.covered} of {row.chunks} clients gave no answer that counts"
        return row.reason if row.is_left_out else missing
    return row.reason if row.outcome in ("aborted", "stopped") else ""


def _uncounted(known: _Known) -> list[str]:
    """Return the clients without work in the last sum, and why."""
    samples = {str(each["client"]): each.get("samples") for each in known.clients}
    rows = {row.client: row for row in known.rows}
    whole = known.last is not None and known.last.row.coverage == 1.0  # others have counted the same data
    out = {row.client: row.failure for row in known.rows if not row.counted and (row.failure or not whole)}
    if not whole and not _sample(known):
        absent, left = [client for client in samples if samples[client] and client not in rows], known.left
        out |= {client: LEFT if client in left else "not in this round" for client in absent}
    words = []
    for client, why in out.items():
        size = f"can load {samples[client]} {known.unit}" if samples.get(client) and not whole else ""
        about = "; ".join(filter(None, (size, why)))
        words.append(f"{known.name(client)}{f' ({about})' if about else ''}")
    return words


def _sample(known: _Known) -> int:
    """Return how many clients a round asks; 0: all."""
    return _whole(known.run.settings, "aggregation.clients-per-round")


# ---- words


def _some(words: Sequence[str]) -> str:
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return ", ".join(words[:NAMED]) + more


def _time(live: Mapping[str, Any], name: str) -> float | None:
    found = live.get(name)
    return float(found) if isinstance(found, int | float) and found > 0 else None


def _whole(state: Mapping[str, Any], name: str) -> int:
    """Return a count of the live state; 0 for what another version wrote there."""
    found = state.get(name)
    return found if isinstance(found, int) else 0


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S %Z", time.localtime(at))


def span(seconds: float) -> str:
    """Return a duration in words.

    >>> span(3.2), span(200), span(7300), span(200_000)
    ('3 s', '3 min', '2 h', '2 days')
    """
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"
