"""Accuracy with client-level privacy, beside Flower's at equal epsilon; the accountant's error; an attack.

Digits on a linear model, dealt at random to clients of which the largest has seven times the samples of the
smallest. Training runs the serving code under simulated time (`fedgc.sim.training`). Arms:

    fixed, adaptive   fedgc's noised mean of equally weighted updates; the clip is fixed or follows the median
    flower            DifferentialPrivacyServerSideFixedClipping: clipped updates weighted by samples, and
                      noise on the mean. Its sensitivity is the clip times the largest weight, so its noise
                      multiplier is set to what makes the same epsilon true
    none              FedAvg without clip and noise

Each arm has the clip of `CLIPS` that was best on a seed that is not reported. The attack on models that were
trained with and without privacy of records is that of `membership`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.images import images
from benchmarks.membership import attack
from benchmarks.report import Figure, Report, Value, machine
from benchmarks.scene import LINK_S, read
from fedgc.config import RunConfig
from fedgc.messages import Repair, Reveal
from fedgc.secagg.privacy import epsilon, noise_for
from fedgc.sim.clock import Finding, working
from fedgc.sim.fleet import Fleet as Clients
from fedgc.sim.training import Job, train
from fedgc.training import Vector
from fedgc.training.tasks import Task

CLIENTS: Final = 40
UNEVEN: Final = 7  # the largest over the smallest
EPSILONS: Final = (4.0, 16.0)
DELTA: Final = 1e-6
CLIPS: Final = (0.1, 0.3, 1.0)
ARMS: Final = ("fixed", "adaptive", "flower")
TUNED_ON: Final = 1000  # the seed that chooses clips
MODELS: Final = 32  # that are attacked
ATTACKED_AT: Final = 2.0  # epsilon of the private ones
CHECKED: Final = ((1.0, 1), (4.0, 100), (8.0, 300))  # noise, exchanges


@dataclass(frozen=True, slots=True)
class Case:
    """One training run; `epsilon` infinite: no privacy."""

    arm: str
    epsilon: float
    clip: float
    rounds: int
    seed: int


class _Flower(Clients):
    """Engines whose updates are clipped; the first one's carries the noise of the mean."""

    def __init__(self, job: Job, folder: Path, case: Case) -> None:
        super().__init__(job, folder, 0)  # no codec rounds the buffers
        self._case, self._samples = case, dict[str, int]()
        self._rng = np.random.default_rng([case.seed, 2])

    def reached(self, client: str, steps: int) -> Finding:
        found = super().reached(client, steps)
        self._samples[client] = found.samples
        return found

    def sent(self, command: Reveal | Repair) -> Vector:
        update = super().sent(command)
        clip = self._case.clip
        update = update * np.float32(min(1.0, clip / max(float(np.linalg.norm(update)), 1e-12)))
        if command.client != "client 0":
            return update
        deviation = carried_noise(self._case, self._samples, command.client)
        return update + (deviation * self._rng.standard_normal(update.size)).astype(np.float32)


def carried_noise(case: Case, samples: Mapping[str, int], client: str) -> float:
    """Return the deviation of noise in the update of one client that gives their mean the noise it needs.

    >>> case, samples = Case("flower", 8.0, 0.5, 10, 0), {"a": 10, "b": 30}
    >>> of_mean = carried_noise(case, samples, "a") * 10 / 40
    >>> round(of_mean / (0.5 * 30 / 40), 6) == round(noise_for(8.0, 10, DELTA), 6)
    True
    """
    return noise_for(case.epsilon, case.rounds, DELTA) * case.clip * max(samples.values()) / samples[client]


def task_of(seed: int) -> Task:
    """Return digits with one chunk of its own size for each client."""
    import torch

    table, rng = read(None), np.random.default_rng([seed, 1])
    sizes = np.linspace(1, UNEVEN, CLIENTS)
    borders = np.rint(np.cumsum(sizes) / sizes.sum() * len(table.labels)).astype(int)[:-1]
    shares = np.split(rng.permutation(len(table.labels)), borders)
    rows = {f"chunk {w:04}": share for w, share in enumerate(shares)}
    made = images(table.images, rows, model="mlp", optimizer="sgd")
    side, classes = table.images.inputs.shape[1], int(table.labels.max()) + 1
    return replace(
        made,
        model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(side * side, classes)),
    )


def accuracy_of(case: Case) -> float:
    """Return the accuracy of the last model."""
    own: dict[str, Any] = {"aggregator": "weighted-mean", "largest_share": 1.0, "shared_momentum": "off"}
    if case.arm in ("fixed", "adaptive"):
        own = {
            "privacy_epsilon": case.epsilon, "privacy_delta": DELTA, "privacy_clip": case.clip,
            "privacy_clip_quantile": 0.5 if case.arm == "adaptive" else 0.0,
        }  # fmt: skip
    config = RunConfig(
        rounds=case.rounds, seed=case.seed, gate="every", min_clients=CLIENTS, quorum=1.0, **own
    )
    scenario = (working(np.ones((CLIENTS, 1)), up_s=np.full(CLIENTS, LINK_S), down_s=LINK_S),) * case.rounds
    engines = (lambda job, at: _Flower(job, at, case)) if case.arm == "flower" else None
    return float(
        train(Job(task_of(case.seed), config, scenario, engines=engines)).points[-1].metrics["accuracy"]
    )


def epsilon_error() -> float:
    """Return the largest relative difference to the accountant of `dp-accounting`."""
    from dp_accounting.privacy_loss_distribution import PrivacyLossDistribution

    errors: list[float] = []
    for noise, exchanges in CHECKED:
        one = PrivacyLossDistribution.from_gaussian_mechanism(noise, value_discretization_interval=2e-4)
        other = one.self_compose(exchanges).get_epsilon_for_delta(DELTA)
        errors.append(abs(epsilon(noise, exchanges, DELTA) / other - 1))
    return max(errors)


def _rows(epsilons: Sequence[float], rounds: int, seeds: int) -> list[dict[str, Value]]:
    rows: list[dict[str, Value]] = []
    for budget in epsilons:
        for arm in ARMS:
            tried = [Case(arm, budget, clip, rounds, TUNED_ON) for clip in CLIPS]
            best = max(tried, key=accuracy_of)
            found = [accuracy_of(replace(best, seed=seed)) for seed in range(seeds)]
            rows.append(_row(best, found))
    plain = Case("none", math.inf, 0.0, rounds, 0)
    rows.append(_row(plain, [accuracy_of(replace(plain, seed=seed)) for seed in range(seeds)]))
    return rows


def _row(case: Case, found: Sequence[float]) -> dict[str, Value]:
    return {
        "arm": case.arm, "epsilon": case.epsilon, "clip": case.clip, "clients": CLIENTS,
        "rounds": case.rounds,
        "accuracy": float(np.mean(found)), "least": min(found), "most": max(found),
    }  # fmt: skip


def bench_privacy(*, quick: bool) -> Report:
    """Return accuracies by arm and epsilon; the figures are those of the least favorable epsilon."""
    epsilons, rounds, seeds = (EPSILONS[1:], 5, 1) if quick else (EPSILONS, 10, 3)
    rows = _rows(epsilons, rounds, seeds)
    plain, private = (attack(each, 8 if quick else MODELS) for each in (0.0, ATTACKED_AT))

    def accuracy(arm: str, budget: float) -> float:
        return next(
            float(row["accuracy"] or 0) for row in rows if (row["arm"], row["epsilon"]) == (arm, budget)
        )

    def gain(arm: str) -> float:
        return min(100 * (accuracy(arm, each) - accuracy("flower", each)) for each in epsilons)

    figures: dict[str, Figure] = {
        "accuracy_over_flower_dp_points": gain("fixed"),
        "accuracy_over_flower_dp_points_adaptive": gain("adaptive"),
        "accuracy_cost_points": 100
        * (accuracy("none", math.inf) - min(accuracy("fixed", e) for e in epsilons)),
        "epsilon_error": epsilon_error(),
        "membership_percent": 100 * plain.balanced_accuracy,
        "membership_percent_private": 100 * private.balanced_accuracy,
        "membership_epsilon": private.epsilon,
        "attacked_model_accuracy": plain.model_accuracy,
        "attacked_model_accuracy_private": private.model_accuracy,
    }
    losses_first = sorted(rows, key=lambda row: float(row["accuracy"] or 0))
    return Report(figures, losses_first, machine(), range(seeds))
