"""`fedgc bench tuner`: does history help where it can, and is the tuner honest where not.

A *cell* is a weather and an upload time. The tuner starts with nothing, learns from what it measures, and
is judged on the rounds after the first `TRAIN`. Beside it every fixed setting is played by brute force on the
same rounds: copies by blocks by even loads or loads by measured speed. Nobody is told the truth, but the best
fixed setting is picked in hindsight.

    worst_regret               tuned / best fixed setting - 1, largest over cells
    shuffled_loss              each round's devices change places, so that the past is worth nothing: tuned /
                               the same copies with equal loads - 1, largest over cells
    over_uncoded_proportional  devices of speed 1, 1/2, 1/5 that stall and fail: tuned / uncoded by true speed
                               (a rival that is back at once when it fails; a device of ours stays away)
    over_fluid_bound           the same devices: tuned / work over the speeds that do not fail
    drift_recovery_rounds      speeds change hands in mid-run: rounds until three in a row are on average
                               within 15% of the best fixed setting of later rounds, largest over seeds

May import: sim and below.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.bench.deadline import always
from fedgc.bench.report import Report, Value, machine
from fedgc.config import AUTO, RunConfig
from fedgc.history import WINDOW, Speed, Speeds
from fedgc.plan import Chunk, Fleet, Plan
from fedgc.replay import MODELS, Conditions, Terms, Under, Weather, World, working
from fedgc.round import Assignment, Round
from fedgc.sim.owned import processes
from fedgc.sim.policy import done_s
from fedgc.sim.traces import read_weather
from fedgc.tuner import Choice, Past, Question, Setting, nothing, review, robust
from fedgc.tuner.choose import settings
from fedgc.tuner.past import Float
from fedgc.tuner.trial import REPEAT, known_speeds

HEARD_S: Final = 1e-6  # a death is heard of at once
PIECES: Final = 4  # chunks for each device
NUMBERS: Final = 1000  # of the model: only the upload time matters
BYTES: Final = 4 * NUMBERS
UPLOADS: Final = (0.0, 2.0)  # of a whole update, over a median unit of work
LINKS: Final = 0.5  # spread of log upload times
TRAIN: Final = 12
TEST: Final = 10
PRACTICE: Final = 5  # rounds that a fixed setting learns speeds from: as many as a run remembers
AFTER_DRIFT: Final = 15
WITHIN: Final = 1.15
SHARES: Final = ((1.0, 0.5), (0.5, 0.3), (0.2, 0.2))  # speed, share of the devices
TRACES: Final = ("trace-SE.parquet", "trace-ST.parquet", "trace-AR.parquet")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    devices: int
    seeds: int
    unequal: int  # devices of unequal speed


USUAL: Final = Size(devices=16, seeds=3, unequal=100)
QUICK: Final = Size(devices=8, seeds=1, unequal=30)

Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Job:
    """One weather and seed: what one process does at a time."""

    kind: str  # cell, drift, unequal
    weather: str
    seed: int
    size: Size
    trace: Path | None = None

    def run(self) -> list[Row]:
        """Measure."""
        return {"cell": _cell, "drift": _drift, "unequal": _unequal}[self.kind](self)

    def make(self) -> Weather:
        """Return its rounds; a trace gives other devices and rounds for every seed."""
        rounds = TRAIN + TEST
        if self.trace is None:
            return MODELS[self.weather](self.size.devices, rounds, np.random.default_rng(self.seed))
        whole = read_weather(self.trace)
        few = np.random.default_rng(self.seed).permutation(whole[0].devices)[: self.size.devices]
        return tuple(_dealt(whole[(self.seed * TEST + at) % len(whole)], few) for at in range(rounds))


def bench_tuner(
    *,
    quick: bool,
    traces: Path | None,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> Report:
    """Measure; `progress` hears how many of how many jobs are done."""
    size = QUICK if quick else USUAL
    seeds = range(size.seeds)
    found = [] if traces is None else [traces / name for name in TRACES if (traces / name).exists()]
    jobs = [Job("unequal", "unequal", seed, size) for seed in seeds]
    jobs += [Job("cell", path.stem, seed, size, path) for path in found for seed in seeds]
    jobs += [Job("cell", name, seed, size) for name in MODELS for seed in seeds]
    jobs += [Job("drift", "hands change", seed, size) for seed in seeds]
    rows: list[Row] = []
    with processes() as pool:
        futures = [pool.submit(job.run) for job in jobs]
        for done, future in enumerate(futures, start=1):
            rows += future.result()
            progress(done, len(jobs))
    cells = compare(rows)
    return Report(figures(cells, rows), [*cells, *rows], machine())


# ---- playing


class Fleeting:
    """One fleet that is played round by round; it remembers what a server would have measured."""

    def __init__(self, weather: Weather, pieces: int, seed: int) -> None:
        devices = weather[0].devices
        names = tuple(f"device {w}" for w in range(devices))
        chunks = tuple(Chunk(at, f"chunk {at}", 1) for at in range(devices * pieces))
        every = frozenset(range(len(chunks)))
        config = RunConfig(replicas=AUTO, seed=seed, local_steps=1, chunks=len(chunks), grace_s=HEARD_S)
        self.question = Question(Fleet(dict.fromkeys(names, every), chunks, NUMBERS), config, 1)
        self.past = nothing(names)
        self.links = Speeds(
            {
                name: Speed(name, 1.0, up_bytes_s=BYTES / up_s)
                for name, up_s in zip(names, weather[0].up_s_w.tolist(), strict=True)
                if up_s > 0
            }
        )
        self._pieces = pieces

    def play(self, plan: Plan, conditions: Conditions, number: int) -> float:
        """Play a round, learn what it shows, and return its time; one that lacks data is charged twice."""
        nature = Under(lambda _: conditions, [1.0 / self._pieces] * len(plan.chunks))
        over = Round(plan, Assignment(number, number - 1, 1, self.question.config.seed), always)
        World(plan.devices, nature, Terms(1, BYTES)).play(over, [True] * len(plan.devices), 0.0)
        failed = np.asarray([bool(said) for said in over.tally.failure])
        least_s = np.where(
            failed, np.nan, over.working_s or np.nan
        )  # who finished nothing took that at least
        steps = [np.mean(seen) if seen else least_s[w] for w, seen in enumerate(over.tally.step_s)]
        step_rw = np.vstack([self.past.step_rw, steps])[-WINDOW:]
        failed_rw = np.vstack([self.past.failed_rw, failed])[-WINDOW:]
        self.past = Past(self.past.devices, step_rw, failed_rw)
        return over.closed_at * (1.0 if over.outcome == "synced" else REPEAT)


def play_fixed(weather: Weather, setting: Setting, *, by_speed: bool, seed: int, pieces: int) -> list[float]:
    """Play one setting, loads even or by the median of the last rounds measured."""
    fleet = Fleeting(weather, pieces, seed)
    equal = known_speeds(fleet.past.devices, np.ones(len(fleet.past.devices)), fleet.links)
    seconds = []
    for number, conditions in enumerate(weather, start=1):
        recent = replace(
            fleet.past, step_rw=fleet.past.step_rw[-PRACTICE:], failed_rw=fleet.past.failed_rw[-PRACTICE:]
        )
        speeds = robust(recent, equal) if by_speed else equal
        seconds.append(fleet.play(fleet.question.planned(setting, speeds), conditions, number))
    return seconds


def play_tuned(
    weather: Weather, *, seed: int, pieces: int, equal_loads: bool = False
) -> tuple[list[float], list[Choice]]:
    """Let the tuner choose before every round; with `equal_loads` its copies and blocks alone are taken."""
    fleet = Fleeting(weather, pieces, seed)
    present: Choice | None = None
    since: list[float] = []
    seconds, choices = [], []
    for number, conditions in enumerate(weather, start=1):
        question = replace(fleet.question, rounds_left=len(weather) - number + 1)
        rng = np.random.default_rng([seed, number])
        choice = review(present, question, fleet.past, fleet.links, measured_s=since, rng=rng)
        since = since if choice is present else []
        present = choice
        ones = np.ones(len(fleet.past.devices))
        speeds = known_speeds(fleet.past.devices, ones, fleet.links) if equal_loads else choice.speeds
        taken = fleet.play(question.planned(choice.setting, speeds), conditions, number)
        since = [*since, taken]
        seconds.append(taken)
        choices.append(choice)
    return seconds, choices


# ---- jobs


def _cell(job: Job) -> list[Row]:
    bare = job.make()
    rows: list[Row] = []
    for upload in UPLOADS:
        weather = _sending(bare, upload, job.seed)
        rows += _beside(job, weather, upload)
    rows.append(_shuffled(job, bare))
    return rows


def _sending(weather: Weather, upload: float, seed: int) -> Weather:
    """Give every device an uplink, the same in all rounds."""
    unit_s = float(np.median([each.mean_pace_w for each in weather]))
    spread_w = np.random.default_rng(seed).lognormal(0.0, LINKS, weather[0].devices)
    return tuple(replace(each, up_s_w=upload * unit_s * spread_w) for each in weather)


def _beside(job: Job, weather: Weather, upload: float) -> list[Row]:
    """Play the tuner, and every fixed setting by brute force."""
    seconds, choices = play_tuned(weather, seed=job.seed, pieces=PIECES)
    base: dict[str, Value] = {"weather": job.weather, "upload": upload, "seed": job.seed}
    last = choices[-1]
    tuned = float(np.mean(seconds[TRAIN:]))
    rows: list[Row] = [{**base, "setting": "tuned", "mean_s": tuned, "reason": last.reason}]
    fleet = Fleeting(weather, PIECES, job.seed)
    for setting in settings(fleet.question, fleet.links):
        for by_speed in (False, True):
            part = weather[TRAIN - PRACTICE if by_speed else TRAIN :]
            played = play_fixed(part, setting, by_speed=by_speed, seed=job.seed, pieces=PIECES)
            mean_s = float(np.mean(played[-TEST:]))
            words = f"{setting.words}, {'by speed' if by_speed else 'even loads'}"
            rows.append({**base, "setting": words, "mean_s": mean_s})
    return rows


def _shuffled(job: Job, weather: Weather) -> Row:
    """Let devices change places every round, and compare with loads that ignore all history."""
    rng = np.random.default_rng([job.seed, 1])
    mixed = tuple(_dealt(each, rng.permutation(each.devices)) for each in weather)
    tuned, choices = play_tuned(mixed, seed=job.seed, pieces=PIECES)
    equal, _ = play_tuned(mixed, seed=job.seed, pieces=PIECES, equal_loads=True)
    return {
        "shuffled": job.weather,
        "seed": job.seed,
        "tuned_s": float(np.mean(tuned[TRAIN:])),
        "ignoring_s": float(np.mean(equal[TRAIN:])),
        "says_so": float(np.mean([not choice.trusted for choice in choices[TRAIN:]])),
    }


def _dealt(conditions: Conditions, order_w: NDArray[np.int64]) -> Conditions:
    """Return the conditions of these devices, in this order."""
    arrays = ("pace_wk", "up_s_w", "down_s_w", "control_s_w", "dies_s_w", "returns_s_w")
    return replace(conditions, **{name: getattr(conditions, name)[order_w] for name in arrays})


def _speeds(devices: int, rng: np.random.Generator) -> Float:
    counts = [round(share * devices) for _, share in SHARES]
    counts[0] += devices - sum(counts)
    return rng.permutation(np.repeat([speed for speed, _ in SHARES], counts))


def _unequal(job: Job) -> list[Row]:
    """Play devices of speed 1, 1/2 and 1/5; 5% stall 3 to 8 times, 1 to 5% fail."""
    rng = np.random.default_rng([job.seed, 2])
    devices = job.size.unequal
    speed_w, fails_w = _speeds(devices, rng), rng.uniform(0.01, 0.05, devices)
    weather = []
    for _ in range(TRAIN + TEST):
        stall_w = np.where(rng.random(devices) < 0.05, rng.uniform(3.0, 8.0, devices), 1.0)
        there = working((stall_w / speed_w)[:, None])
        dies_s_w = np.where(rng.random(devices) < fails_w, rng.uniform(0.0, 1.0, devices), np.inf)
        weather.append(replace(there, dies_s_w=dies_s_w))
    pieces = 10
    seconds, choices = play_tuned(tuple(weather), seed=job.seed, pieces=pieces)
    share_w = speed_w * devices / speed_w.sum()
    back = [replace(each, returns_s_w=each.dies_s_w) for each in weather[TRAIN:]]
    uncoded = [float(done_s(each, share_w).max()) for each in back]
    return [
        {
            "unequal": devices,
            "seed": job.seed,
            "tuned_s": float(np.mean(seconds[TRAIN:])),
            "uncoded_s": float(np.mean(uncoded)),
            "fluid_s": devices / float((speed_w * (1.0 - fails_w)).sum()),
            "reason": choices[-1].reason,
        }
    ]


def _drift(job: Job) -> list[Row]:
    """Let the speeds change hands after the training rounds."""
    rng = np.random.default_rng([job.seed, 3])
    devices = job.size.devices
    before_w, after_w = _speeds(devices, rng), _speeds(devices, rng)
    rounds = [before_w] * TRAIN + [after_w] * AFTER_DRIFT
    weather = tuple(working((rng.lognormal(0.0, 0.05, devices) / speed_w)[:, None]) for speed_w in rounds)
    seconds, _ = play_tuned(weather, seed=job.seed, pieces=PIECES)
    fleet = Fleeting(weather, PIECES, job.seed)
    means = []
    for setting in settings(fleet.question, fleet.links):
        for by_speed in (False, True):
            played = play_fixed(weather[TRAIN:], setting, by_speed=by_speed, seed=job.seed, pieces=PIECES)
            means.append(float(np.mean(played[PRACTICE:])))
    after = seconds[TRAIN:]
    back = [at for at in range(len(after) - 2) if np.mean(after[at : at + 3]) <= WITHIN * min(means)]
    return [
        {
            "drift": devices,
            "seed": job.seed,
            "best_fixed_s": min(means),
            "first_s": after[0],
            "recovery_rounds": back[0] if back else None,
            "after_five": float(np.mean(after[5:])) / min(means),
        }
    ]


# ---- comparing


def compare(rows: Sequence[Row]) -> list[Row]:
    """Return every cell, the tuner against the best fixed setting, the worst first; sums are over seeds.

    >>> rows = [{"weather": "calm", "upload": 0.0, "setting": name, "mean_s": s} for name, s in
    ...         [("tuned", 1.1), ("a", 1.0), ("b", 2.0)]]
    >>> [(cell["best"], round(cell["regret"], 2)) for cell in compare(rows)]
    [('a', 0.1)]
    """
    cells: defaultdict[tuple[Value, Value], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        if "weather" in row:
            cells[row["weather"], row["upload"]][str(row["setting"])] += _number(row["mean_s"])
    found = []
    for (weather, upload), means in cells.items():
        tuned = means.pop("tuned")
        best = min(means, key=lambda name, means=means: means[name])  # type: ignore[misc]
        regret = tuned / means[best] - 1.0
        found.append({"cell": weather, "upload": upload, "best": best, "regret": regret})
    return sorted(found, key=lambda cell: -_number(cell["regret"]))


def figures(cells: Sequence[Row], rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the figures; None where nothing was measured."""
    shuffled = _sums(rows, "shuffled", "tuned_s", "ignoring_s")
    unequal = [row for row in rows if "unequal" in row]
    drifts = [row["recovery_rounds"] for row in rows if "drift" in row]
    over = {
        name: sum(_number(row["tuned_s"]) for row in unequal) / sum(_number(row[name]) for row in unequal)
        for name in ("uncoded_s", "fluid_s")
        if unequal
    }
    return {
        "worst_regret": _number(cells[0]["regret"]) if cells else None,
        "shuffled_loss": max((top / bottom - 1.0 for top, bottom in shuffled), default=None),
        "over_uncoded_proportional": over.get("uncoded_s"),
        "over_fluid_bound": over.get("fluid_s"),
        "drift_recovery_rounds": _largest(drifts),
    }


def _largest(values: Sequence[Value]) -> float | None:
    """Return the largest; infinite where one of them never came."""
    if not values:
        return None
    return max(float("inf") if value is None else _number(value) for value in values)


def _sums(rows: Sequence[Row], by: str, top: str, bottom: str) -> list[tuple[float, float]]:
    sums: defaultdict[Value, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        if by in row:
            sums[row[by]][0] += _number(row[top])
            sums[row[by]][1] += _number(row[bottom])
    return [(first, second) for first, second in sums.values()]


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
