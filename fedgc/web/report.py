"""The report of a run as values: what was counted, what was lost and why, and what each client got.

Everything is computed from the store alone, so a report can be made of any run, also of one under way. Client
rows are read in parts; of rounds whose client rows were folded, only the totals are known.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

from fedgc.history import APP_FAILED, BestModel, ClientRow
from fedgc.messages import SUMMED
from fedgc.store.database import Store
from fedgc.store.explanation import explain
from fedgc.store.liveness import reason_of, state_of
from fedgc.store.parts import client_parts
from fedgc.store.records import Audited
from fedgc.store.views import Round, Run, labels_of
from fedgc.store.work import ClientWork, WorkTotals, is_local, settled, short
from fedgc.web import measures
from fedgc.web.fleet import present_clients, whole
from fedgc.web.plans import PlanMade, model_bytes_of, plans_made
from fedgc.web.savings import Saved, saved
from fedgc.web.snapshot import REFUSED, SettingShown, settings_shown

ALL: Final = 1_000_000  # the page shows the newest


@dataclass(frozen=True, slots=True)
class OutcomeTotal:
    """All rounds of a run with one outcome."""

    outcome: str
    rounds: int
    finished: int
    counted: int
    seconds: float
    bytes: int
    reason: str  # the most frequent one


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of a run, over the rounds that wanted a sum: the share that was in it."""

    known: int  # in the last of these rounds
    rounds: int
    whole: int  # rounds whose sum had all samples
    mean_share: float
    least_share: float
    left_out: str


@dataclass(frozen=True, slots=True)
class LostWork:
    """Finished work that is in no sum: whose, why, and in which rounds."""

    name: str
    why: str
    rounds: int
    first: int
    last: int
    amount: int


@dataclass(frozen=True, slots=True)
class ClientShare:
    """What a client gave and got; `waited` counts the rounds in which no counted client took longer."""

    client: str
    name: str
    site: str
    link: str
    samples: int | None
    data_share: float | None
    rounds: int
    finished: int
    counted: int
    lost: int
    steps: int
    step_s: float | None
    busy_s: float
    transfer_s: float
    waited: int
    failures: int
    last_failure: str
    refused: int
    up_bytes: int
    down_bytes: int
    control_bytes: int


@dataclass(frozen=True, slots=True)
class Privacy:
    """What the server could see, and the epsilon that was spent.

    `of_records` is the limit of each client's epsilon if it noises its steps (0: no limit).
    """

    secrecy: str
    epsilon: float | None
    releases: int
    of_records: float | None = None


@dataclass(frozen=True, slots=True)
class Predictions:
    """Plans against what their rounds took; `within` counts plans whose rounds were in the band."""

    plans: tuple[PlanMade, ...]
    compared: int
    within: int
    median_ratio: float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """A measure of the common model: first, last, and the number of rounds with a value."""

    name: str
    first: float
    last: float
    rounds: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of one run."""

    run: Run
    state: str
    reason: str
    why: tuple[str, ...]
    work: str
    unit: str
    rounds: tuple[Round, ...]
    folded: int  # rounds that lack client rows
    outcomes: tuple[OutcomeTotal, ...]
    samples: Samples | None
    finished: int  # work that clients reported: chunks, or local steps
    counted: int  # what of it is in a sum
    lost: tuple[LostWork, ...]
    clients: tuple[ClientShare, ...]
    saved: Saved | None
    privacy: Privacy
    predictions: Predictions
    figures: tuple[Figure, ...]
    best: BestModel | None
    settings: tuple[SettingShown, ...]
    refusals: tuple[Audited, ...]

    @property
    def lost_work(self) -> int:
        """Work that clients reported and that is in no sum."""
        return self.finished - self.counted

    @property
    def seconds(self) -> float:
        """The time of all rounds."""
        return sum(each.seconds for each in self.outcomes)

    def total(self, name: str) -> int:
        """Return the sum of a number over all rounds, such as `up_bytes`."""
        return sum(getattr(each, name) for each in self.rounds)


def report_of(store: Store, run: Run, now: float) -> RunReport:
    """Return the report of a run at this time (seconds since 1970)."""
    rounds = store.rounds(run.run)
    names = {each.client: each.name for each in store.clients()}
    local = is_local(run.settings, run.task)
    sums = _Sums(run, {each.row.round: each for each in rounds}, WorkTotals(local=local))
    for part in client_parts(store, run.run, rounds):
        sums.add(part)
    sums.work.close(ended=state_of(run) != "running")
    finished, counted = settled(rounds, local=local)
    clients = sums.clients(store)
    decided = store.decisions(run.run, ALL, "plan")
    plans = plans_made(decided, rounds, names)
    audited = store.audited(run.run, ALL)
    return RunReport(
        run=run,
        state=state_of(run),
        reason=reason_of(run),
        why=explain(store, run, now).lines,
        work=str(run.settings.get("work", "")),
        unit="answers" if run.task == "stock" else "local steps" if local else "chunks",
        rounds=rounds,
        folded=sum(each.clients > sums.seen[each.row.round] for each in rounds),
        outcomes=_outcomes(rounds),
        samples=_samples(rounds),
        finished=finished + sums.work.at_end,
        counted=counted,
        lost=sums.lost(labels_of(clients)),
        clients=clients,
        saved=saved(store.stretches(run.run, 1), model_bytes_of(decided)),
        privacy=_privacy(run, rounds),
        predictions=_predictions(plans),
        figures=tuple(_figures(rounds)),
        best=store.best(run.run),
        settings=settings_shown(run),
        refusals=tuple(each for each in audited if each.kind in (*REFUSED, APP_FAILED, "crash", "rollback")),
    )


# ---- rounds


def _outcomes(rounds: Sequence[Round]) -> tuple[OutcomeTotal, ...]:
    found: dict[str, list[Round]] = {}
    for each in rounds:
        found.setdefault(each.row.outcome, []).append(each)
    return tuple(_outcome(outcome, those) for outcome, those in found.items())


def _outcome(outcome: str, rounds: Sequence[Round]) -> OutcomeTotal:
    reasons = Counter(each.row.reason for each in rounds if each.row.reason)
    return OutcomeTotal(
        outcome,
        len(rounds),
        sum(each.finished for each in rounds),
        sum(each.counted for each in rounds),
        sum(each.row.working_s + each.row.collecting_s for each in rounds),
        sum(each.up_bytes + each.down_bytes + each.control_bytes for each in rounds),
        reasons.most_common(1)[0][0] if reasons else "",
    )


def _samples(rounds: Sequence[Round]) -> Samples | None:
    wanted = [(each.row, share) for each in rounds if (share := each.row.coverage) is not None]
    if not wanted:
        return None
    shares = [share for _, share in wanted]
    left_out = next((row.left_out for row, _ in reversed(wanted) if row.left_out), "")
    return Samples(
        wanted[-1][0].known_samples,
        len(wanted),
        sum(share >= 1.0 for share in shares),
        fmean(shares),
        min(shares),
        left_out,
    )


def _privacy(run: Run, rounds: Sequence[Round]) -> Privacy:
    spent = [each.row.metrics["epsilon"] for each in rounds if "epsilon" in each.row.metrics]
    releases = sum(each.row.outcome in SUMMED for each in rounds)
    protects = run.settings.get("privacy.unit") == "record"
    limit = float(run.settings.get("privacy.epsilon", 0.0)) if protects else None
    return Privacy(str(run.settings.get("secrecy", "open")), spent[-1] if spent else None, releases, limit)


def _predictions(plans: tuple[PlanMade, ...]) -> Predictions:
    compared = [
        (each.predicted_s, each.band_s, each.took_s)
        for each in plans
        if each.predicted_s and each.band_s and each.took_s is not None
    ]
    within = sum(band[0] <= took <= band[1] for _, band, took in compared)
    ratios = [took / predicted for predicted, _, took in compared]
    return Predictions(plans, len(compared), within, median(ratios) if ratios else None)


def _figures(rounds: Sequence[Round]) -> Iterable[Figure]:
    for name in measures.shown(each.row.metrics for each in rounds):
        values = [each.row.metrics[name] for each in rounds if name in each.row.metrics]
        yield Figure(name, values[0], values[-1], len(values))


# ---- clients


@dataclass(slots=True)
class _Total:
    """The work of one client, added up."""

    steps: int = 0
    busy_s: float = 0.0
    transfer_s: float = 0.0
    waited: int = 0
    failures: int = 0
    last_failure: str = ""
    refused: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    control_bytes: int = 0

    def add(self, row: ClientRow) -> None:
        self.transfer_s += row.upload_s + row.download_s
        self.failures += bool(row.failure)
        self.last_failure = short(row.failure) or self.last_failure
        for name in ("steps", "busy_s", "refused"):
            setattr(self, name, getattr(self, name) + getattr(row, name))
        for name in ("up_bytes", "down_bytes", "control_bytes"):
            setattr(self, name, getattr(self, name) + getattr(row, name))


class _Sums:
    """Adds up the client rows of a run, part by part; `work` says what became of their work."""

    def __init__(self, run: Run, rounds: Mapping[int, Round], work: WorkTotals) -> None:
        self.seen: Counter[int] = Counter()  # client rows of each round
        self.work = work
        self._run = run
        self._rounds = rounds
        self._totals: dict[str, _Total] = {}

    def add(self, part: Iterable[tuple[int, ClientRow]]) -> None:
        """Add these rows; all rows of a round are in one part."""
        by_round: dict[int, list[ClientRow]] = {}
        for number, row in part:
            by_round.setdefault(number, []).append(row)
        for number, rows in by_round.items():
            self._add_round(self._rounds[number], rows)

    def _add_round(self, over: Round, rows: Sequence[ClientRow]) -> None:
        self.seen[over.row.round] = len(rows)
        for row in rows:
            self._totals.setdefault(row.client, _Total()).add(row)
        self.work.add(over.row, rows)
        counted = [row for row in rows if row.counted]
        is_whole = len(rows) >= over.clients
        if over.row.outcome in SUMMED and counted and is_whole:
            slowest = max(counted, key=lambda row: row.download_s + row.busy_s + row.upload_s)
            self._totals[slowest.client].waited += 1

    def lost(self, names: Mapping[str, str]) -> tuple[LostWork, ...]:
        """Return what was lost, the largest amounts first."""
        found = [
            LostWork(
                names.get(client) or client,
                why,
                len(entry.rounds),
                entry.rounds[0],
                entry.rounds[-1],
                entry.amount,
            )
            for (client, why), entry in self.work.discarded.items()
        ]
        return tuple(sorted(found, key=lambda each: (-each.amount, -each.rounds, each.name, each.why)))

    def clients(self, store: Store) -> tuple[ClientShare, ...]:
        """Return all clients that worked in the run or announced data to it, by name."""
        states, known = present_clients(self._run), {each.client: each for each in store.clients()}
        data = self._run.present.get("data")
        every = whole(data.get("known_samples")) if isinstance(data, Mapping) else None
        found = []
        for client in dict.fromkeys([*self._totals, *states]):
            total, seen, state = self._totals.get(client, _Total()), known.get(client), states.get(client, {})
            samples, work = whole(state.get("samples")), self.work.clients.get(client, ClientWork())
            found.append(
                ClientShare(
                    client=client,
                    name=(seen.name if seen else "") or str(state.get("name", "")),
                    site=seen.site if seen else "",
                    link=(seen.link if seen else "") or str(state.get("link", "")),
                    samples=samples,
                    data_share=samples / every if samples is not None and every else None,
                    step_s=total.busy_s / total.steps if total.steps else None,
                    rounds=work.rounds,
                    finished=work.finished,
                    counted=work.counted,
                    lost=work.discarded,
                    **_plain(total),
                )
            )
        return tuple(sorted(found, key=lambda each: ((each.name or each.client).casefold(), each.client)))


def _plain(total: _Total) -> dict[str, Any]:
    return {name: getattr(total, name) for name in _Total.__slots__}
