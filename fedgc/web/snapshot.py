"""The content of the page as values, read from the store, of bounded size.

A run of ten thousand rounds is drawn from as many stretches as a chart has room for; of a thousand clients
one screen is sent, in the requested order, each with its newest rounds.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from fedgc.config import RunConfig, Value, known
from fedgc.errors import Unusable
from fedgc.history import APP_FAILED, BY_SITE, BestModel, ClientRow
from fedgc.store.database import Store
from fedgc.store.explanation import explain
from fedgc.store.liveness import ALIVE_S, advice_for, reason_of, state_of
from fedgc.store.records import Audited
from fedgc.store.views import Round, Run, Stretch
from fedgc.web import measures
from fedgc.web.fleet import Fleet, Wanted, fleet_of, present_clients, whole
from fedgc.web.plans import PlanMade, model_bytes_of, plans_made
from fedgc.web.savings import Saved, plain_bytes, saved

MOST_STRETCHES: Final = 240
MOST_ROUNDS: Final = 40  # of a client's strip
MOST_CELLS: Final = 20_000  # client rows that one snapshot may sum
SHOWN_BARS: Final = 60  # clients in the timeline of a round
SHOWN_FAULTS: Final = 30
SHOWN_PLANS: Final = 8
SHOWN_RUNS: Final = 30
SHOWN_QUEUE: Final = 30
SHOWN_FINISHED: Final = 5  # of the queue
SHOWN_AUDIT: Final = 30
REFUSED: Final = ("refused", "excluded", BY_SITE)  # kinds of events that a client caused


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure or refusal of a client, or a crash of the server; `round` if it is known."""

    round: int | None
    client: str
    name: str
    failure: str
    refused: int


@dataclass(frozen=True, slots=True)
class OnRecord:
    """An audit entry: a join with its key, or a refusal."""

    at: float
    kind: str
    who: str
    name: str
    what: str


@dataclass(frozen=True, slots=True)
class Series:
    """The run's history by columns: one entry per stretch, means over its rounds."""

    first: tuple[int, ...]
    last: tuple[int, ...]
    loss: tuple[float | None, ...]
    metrics: Mapping[str, tuple[float | None, ...]]
    working_s: tuple[float, ...]
    collecting_s: tuple[float, ...]
    counted: tuple[float, ...]
    discarded: tuple[float, ...]
    up_bytes: tuple[float, ...]
    down_bytes: tuple[float, ...]
    control_bytes: tuple[float, ...]
    plain_bytes: tuple[float, ...] | None
    skipped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of the run."""

    rounds: int
    wanted: int | None
    synced: int
    approximate: int
    skipped: int
    finished: int
    counted: int
    repairs: int
    median_s: float | None
    measure: str | None
    best: BestModel | None
    saved: Saved | None
    model_bytes: int | None
    left_s: float | None  # estimated from the newest rounds of a running run
    coverage: float | None  # share of the run's samples in the newest round that wanted a sum
    left_out: str  # whose data was refused, and why


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run in the list of runs."""

    run: str
    task: str
    state: str
    started: float


@dataclass(frozen=True, slots=True)
class Now:
    """The current round."""

    run: str
    state: str
    reason: str
    started: float
    ended: float | None
    silent_s: float  # without a record, by the clock of the web server; 0 in the time that is usual
    round: int
    rounds: int
    phase: str
    covered: int
    chunks: int
    replicas: int
    clients: int
    present: int
    finished: Mapping[str, int]  # chunks, by displayed client
    why: tuple[str, ...] = ()  # it stands where it stands, as `fedgc status --why` says it


@dataclass(frozen=True, slots=True)
class SettingShown:
    """A setting of the run, and whether it has its default."""

    name: str
    value: Value
    usual: bool


@dataclass(frozen=True, slots=True)
class QueueLine:
    """One run of the queue."""

    entry: int
    run: str
    priority: int
    state: str
    reason: str
    added: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of the page, except for the round in focus."""

    task: str
    work: str  # local or coded
    settings: tuple[SettingShown, ...]
    now: Now
    runs: tuple[RunLine, ...]
    queue: tuple[QueueLine, ...]  # in the order in which they run, then those that are over
    totals: Totals
    series: Series
    fleet: Fleet
    plans: tuple[PlanMade, ...]
    faults: tuple[Fault, ...]
    fault_rounds: int  # the number of newest rounds searched for faults
    record: tuple[OnRecord, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A client in the timeline of one round."""

    client: str
    name: str
    row: ClientRow


@dataclass(frozen=True, slots=True)
class OneRound:
    """One round and each client's work in it; the bars are thinned if there are too many."""

    round: Round
    bars: tuple[Bar, ...]
    folded: bool  # its client rows exist only as sums


def picture(store: Store, wanted: Wanted) -> Snapshot:
    """Return the current content of the page for a run."""
    run = store.run(wanted.run)
    stretches = store.stretches(run.run, MOST_STRETCHES)
    plans = store.decisions(run.run, limit=SHOWN_PLANS, what="plan")
    clients = max(1, stretches[-1].clients // stretches[-1].rounds if stretches else 1)
    window = max(1, min(MOST_ROUNDS, MOST_CELLS // clients))
    newest = store.rounds(run.run, after=(run.last_round or 0) - window)
    looked = min(run.rounds, max(1, MOST_CELLS // clients))
    faults = store.faults(run.run, looked, SHOWN_FAULTS)
    audited = store.audited(run.run, SHOWN_AUDIT)
    fleet = fleet_of(store, run, wanted, newest, plans)
    model_bytes = model_bytes_of(plans)
    names = {each.client: each.name for each in store.clients()}
    last = [each.row for each in reversed(newest)]
    seconds = [row.working_s + row.collecting_s for row in last]
    return Snapshot(
        task=run.task,
        work=str(run.settings.get("work", "")),
        settings=settings_shown(run),
        now=now_of(run, [each.client for each in fleet.lines], explain(store, run, time.time()).lines),
        runs=tuple(
            RunLine(each.run, each.task, state_of(each), each.started) for each in store.runs(SHOWN_RUNS)
        ),
        queue=tuple(
            QueueLine(each.id, each.run, each.priority, each.state, each.reason, each.added)
            for each in store.queue.entries(SHOWN_FINISHED)[:SHOWN_QUEUE]
        ),
        totals=Totals(
            rounds=run.rounds,
            wanted=whole(run.settings.get("rounds")),
            synced=sum(each.synced for each in stretches),
            approximate=sum(each.approximate for each in stretches),
            skipped=sum(each.skipped for each in stretches),
            finished=sum(each.finished for each in stretches),
            counted=sum(each.counted for each in stretches),
            repairs=sum(each.repairs for each in stretches),
            median_s=median(seconds) if seconds else None,
            measure=measures.main(measures.shown(each.metrics for each in stretches)),
            best=store.best(run.run),
            saved=saved(stretches, model_bytes),
            model_bytes=model_bytes,
            left_s=_left_s(run, seconds),
            coverage=next((row.coverage for row in last if row.coverage is not None), None),
            left_out=last[0].left_out if last else "",
        ),
        series=_series(stretches, model_bytes),
        fleet=fleet,
        plans=plans_made(plans, newest, names),
        faults=_faults(faults, audited, names),
        fault_rounds=looked,
        record=tuple(
            OnRecord(each.now, each.kind, each.who, names.get(each.who, ""), each.what)
            for each in reversed(audited)
        ),
    )


def _faults(
    rows: Sequence[tuple[int, ClientRow]], audited: Sequence[Audited], names: Mapping[str, str]
) -> tuple[Fault, ...]:
    """Return failures and refusals of the newest rounds, then crashes and refusals outside rounds."""
    refusals = {each.who: each.what for each in audited if each.kind in REFUSED}
    in_rounds = [
        Fault(
            number,
            row.client,
            names.get(row.client, ""),
            row.failure or (refusals.get(row.client, "") if row.refused else ""),
            row.refused,
        )
        for number, row in rows
    ]
    seen = {each.client for each in in_rounds}
    outside = [
        Fault(None, each.who, names.get(each.who, ""), each.what, int(each.kind in REFUSED))
        for each in reversed(audited)
        if each.kind in ("crash", "excluded", APP_FAILED) or (each.kind == "refused" and each.who not in seen)
    ]
    return tuple([*outside, *in_rounds][:SHOWN_FAULTS])


def settings_shown(run: Run) -> tuple[SettingShown, ...]:
    """Return the run's settings, non-default ones first."""
    defaults = RunConfig().table()
    shown = [
        SettingShown(name, value, usual=value == defaults.get(name))
        for name, value in known(run.settings).items()
    ]
    return tuple(sorted(shown, key=lambda each: each.usual))


def _left_s(run: Run, seconds: Sequence[float]) -> float | None:
    """Estimate the remaining time of a running run that is not silent."""
    rounds = whole(run.settings.get("rounds"))
    if rounds is None or not seconds or state_of(run) != "running" or _silent_s(run):
        return None
    return max(0, rounds - (run.last_round or 0)) * median(seconds)


def _silent_s(run: Run) -> float:
    silent_s = time.time() - run.heard
    return silent_s if run.state == "running" and silent_s >= ALIVE_S else 0.0


def now_of(run: Run, shown: Collection[str], why: tuple[str, ...] = ()) -> Now:
    """Return the state of a run, and the progress of the displayed clients; `why` explains it."""
    said = run.present
    clients = present_clients(run)
    return Now(
        run=run.run,
        state=state_of(run),
        reason="; ".join(filter(None, (reason_of(run), advice_for(run)))),
        started=run.started,
        ended=run.ended,
        silent_s=_silent_s(run),
        round=whole(said.get("round")) or 0,
        rounds=whole(said.get("rounds")) or 0,
        phase=str(said.get("phase", "")),
        covered=whole(said.get("covered")) or 0,
        chunks=whole(said.get("chunks")) or 0,
        replicas=whole(said.get("replicas")) or 0,
        clients=len(clients),
        present=sum(bool(each.get("present")) for each in clients.values()),
        finished={client: int(clients[client].get("finished") or 0) for client in shown if client in clients},
        why=why,
    )


def one_round(store: Store, run: str, number: int) -> OneRound:
    """Return one round of a run."""
    found = store.rounds(run, after=number - 1, limit=1)
    if not found or found[0].row.round != number:
        raise Unusable(f"run {run}: saw no round {number}, needed one that is over")
    names = {each.client: each.name for each in store.clients()}
    rows = store.client_rows(run, number)
    bars = tuple(Bar(row.client, names.get(row.client, ""), row) for row in thinned(rows, SHOWN_BARS))
    return OneRound(found[0], bars, folded=bool(found[0].clients) and not rows)


def thinned(rows: Sequence[ClientRow], most: int) -> list[ClientRow]:
    """Return at most so many rows, the longest at work first: failed ones, then others taken evenly.

    >>> [row.client for row in thinned([ClientRow(f"{n}", busy_s=n) for n in range(9)], 3)]
    ['8', '4', '0']
    """
    order = sorted(rows, key=lambda row: (-row.busy_s, row.client))
    if len(order) <= most:
        return order
    others = [row for row in order if not row.failure]
    failed = [row for row in order if row.failure][: max(most // 2, most - len(others))]
    places = min(most - len(failed), len(others))
    taken = [others[round(at * (len(others) - 1) / max(places - 1, 1))] for at in range(places)]
    return sorted([*failed, *taken], key=lambda row: (-row.busy_s, row.client))


# ---- history


def _series(stretches: Sequence[Stretch], model_bytes: int | None) -> Series:
    def mean(name: str) -> tuple[float, ...]:
        return tuple(getattr(each, name) / each.rounds for each in stretches)

    names = measures.shown(each.metrics for each in stretches)
    plain = tuple(plain_bytes(each.clients, model_bytes or 0) / each.rounds for each in stretches)
    return Series(
        first=tuple(each.first for each in stretches),
        last=tuple(each.last for each in stretches),
        loss=tuple(each.loss for each in stretches),
        metrics={name: tuple(each.metrics.get(name) for each in stretches) for name in names},
        working_s=mean("working_s"),
        collecting_s=mean("collecting_s"),
        counted=mean("counted"),
        discarded=tuple((each.finished - each.counted) / each.rounds for each in stretches),
        up_bytes=mean("up_bytes"),
        down_bytes=mean("down_bytes"),
        control_bytes=mean("control_bytes"),
        plain_bytes=plain if model_bytes else None,
        skipped=tuple(each.skipped for each in stretches),
    )
