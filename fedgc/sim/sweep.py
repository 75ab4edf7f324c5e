"""Sweeps: every combination of settings on every scenario, and which of them need least time and bytes.

A run is played on the virtual clock without training (`play`), so the figures are for equal work: seconds and
megabytes per 1000 local steps that entered a sum, of all clients together. Steps that a client did beyond
`local-steps` while it waited are not counted. The figures say nothing of accuracy: a gate that exchanges less
needs fewer bytes. A sweep with a goal trains instead (`trial` of `run_sweep`): seconds and megabytes until
the figure has reached its target.

A combination is on the frontier of a scenario if no other one needs less of the one and no more of the other.
The recommended one has the least product of time and bytes, as ratios to the least of each scenario: the
geometric mean over scenarios.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Final

from fedgc.config import RunConfig
from fedgc.errors import Unusable
from fedgc.history import RoundRow
from fedgc.messages import SUMMED
from fedgc.sim.clock import FLOAT_BYTES, ClientModel, Line, Scenario
from fedgc.sim.owned import Processes
from fedgc.sim.past_run import PastClients, PastRun, rebuilt
from fedgc.sim.play import TimedClients, play, seconds_of, waste_of
from fedgc.sim.simulate import MEGABYTE
from fedgc.sim.sweep_file import Settings, Sweep, SweepScenario

if TYPE_CHECKING:
    from fedgc.sim.sweep_checkpoint import SweepCheckpoint

WORK: Final = 1000  # local steps that figures are for
SHORT: Final = 20  # runs below which one process is used


@dataclass(frozen=True, slots=True)
class Trial:
    """The figures of one combination (its number) on one scenario, with one seed or as means over seeds."""

    combination: int
    scenario: str
    seconds: float  # per WORK counted local steps, or to the goal; infinite if none was counted, or never
    megabytes: float
    exchanges: float  # share of the rounds
    waste: float
    rounds: float
    ended: str = ""  # why a run ended before its last round
    last: float | None = None  # value of the figure of the goal

    @property
    def is_whole(self) -> bool:
        """Whether all rounds were played, and some work counted."""
        return self.seconds < math.inf and not self.ended

    def beats(self, other: "Trial") -> bool:
        """Whether this needs less time or bytes, and not more of the other."""
        mine, its = (self.seconds, self.megabytes), (other.seconds, other.megabytes)
        return mine != its and all(here <= there for here, there in zip(mine, its, strict=True))


Key = tuple[int, str, int]  # combination, scenario, seed
Job = tuple[Sweep, int, SweepScenario, int]
PlayOne = Callable[[Sweep, int, SweepScenario, int], Trial]  # combination, scenario, seed


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep: a trial for each combination and scenario."""

    sweep: Sweep
    trials: tuple[Trial, ...]

    def frontier(self, scenario: str) -> frozenset[int]:
        """Return the combinations that no other one beats on a scenario."""
        there = [each for each in self.trials if each.scenario == scenario and each.is_whole]
        return frozenset(each.combination for each in there if not any(other.beats(each) for other in there))

    @property
    def frontiers(self) -> Mapping[str, frozenset[int]]:
        """The frontier of each scenario."""
        return {each.name: self.frontier(each.name) for each in self.sweep.scenarios}

    @property
    def recommended(self) -> int | None:
        """The number of the recommended combination; None if no run of any has counted a step."""
        score = {at: self._score(at) for at in range(len(self.sweep.combinations))}
        best = min(score, key=score.__getitem__)
        return best if score[best] < math.inf else None

    @property
    def what(self) -> str:
        """What time and bytes are for."""
        goal = self.sweep.goal
        return f"{WORK} local steps in sums" if goal is None else f"{goal.figure} {goal.target:g}"

    @property
    def unadvised(self) -> str:
        """Why no combination is recommended, if none is."""
        end = "its end" if self.sweep.goal is None else "the target"
        return f"No combination is recommended: none reached {end} on every scenario."

    @property
    def last_name(self) -> str:
        """What `last_words` are of."""
        return "work discarded" if self.sweep.goal is None else f"last {self.sweep.goal.figure}"

    def last_words(self, trial: Trial) -> str:
        """Return the last figure of a trial, or the share of its work that was discarded."""
        if self.sweep.goal is None:
            return f"{trial.waste:.1%}"
        return "-" if trial.last is None else f"{trial.last:.4g}"

    def settings(self, combination: int) -> Settings:
        """Return all settings of a combination that the file names."""
        return {**self.sweep.common, **self.sweep.combinations[combination]}

    def _score(self, combination: int) -> float:
        score = 0.0
        for scenario in self.sweep.scenarios:
            there = [each for each in self.trials if each.scenario == scenario.name]
            own = next(each for each in there if each.combination == combination)
            if not own.is_whole:
                return math.inf
            for name in ("seconds", "megabytes"):
                least = min(getattr(each, name) for each in there)
                score += math.log(max(getattr(own, name), 1e-12) / max(least, 1e-12))
        return score


def run_sweep(
    sweep: Sweep,
    past: Callable[[str], PastRun],
    progress: Callable[[int, int], object] = lambda *_: None,
    *,
    workers: int = 1,
    trial: PlayOne | None = None,
    checkpoint: "SweepCheckpoint | None" = None,
) -> Swept:
    """Play every run; `past` returns a recorded run, `progress` hears of (done, total) runs.

    `trial` takes the place of a run without training: (sweep, combination, scenario, seed). Runs that are in
    the checkpoint are not played again.
    """
    known = {each.name: _recorded(past(each.like)) for each in sweep.scenarios if each.like}
    play_one = partial(_keyed, trial or partial(_trial, known))
    jobs = [
        (sweep, at, scenario, seed)
        for at in range(len(sweep.combinations))
        for scenario in sweep.scenarios
        for seed in range(sweep.seeds)
    ]
    found: dict[Key, Trial] = {} if checkpoint is None else dict(checkpoint.trials)
    missing = [job for job in jobs if _key(*job) not in found]

    def gather(played: Iterable[tuple[Key, Trial]]) -> None:
        progress(len(found), len(jobs))
        for key, one in played:
            found[key] = one
            if checkpoint is not None:
                checkpoint.add(key, one)
            progress(len(found), len(jobs))

    if workers == 1 or len(jobs) < SHORT:
        gather(map(play_one, missing))
    else:
        with Processes(workers) as pool:
            futures = [pool.submit(play_one, job) for job in missing]
            gather(each.result() for each in as_completed(futures))
    order = [(at, each.name) for each in sweep.scenarios for at in range(len(sweep.combinations))]
    return Swept(sweep, tuple(_mean([found[*each, seed] for seed in range(sweep.seeds)]) for each in order))


def _key(_: Sweep, at: int, scenario: SweepScenario, seed: int) -> Key:
    return at, scenario.name, seed


def _keyed(play_one: PlayOne, job: Job) -> tuple[Key, Trial]:
    return _key(*job), play_one(*job)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The clients of a recorded run, and the size of its model."""

    clients: PastClients
    numbers: int


def _recorded(past: PastRun) -> _Recorded:
    if not any(row.outcome in SUMMED for row in past.rounds):
        seen = f"{len(past.rounds)} rounds, none of them with an exchange" if past.rounds else "no rounds"
        raise Unusable(f"run {past.name}: saw {seen}, needed one exchange")
    return _Recorded(rebuilt(past.rounds, past.numbers, past.config.grace_s), past.numbers)


def _trial(
    known: Mapping[str, _Recorded], sweep: Sweep, at: int, scenario: SweepScenario, seed: int
) -> Trial:
    """Play one run."""
    recorded = known.get(scenario.name)
    config = sweep.config(sweep.combinations[at], seed)
    clients, line = _modelled(sweep, scenario, config, seed) if recorded is None else _past(recorded, config)
    there = sum(at_s == 0 for at_s in clients.arrives_s) if clients.arrives_s else len(clients.names)
    played = play(replace(config, min_clients=there), clients, sweep.rounds, line=line)
    rows, work = played.rows, _steps(played.rows, config) / WORK
    sent = (played.up + played.down) * FLOAT_BYTES * clients.numbers / MEGABYTE
    return Trial(
        at,
        scenario.name,
        sum(map(seconds_of, rows)) / work if work else math.inf,
        sent / work if work else math.inf,
        fmean(row.outcome in SUMMED for row in rows) if rows else 0.0,
        waste_of(rows, local=config.work == "local"),
        len(rows),
        "" if len(rows) == sweep.rounds else played.ended,
    )


def _steps(rows: Sequence[RoundRow], config: RunConfig) -> int:
    """Return the local steps in sums, of each client at most those of the rounds since the last exchange."""
    steps = rounds = 0
    for row in rows:
        rounds += 1
        if row.outcome not in SUMMED:
            continue
        due, rounds = rounds * config.round_steps, 0
        if config.work == "coded":
            steps += due * (row.chunks - len(row.short))
        else:
            steps += sum(min(each.counted, due) for each in row.clients)
    return steps


def _past(recorded: _Recorded, config: RunConfig) -> tuple[TimedClients, Line]:
    past = recorded.clients
    model = past.model(config.round_steps, config.chunks)
    arrives_s = tuple(past.arrives_s_w.tolist())
    line = Line(slots=config.slots_for(config.update_bytes(recorded.numbers)))
    return TimedClients(past.names, model, recorded.numbers, config.chunks, arrives_s), line


def _modelled(
    sweep: Sweep, scenario: SweepScenario, config: RunConfig, seed: int
) -> tuple[TimedClients, Line]:
    request = replace(scenario.request, seed=seed)
    rounds = scaled(request.scenario(), scenario, config)
    model = ClientModel(lambda number: rounds[min(number, len(rounds)) - 1], [1.0] * max(1, config.chunks))
    names = tuple(f"client {w}" for w in range(rounds[0].clients))
    clients = TimedClients(names, model, int(sweep.model_mb * MEGABYTE / FLOAT_BYTES), config.chunks)
    return clients, replace(request.line, slots=config.slots_for(config.update_bytes(clients.numbers)))


def scaled(rounds: Scenario, scenario: SweepScenario, config: RunConfig) -> Scenario:
    """Return the rounds in units of a round's local steps; a client that dies is back after a time."""
    factor = config.round_steps / scenario.unit_steps
    return tuple(
        replace(
            each,
            pace_wk=each.pace_wk * factor,
            slice_units=each.slice_units / factor,
            returns_s_w=each.dies_s_w + scenario.returns_s,
        )
        for each in rounds
    )


def _mean(trials: Sequence[Trial]) -> Trial:
    """Return the means over seeds."""
    first = trials[0]
    means = {
        name: fmean(getattr(each, name) for each in trials)
        for name in ("seconds", "megabytes", "exchanges", "waste", "rounds")
    }
    ended = next((each.ended for each in trials if each.ended), "")
    lasts = [each.last for each in trials if each.last is not None]
    last = fmean(lasts) if lasts else None
    return Trial(first.combination, first.scenario, **means, ended=ended, last=last)
