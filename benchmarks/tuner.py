"""`python -m benchmarks tuner`: whether history improves the tuner's choice, or does no harm if useless.

A *cell* is a scenario and an upload time. The tuner starts without history, learns from its measurements, and
is evaluated on the rounds after the first `TRAIN`. Every fixed setting is played by brute force on the same
rounds: replicas by blocks by even loads or loads by measured speed. No policy knows the true speeds, but the
best fixed setting is picked in hindsight.

    worst_regret               tuned / best fixed setting - 1, largest over cells
    shuffled_loss              clients are permuted in each round, so that history is useless: tuned /
                               the same replicas with equal loads - 1, largest over cells
    over_uncoded_proportional  clients of speed 1, 1/2, 1/5 that stall and fail: tuned / uncoded by true speed
                               (a baseline that returns at once after a failure; our clients do not)
    over_fluid_bound           the same clients: tuned / work over the speeds that do not fail
    drift_recovery_rounds      speeds are swapped in mid-run: rounds until three in a row are on average
                               within 15% of the best fixed setting of later rounds, largest over seeds
    band_coverage, band_width, predicted_over_seen, replayed_over_seen
                               of the 80% bands, for each scenario (see `bands`)
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import bands
from benchmarks.bands import Bursts, Swapped
from benchmarks.deadline import always
from benchmarks.grid import Modelled, Source, link_ratio, sources
from benchmarks.report import Figure, Report, Value, machine, number_or_nan
from fedgc.config import AUTO, RunConfig
from fedgc.history import WINDOW, Speed, Speeds
from fedgc.round.machine import Assignment, Round
from fedgc.round.plan import Chunk, Fleet, Plan
from fedgc.sim.clock import ClientModel, Conditions, Scenario, Terms, VirtualClock, working
from fedgc.sim.owned import Processes
from fedgc.sim.policy import done_s
from fedgc.tuner import Band, Choice, ClientHistory, Question, Setting, nothing, review, robust
from fedgc.tuner.choose import settings
from fedgc.tuner.history import Float
from fedgc.tuner.trial import REPEAT, known_speeds

HEARD_S: Final = 1e-6  # failures are detected at once
PIECES: Final = 4  # chunks for each client
NUMBERS: Final = 1000  # of the model: only the upload time matters
BYTES: Final = 4 * NUMBERS
UPLOADS: Final = (0.0, 2.0)  # of a whole update, over a median unit of work
LINKS: Final = 0.5  # spread of log upload times
TRAIN: Final = 12
TEST: Final = 10
PRACTICE: Final = 5  # rounds from which a fixed setting learns speeds, as many as a run remembers
AFTER_DRIFT: Final = 15
WITHIN: Final = 1.15
SHARES: Final = ((1.0, 0.5), (0.5, 0.3), (0.2, 0.2))  # speed, share of the clients


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark."""

    clients: int
    seeds: int
    unequal: int  # clients of unequal speed
    predicted: int = 60  # rounds whose bands are counted, after those of learning


USUAL: Final = Size(clients=16, seeds=3, unequal=100)
QUICK: Final = Size(clients=8, seeds=1, unequal=30, predicted=20)

STEADY: Final = Modelled("homogeneous")
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Job:
    """One scenario and seed, the unit of work of a process; a `cell` and a `band` use its source."""

    kind: str  # cell, band, drift, unequal
    source: Source
    seed: int
    size: Size

    def run(self) -> list[Row]:
        """Measure."""
        return {"cell": _cell, "band": _band, "drift": _drift, "unequal": _unequal}[self.kind](self)

    @property
    def scenario(self) -> str:
        """Return the name of its source."""
        return self.source.name


def bench_tuner(
    *,
    quick: bool,
    traces: Path | None,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> Report:
    """Run the benchmark; `progress` receives the number of finished jobs and the total."""
    size = QUICK if quick else USUAL
    seeds = range(size.seeds)
    jobs = [Job("unequal", STEADY, seed, size) for seed in seeds]
    found = sources(traces)
    jobs += [Job("cell", source, seed, size) for source in reversed(found) for seed in seeds]
    jobs += [Job("band", source, seed, size) for source in (*found, Bursts(), Swapped()) for seed in seeds]
    jobs += [Job("drift", STEADY, seed, size) for seed in seeds]
    rows: list[Row] = []
    with Processes() as pool:
        futures = [pool.submit(job.run) for job in jobs]
        for done, future in enumerate(futures, start=1):
            rows += future.result()
            progress(done, len(jobs))
    cells = compare(rows)
    others = [row for row in rows if "band" not in row]
    return Report(figures(cells, rows), [*cells, *bands.worst_first(rows), *others], machine(), seeds)


# ---- playing


class Fleeting:
    """One fleet played round by round, with the measurements that a server would have."""

    def __init__(self, scenario: Scenario, pieces: int, seed: int) -> None:
        clients = scenario[0].clients
        names = tuple(f"client {w}" for w in range(clients))
        chunks = tuple(Chunk(at, f"chunk {at}", 1) for at in range(clients * pieces))
        every = frozenset(range(len(chunks)))
        config = RunConfig(
            replicas=AUTO, seed=seed, local_steps=1, chunks=len(chunks), grace_s=HEARD_S, work="coded"
        )
        self.question = Question(Fleet(dict.fromkeys(names, every), chunks, NUMBERS), config, 1)
        self.past = nothing(names)
        self.links = Speeds(
            {
                name: Speed(name, 1.0, up_bytes_s=BYTES / up_s)
                for name, up_s in zip(names, scenario[0].up_s_w.tolist(), strict=True)
                if up_s > 0
            }
        )
        self._pieces = pieces

    def play(self, plan: Plan, conditions: Conditions, number: int, replay_s: float | None = None) -> float:
        """Play a round, record its measurements, and return its time; one that lacks data counts twice.

        `replay_s` is the mean of the replays that predicted it, if it was predicted.
        """
        client_model = ClientModel(lambda _: conditions, [1.0 / self._pieces] * len(plan.chunks))
        over = Round(plan, Assignment(number, number - 1, 1, self.question.config.seed), always)
        VirtualClock(plan.clients, client_model, Terms(1, BYTES)).play(over, [True] * len(plan.clients), 0.0)
        failed = np.asarray([bool(said) for said in over.statistics.failure])
        least_s = np.where(failed, np.nan, over.working_s or np.nan)  # for a client that finished nothing
        steps = [np.mean(seen) if seen else least_s[w] for w, seen in enumerate(over.statistics.step_s)]
        step_rw = np.vstack([self.past.step_rw, steps])[-WINDOW:]
        failed_rw = np.vstack([self.past.failed_rw, failed])[-WINDOW:]
        seconds = over.closed_at * (1.0 if over.outcome == "synced" else REPEAT)
        ratios = (*self.past.ratios, seconds / replay_s)[-WINDOW:] if replay_s else self.past.ratios
        self.past = ClientHistory(self.past.clients, step_rw, failed_rw, ratios=ratios)
        return seconds


def play_fixed(
    scenario: Scenario, setting: Setting, *, by_speed: bool, seed: int, pieces: int
) -> list[float]:
    """Play one setting, with even loads or loads by the median of the last measured rounds."""
    fleet = Fleeting(scenario, pieces, seed)
    equal = known_speeds(fleet.past.clients, np.ones(len(fleet.past.clients)), fleet.links)
    seconds = []
    for number, conditions in enumerate(scenario, start=1):
        recent = replace(
            fleet.past, step_rw=fleet.past.step_rw[-PRACTICE:], failed_rw=fleet.past.failed_rw[-PRACTICE:]
        )
        speeds = robust(recent, equal) if by_speed else equal
        seconds.append(fleet.play(fleet.question.planned(setting, speeds), conditions, number))
    return seconds


@dataclass(frozen=True, slots=True)
class Tuned:
    """The rounds of a run with the tuner: their times, choices, and bands made before each."""

    seconds: Sequence[float]
    choices: Sequence[Choice]
    bands: Sequence[Band]


def play_tuned(scenario: Scenario, *, seed: int, pieces: int, equal_loads: bool = False) -> Tuned:
    """Let the tuner choose before every round; `equal_loads` uses only its replicas and blocks."""
    fleet = Fleeting(scenario, pieces, seed)
    present: Choice | None = None
    since: list[float] = []
    seconds, choices, predicted = [], [], []
    for number, conditions in enumerate(scenario, start=1):
        question = replace(fleet.question, rounds_left=len(scenario) - number + 1)
        rng = np.random.default_rng([seed, number])
        choice = review(present, question, fleet.past, fleet.links, measured_s=since, rng=rng)
        since = since if choice is present else []
        present = choice
        ones = np.ones(len(fleet.past.clients))
        speeds = known_speeds(fleet.past.clients, ones, fleet.links) if equal_loads else choice.speeds
        predicted.append(choice.band_after(fleet.past.ratios))
        plan = question.planned(choice.setting, speeds)
        taken = fleet.play(plan, conditions, number, choice.replay_s)
        since = [*since, taken]
        seconds.append(taken)
        choices.append(choice)
    return Tuned(seconds, choices, predicted)


# ---- jobs


def _cell(job: Job) -> list[Row]:
    """Play with two upload times, and with permuted clients; clients with links of their own keep them."""
    bare = _made(job)
    if link_ratio(bare):
        return _beside(job, bare, None)
    rows: list[Row] = []
    for upload in UPLOADS:
        rows += _beside(job, _sending(bare, upload, job.seed), upload)
    return [*rows, _shuffled(job, bare)]


def _made(job: Job) -> Scenario:
    return job.source.make(job.size.clients, TRAIN + TEST, job.seed)


def _sending(scenario: Scenario, upload: float, seed: int) -> Scenario:
    """Give every client an uplink, the same in all rounds."""
    unit_s = float(np.median([each.mean_pace_w for each in scenario]))
    spread_w = np.random.default_rng(seed).lognormal(0.0, LINKS, scenario[0].clients)
    return tuple(replace(each, up_s_w=upload * unit_s * spread_w) for each in scenario)


def _beside(job: Job, scenario: Scenario, upload: float | None) -> list[Row]:
    """Play the tuner, and every fixed setting by brute force."""
    run = play_tuned(scenario, seed=job.seed, pieces=PIECES)
    base: dict[str, Value] = {"scenario": job.scenario, "upload": upload, "seed": job.seed}
    tuned = float(np.mean(run.seconds[TRAIN:]))
    rows: list[Row] = [{**base, "setting": "tuned", "mean_s": tuned, "reason": run.choices[-1].reason}]
    fleet = Fleeting(scenario, PIECES, job.seed)
    for setting in settings(fleet.question, fleet.links):
        for by_speed in (False, True):
            part = scenario[TRAIN - PRACTICE if by_speed else TRAIN :]
            played = play_fixed(part, setting, by_speed=by_speed, seed=job.seed, pieces=PIECES)
            mean_s = float(np.mean(played[-TEST:]))
            words = f"{setting.words}, {'by speed' if by_speed else 'even loads'}"
            rows.append({**base, "setting": words, "mean_s": mean_s})
    return rows


def _shuffled(job: Job, scenario: Scenario) -> Row:
    """Permute the clients in every round, and compare with equal loads."""
    rng = np.random.default_rng([job.seed, 1])
    mixed = tuple(each.only(rng.permutation(each.clients)) for each in scenario)
    tuned = play_tuned(mixed, seed=job.seed, pieces=PIECES)
    equal = play_tuned(mixed, seed=job.seed, pieces=PIECES, equal_loads=True)
    return {
        "shuffled": job.scenario,
        "seed": job.seed,
        "tuned_s": float(np.mean(tuned.seconds[TRAIN:])),
        "ignoring_s": float(np.mean(equal.seconds[TRAIN:])),
        "says_so": float(np.mean([not choice.trusted for choice in tuned.choices[TRAIN:]])),
    }


def _band(job: Job) -> list[Row]:
    """Play the tuner alone, and compare what it predicted with what happened."""
    scenario = job.source.make(job.size.clients, TRAIN + job.size.predicted, job.seed)
    run = play_tuned(scenario, seed=job.seed, pieces=PIECES)
    return [bands.row_of(job.scenario, job.seed, run.seconds[TRAIN:], run.bands[TRAIN:], run.choices[TRAIN:])]


def _speeds(clients: int, rng: np.random.Generator) -> Float:
    counts = [round(share * clients) for _, share in SHARES]
    counts[0] += clients - sum(counts)
    return rng.permutation(np.repeat([speed for speed, _ in SHARES], counts))


def _unequal(job: Job) -> list[Row]:
    """Play clients of speed 1, 1/2 and 1/5; 5% stall 3 to 8 times, 1 to 5% fail."""
    rng = np.random.default_rng([job.seed, 2])
    clients = job.size.unequal
    speed_w, fails_w = _speeds(clients, rng), rng.uniform(0.01, 0.05, clients)
    scenario = []
    for _ in range(TRAIN + TEST):
        stall_w = np.where(rng.random(clients) < 0.05, rng.uniform(3.0, 8.0, clients), 1.0)
        there = working((stall_w / speed_w)[:, None])
        dies_s_w = np.where(rng.random(clients) < fails_w, rng.uniform(0.0, 1.0, clients), np.inf)
        scenario.append(replace(there, dies_s_w=dies_s_w))
    pieces = 10
    run = play_tuned(tuple(scenario), seed=job.seed, pieces=pieces)
    share_w = speed_w * clients / speed_w.sum()
    back = [replace(each, returns_s_w=each.dies_s_w) for each in scenario[TRAIN:]]
    uncoded = [float(done_s(each, share_w).max()) for each in back]
    return [
        {
            "unequal": clients,
            "seed": job.seed,
            "tuned_s": float(np.mean(run.seconds[TRAIN:])),
            "uncoded_s": float(np.mean(uncoded)),
            "fluid_s": clients / float((speed_w * (1.0 - fails_w)).sum()),
            "reason": run.choices[-1].reason,
        }
    ]


def _drift(job: Job) -> list[Row]:
    """Swap the speeds after the training rounds."""
    rng = np.random.default_rng([job.seed, 3])
    clients = job.size.clients
    before_w, after_w = _speeds(clients, rng), _speeds(clients, rng)
    rounds = [before_w] * TRAIN + [after_w] * AFTER_DRIFT
    scenario = tuple(working((rng.lognormal(0.0, 0.05, clients) / speed_w)[:, None]) for speed_w in rounds)
    after = play_tuned(scenario, seed=job.seed, pieces=PIECES).seconds[TRAIN:]
    fleet = Fleeting(scenario, PIECES, job.seed)
    means = []
    for setting in settings(fleet.question, fleet.links):
        for by_speed in (False, True):
            played = play_fixed(scenario[TRAIN:], setting, by_speed=by_speed, seed=job.seed, pieces=PIECES)
            means.append(float(np.mean(played[PRACTICE:])))
    back = [at for at in range(len(after) - 2) if np.mean(after[at : at + 3]) <= WITHIN * min(means)]
    return [
        {
            "drift": clients,
            "seed": job.seed,
            "best_fixed_s": min(means),
            "first_s": after[0],
            "recovery_rounds": back[0] if back else None,
            "after_five": float(np.mean(after[5:])) / min(means),
        }
    ]


# ---- comparing


def compare(rows: Sequence[Row]) -> list[Row]:
    """Return every cell with tuner and best fixed setting, the worst first; sums are over seeds.

    >>> rows = [{"scenario": "calm", "upload": 0.0, "setting": name, "mean_s": s} for name, s in
    ...         [("tuned", 1.1), ("a", 1.0), ("b", 2.0)]]
    >>> [(cell["best"], round(cell["regret"], 2)) for cell in compare(rows)]
    [('a', 0.1)]
    """
    cells: defaultdict[tuple[Value, Value], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        if "scenario" in row:
            cells[row["scenario"], row["upload"]][str(row["setting"])] += number_or_nan(row["mean_s"])
    found = []
    for (scenario, upload), means in cells.items():
        tuned = means.pop("tuned")
        best = min(means, key=means.__getitem__)
        regret = tuned / means[best] - 1.0
        found.append({"cell": scenario, "upload": upload, "best": best, "regret": regret})
    return sorted(found, key=lambda cell: -number_or_nan(cell["regret"]))


def figures(cells: Sequence[Row], rows: Sequence[Row]) -> dict[str, Figure]:
    """Return the figures; None without measurements."""
    shuffled = _sums(rows, "shuffled", "tuned_s", "ignoring_s")
    unequal = [row for row in rows if "unequal" in row]
    drifts = [row["recovery_rounds"] for row in rows if "drift" in row]
    over = {
        name: sum(number_or_nan(row["tuned_s"]) for row in unequal)
        / sum(number_or_nan(row[name]) for row in unequal)
        for name in ("uncoded_s", "fluid_s")
        if unequal
    }
    return {
        "worst_regret": number_or_nan(cells[0]["regret"]) if cells else None,
        "shuffled_loss": max((top / bottom - 1.0 for top, bottom in shuffled), default=None),
        "over_uncoded_proportional": over.get("uncoded_s"),
        "over_fluid_bound": over.get("fluid_s"),
        "drift_recovery_rounds": _largest(drifts),
        **bands.figures(rows),
    }


def _largest(values: Sequence[Value]) -> float | None:
    """Return the largest value; infinite if a recovery never came."""
    if not values:
        return None
    return max(float("inf") if value is None else number_or_nan(value) for value in values)


def _sums(rows: Sequence[Row], by: str, top: str, bottom: str) -> list[tuple[float, float]]:
    sums: defaultdict[Value, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        if by in row:
            sums[row[by]][0] += number_or_nan(row[top])
            sums[row[by]][1] += number_or_nan(row[bottom])
    return [(first, second) for first, second in sums.values()]
