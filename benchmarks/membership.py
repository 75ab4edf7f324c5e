"""Membership inference against a small model, without privacy and with privacy of records.

The attack is LiRA (Carlini et al., "Membership inference attacks from first principles", arXiv 2112.03570),
online: of many models, each trained on a random half of the records by the code of clients, each is attacked
in turn with all others as shadow models. For each record, the logit of its label's probability is compared
with two Gaussians, fitted to the shadow models with and without the record; their variances are those over
all records. A record is taken for a member if the first is likelier, so nothing is tuned on the answers. The
balanced accuracy of guessing is one half. The attacker knows all data but who is in, and half of it is.
"""

import os
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fedgc.config import RunConfig
from fedgc.training.tasks import Task
from fedgc.training.trainer import LocalStep, Trainer

RECORDS: Final = 1200
BATCH: Final = 100
STEPS: Final = 600
INPUTS: Final = 20
WRONG: Final = 0.2  # of the labels, which a model can only know by heart
HIDDEN: Final = 128
RATE: Final = 5e-3
DELTA: Final = 1e-5
CLIP: Final = 1.0
EDGE: Final = 1e-6  # of a probability

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Attacked:
    """How well members are told from others, and how good the models are on records of neither."""

    balanced_accuracy: float
    model_accuracy: float
    epsilon: float  # infinite without privacy


def attack(epsilon: float, models: int) -> Attacked:
    """Return the result of the attack on so many models; `epsilon` 0: without privacy."""
    inputs, labels, truth = _records()
    members = halves(models)
    scores, right = np.empty(members.shape), 0.0
    for model, chosen in enumerate(members):
        rows = torch.from_numpy(np.flatnonzero(chosen))
        trained, spent = _trained(inputs[rows], labels[rows], epsilon, model)
        with torch.no_grad():
            found = trained(inputs).double().softmax(1)
        at_label = found[torch.arange(RECORDS), labels[:RECORDS]].clamp(EDGE, 1 - EDGE)
        scores[model] = at_label.logit().numpy()
        right += float((found[RECORDS:].argmax(1) == truth[RECORDS:]).double().mean())
    said = guesses(scores, members)
    balanced = float((said[members].mean() + (~said[~members]).mean()) / 2)
    return Attacked(balanced, right / models, spent)


def _records() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs, labels of which some are wrong, and the right ones; the last half is in no model."""
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(2 * RECORDS, INPUTS, generator=made)
    truth = (inputs @ torch.randn(INPUTS, generator=made) > 0).long()
    wrong = torch.rand(2 * RECORDS, generator=made) < WRONG
    return inputs, truth ^ wrong.long(), truth


def halves(models: int) -> Flags:
    """Return who is in the data of each model: each record in one half of the models."""
    rng = np.random.default_rng(1)
    half = np.arange(models) < models // 2
    return np.stack([rng.permutation(half) for _ in range(RECORDS)], axis=1)


def _trained(
    inputs: torch.Tensor, labels: torch.Tensor, epsilon: float, seed: int
) -> tuple[torch.nn.Module, float]:
    """Return a model that a client has trained, and the epsilon that it has spent."""
    task = Task(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 2)
        ),
        chunks={"all": len(inputs)},
        load=lambda _: (inputs, labels),
        loss=lambda module, batch: torch.nn.functional.cross_entropy(module(batch[0]), batch[1]),
        optimizer=lambda parameters, rate: torch.optim.Adam(parameters, rate),
    )
    common: dict[str, Any] = {
        "batch_size": BATCH,
        "local_steps": STEPS,
        "rounds": 1,
        "learning_rate": RATE,
        "seed": seed,
    }
    private: dict[str, Any] = {
        "privacy_unit": "record",
        "privacy_epsilon": epsilon,
        "privacy_delta": DELTA,
        "privacy_clip": CLIP,
    }
    config = RunConfig(**common, **(private if epsilon else {}), device="cpu", gate="every")
    trainer = Trainer(task, config)
    if epsilon:
        trainer.protect(os.urandom)
    trainer.load(("all",))
    for step in range(STEPS):
        trainer.step(("all",), LocalStep((seed, "all"), step))
    spent = trainer.records.epsilon if trainer.records else float("inf")
    return trainer.flat.module.eval(), spent


def guesses(scores: Numbers, members: Flags) -> Flags:
    """Return for each model and record whether the attacker takes it for a member, by all other models."""
    said = np.empty(members.shape, np.bool_)
    for target in range(len(scores)):
        others = np.arange(len(scores)) != target
        (inside, within), (outside, without) = (
            _fitted(scores[others], chosen) for chosen in (members[others], ~members[others])
        )
        likelihoods = (
            -((scores[target] - mean) ** 2) / (2 * variance) - np.log(variance) / 2
            for mean, variance in ((inside, within), (outside, without))
        )
        of_member, of_other = likelihoods
        said[target] = of_member > of_other
    return said


def _fitted(scores: Numbers, chosen: Flags) -> tuple[Numbers, float]:
    """Return the mean score of each record over the chosen models, and the variance around it."""
    count = chosen.sum(0)
    mean = np.where(chosen, scores, 0).sum(0) / count
    squares = np.where(chosen, (scores - mean) ** 2, 0).sum() / max(1, chosen.sum() - len(count))
    return mean, float(squares) + EDGE
