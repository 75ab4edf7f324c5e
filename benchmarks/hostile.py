"""Final accuracy and time with hostile clients, by aggregation rule and attack; the cost of rules without.

Digits, dealt at random. The first clients are hostile; what they send is made from what they would have sent.
Training runs the serving code under simulated time (`fedgc.sim.training`), so each rule gets the same updates
in the same order. `none` is the run in which all clients are honest.

No rule can tell a hostile client from an honest one with unusual data by its update alone. So each rule is
also run with honest clients and uneven data, beside the weighted mean:

    own labels       one client has all samples of two labels
    shards           two shards of the samples sorted by label for each client (arXiv 1602.05629)
    half             one client has half of the samples

    flip, flip x3    the update times -1, -3
    scale            the update times 10^6
    constant         3e38 in each coordinate
    noise, fixed     a random direction, new in each round or always the same, ten times as long
    zeros            nothing
    labels           trained on labels 9 - y (Fang et al., USENIX Security 2020)
    alie             the honest mean less 1.5 standard deviations of each coordinate (Baruch et al., 2019)
    inner product    the honest mean times -0.5 (Xie et al., 2019)
    samples          noise, and 10^15 samples announced
    mute             reports its steps and never sends its update
    turn             the honest mean times 5 in the first half of the run, then times -5

The default rule, `auto`, also evaluates models without outliers. `bounded-mean` is the same rule without
these evaluations.
"""

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.images import images
from benchmarks.report import Figure, Report, Value, machine
from benchmarks.scene import LINK_S, read
from fedgc.aggregators import BOUNDED
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.messages import Repair, Reveal
from fedgc.sim.clock import NEVER, Finding, Scenario, working
from fedgc.sim.fleet import Fleet as Clients
from fedgc.sim.training import Job, train
from fedgc.training import Vector
from fedgc.training.tasks import Task
from fedgc.training.tasks.partition import shards

NOISE: Final = 10.0
CLAIMED: Final = 10**15  # samples
SPREADS: Final = 1.5
SHORT: Final = -0.5
LONG: Final = 5.0
FLEETS: Final = ((4, 1), (8, 2))  # clients, hostile ones
RULES: Final = ("auto", "bounded-mean", "weighted-mean", "trimmed-mean", "median", "multi-krum")
OPTIONS: Final[Mapping[str, str]] = {"trimmed-mean": "trim=0.25", "multi-krum": "f=2"}
NEEDS: Final[Mapping[str, int]] = {"multi-krum": 7}  # clients
UNEVEN: Final = ("own labels", "shards", "half")
OWN: Final = 2  # labels that one client alone has
ROUNDS: Final = 40

Send = Callable[["_Hostile", Vector, Reveal], Vector]


def _long_noise(update: Vector, rng: np.random.Generator) -> Vector:
    length = NOISE * float(np.linalg.norm(update)) / math.sqrt(update.size)
    return (length * rng.standard_normal(update.size)).astype(np.float32)


def _against(
    engines: "_Hostile", command: Reveal, combine: Callable[[NDArray[np.float32]], Vector]
) -> Vector:
    return combine(np.stack([engines.honest(w, command) for w in range(engines.hostile, engines.clients)]))


ATTACKS: Final[Mapping[str, Send]] = {
    "none": lambda _e, update, _c: update,
    "flip": lambda _e, update, _c: -update,
    "flip x3": lambda _e, update, _c: -3 * update,
    "scale": lambda _e, update, _c: update * np.float32(1e6),
    "constant": lambda _e, update, _c: np.full_like(update, 3e38),
    "noise": lambda _e, update, command: _long_noise(update, np.random.default_rng(command.round)),
    "fixed": lambda _e, update, _c: _long_noise(update, np.random.default_rng(0)),
    "zeros": lambda _e, update, _c: np.zeros_like(update),
    "labels": lambda _e, update, _c: update,
    "alie": lambda engines, _u, command: _against(
        engines, command, lambda all_u: all_u.mean(axis=0) - np.float32(SPREADS) * all_u.std(axis=0)
    ),
    "inner product": lambda engines, _u, command: _against(
        engines, command, lambda all_u: np.float32(SHORT) * all_u.mean(axis=0)
    ),
    "samples": lambda _e, update, command: _long_noise(update, np.random.default_rng(command.round)),
    "mute": lambda _e, update, _c: update,
    "turn": lambda engines, _u, command: _against(
        engines,
        command,
        lambda all_u: np.float32(LONG if command.round <= ROUNDS // 2 else -LONG) * all_u.mean(axis=0),
    ),
}


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many clients there are, how many of them are hostile, and what those do."""

    clients: int
    hostile: int
    attack: str
    data: str = "random"


class _Hostile(Clients):
    """Engines of which the first few send something else than they have trained."""

    def __init__(self, job: Job, folder: Path, fleet: Fleet) -> None:
        super().__init__(replace(job, task=_task(fleet, job.config.seed)), folder, 0)  # no codec
        self._claims = fleet.attack == "samples"
        self.clients, self.hostile = fleet.clients, fleet.hostile
        self._attack = ATTACKS[fleet.attack]

    def honest(self, w: int, command: Reveal) -> Vector:
        """Return what a client has trained."""
        return super().sent(replace(command, client=f"client {w}"))

    def reached(self, client: str, steps: int) -> Finding:
        found = super().reached(client, steps)
        return replace(found, samples=CLAIMED) if self._claims and self._is_hostile(client) else found

    def _is_hostile(self, client: str) -> bool:
        return int(client.split()[1]) < self.hostile

    def sent(self, command: Reveal | Repair) -> Vector:
        update = super().sent(command)
        if isinstance(command, Repair) or not self._is_hostile(command.client):
            return update
        return self._attack(self, update, command)


def _task(fleet: Fleet, seed: int) -> Task:
    table, rng = read(None), np.random.default_rng([seed, 1])
    shares = _shares(fleet, table.labels, rng)
    labels = table.labels.copy()
    if fleet.attack == "labels":
        for share in shares[: fleet.hostile]:
            labels[share] = labels.max() - labels[share]
    rows = {f"chunk {w:04}": share for w, share in enumerate(shares)}
    return images(replace(table.images, labels=labels), rows, model="mlp", optimizer="sgd")


def _shares(fleet: Fleet, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Return the samples of every client."""
    dealt = rng.permutation(len(labels))
    if fleet.data == "own labels":
        own = labels[dealt] < OWN
        return [dealt[own], *np.array_split(dealt[~own], fleet.clients - 1)]
    if fleet.data == "shards":
        return list(shards(labels, fleet.clients, 2, rng))
    if fleet.data == "half":
        middle = len(dealt) // 2
        return [dealt[:middle], *np.array_split(dealt[middle:], fleet.clients - 1)]
    return np.array_split(dealt, fleet.clients)


def _announced(task: Task, fleet: Fleet) -> Task:
    """Return the task as clients announce it."""
    hostile = list(task.sizes())[: fleet.hostile if fleet.attack == "samples" else 0]
    return replace(task, chunks={**task.sizes(), **dict.fromkeys(hostile, CLAIMED)})


def _scenario(fleet: Fleet, rounds: int) -> Scenario:
    up_s = np.full(fleet.clients, LINK_S)
    if fleet.attack == "mute":
        up_s[: fleet.hostile] = NEVER
    return (working(np.ones((fleet.clients, 1)), up_s=up_s, down_s=LINK_S),) * rounds


def _run(fleet: Fleet, rule: str, rounds: int, seed: int) -> tuple[float, float]:
    """Return the final accuracy and the simulated seconds; a run that fails ends with accuracy 0."""
    config = RunConfig(
        rounds=rounds, seed=seed, gate="every", min_clients=fleet.clients,
        aggregator=rule, aggregator_options=OPTIONS.get(rule, ""),
        check_outliers="off" if rule == BOUNDED else "auto",
    )  # fmt: skip
    job = Job(
        _announced(_task(fleet, seed), fleet),
        config,
        _scenario(fleet, rounds),
        engines=lambda job, at: _Hostile(job, at, fleet),
    )
    try:
        last = train(job).points[-1]
    except EdgeFailed:  # the model is not finite any more
        return 0.0, math.inf
    return last.metrics.get("accuracy", 0.0), last.seconds


@dataclass(frozen=True, slots=True)
class _Case:
    """One training run."""

    fleet: Fleet
    rule: str
    rounds: int
    seed: int


def _play(case: _Case) -> tuple[float, float]:
    import torch

    torch.set_num_threads(1)
    with np.errstate(all="ignore"):  # hostile numbers overflow
        return _run(case.fleet, case.rule, case.rounds, case.seed)


def _cases(attacks: Sequence[str], rules: Sequence[str], rounds: int, seeds: int) -> Iterator[_Case]:
    for clients, hostile in FLEETS:
        attacked = [Fleet(clients, hostile, attack) for attack in attacks]
        honest = [Fleet(clients, 0, "none", data) for data in UNEVEN]
        for rule in rules:
            if clients >= NEEDS.get(rule, 0):
                for fleet in (*attacked, *honest):
                    yield from (_Case(fleet, rule, rounds, seed) for seed in range(seeds))


def _beside(case: _Case) -> _Case:
    """Return the case that another one is compared with."""
    if case.fleet.data != "random":
        return replace(case, rule="weighted-mean")
    return replace(case, fleet=replace(case.fleet, attack="none"))


def _rows(
    attacks: Sequence[str], rules: Sequence[str], rounds: int, seeds: int
) -> Iterator[dict[str, Value]]:
    cases = list(_cases(attacks, rules, rounds, seeds))
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        found = dict(zip(cases, pool.map(_play, cases), strict=True))
    for first in (case for case in cases if case.seed == 0):
        of_seeds = [replace(first, seed=seed) for seed in range(seeds)]
        pairs = [(found[_beside(each)], found[each]) for each in of_seeds]
        lost = [100 * (fair - seen) for (fair, _), (seen, _) in pairs]
        slower = [seen / fair for (_, fair), (_, seen) in pairs]
        yield {
            "clients": first.fleet.clients, "hostile": first.fleet.hostile, "data": first.fleet.data,
            "rule": first.rule, "attack": first.fleet.attack, "rounds": rounds,
            "accuracy": float(np.mean([found[each][0] for each in of_seeds])),
            "lost_points": float(np.mean(lost)), "lost_points_worst_seed": max(lost),
            "time_ratio": float(np.mean(slower)),
        }  # fmt: skip


def bench_hostile(*, quick: bool) -> Report:
    """Return the accuracy by rule and attack, the cost for honest clients, and the worst of the default."""
    attacks = ("none", "flip x3", "scale", "samples", "mute") if quick else tuple(ATTACKS)
    rules = ("auto", "weighted-mean") if quick else RULES
    rounds, seeds = (ROUNDS // 2, 1) if quick else (ROUNDS, 3)
    rows = list(_rows(attacks, rules, rounds, seeds))

    def worst(column: str, rule: str, clients: int, data: Collection[str] = ("random",)) -> float:
        return max(
            float(row[column] or 0.0)
            for row in rows
            if (row["rule"], row["clients"]) == (rule, clients) and row["data"] in data
        )

    figures: dict[str, Figure] = {
        "worst_accuracy_loss_points": worst("lost_points", "auto", 4),
        "worst_accuracy_loss_points_2_of_8": worst("lost_points", "auto", 8),
        "worst_time_ratio": max(worst("time_ratio", "auto", clients) for clients, _ in FLEETS),
        "worst_accuracy_loss_points_weighted_mean": worst("lost_points", "weighted-mean", 4),
    }
    if not quick:
        for clients, of in FLEETS:
            figures[f"worst_accuracy_loss_points_{of}_of_{clients}_unchecked"] = worst(
                "lost_points", BOUNDED, clients
            )
    for rule in rules:
        if rule != "weighted-mean":
            figures[f"honest_cost_points_{rule.replace('-', '_')}"] = max(
                worst("lost_points", rule, clients, UNEVEN)
                for clients, _ in FLEETS
                if clients >= NEEDS.get(rule, 0)
            )
    if not quick:
        figures["worst_accuracy_loss_points_2_of_8_trimmed_mean"] = worst("lost_points", "trimmed-mean", 8)
    worst_first = sorted(rows, key=lambda row: -float(row["lost_points"] or 0.0))
    return Report(figures, worst_first, machine(), range(seeds))
