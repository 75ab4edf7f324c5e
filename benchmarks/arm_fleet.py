"""The simulated clients of fedgc with an arm's local steps: a rule, a stream of data, a quicker loss.

All clients of a run are trained as one batch of models, by the code that serves `fedgc sim --train --stack`.

    train(Job(task, config, scenario, engines=partial(ArmFleet, extras=Extras(rule=rule))))
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.local_rules import LocalSteps, client_of
from benchmarks.streams import Stream
from fedgc.config import RunConfig
from fedgc.messages import Work
from fedgc.sim.fleet import Fleet, Trajectory
from fedgc.sim.training import Job
from fedgc.sim.workers import Stacked
from fedgc.training.client_file import Extent
from fedgc.training.data import Rows, Samples, batch_rows
from fedgc.training.flat import Vector
from fedgc.training.model_stack import Batch, Change
from fedgc.training.randomness import key
from fedgc.training.stacked import StackedTrainer
from fedgc.training.tasks import Task

Losses = Callable[[Sequence[Tensor], tuple[Tensor, ...]], Tensor]  # parameters and batches, models first


@dataclass(frozen=True, slots=True)
class Extras:
    """What a run has beside task and settings; `losses` computes those of a stack quicker than vmap."""

    stream: Stream | None = None
    rule: LocalSteps = field(default_factory=LocalSteps)
    losses: Losses | None = None


NO_EXTRAS: Final = Extras()


class ArmFleet(Fleet):
    """The clients of a run, whose updates the rule may change."""

    def __init__(self, job: Job, folder: Path, extras: Extras = NO_EXTRAS) -> None:
        """The model has no buffers."""
        trainer = ArmTrainer(job.task, job.config, folder, extras)
        super().__init__(job, folder, 0, Stacked(trainer, job.scenario[0].clients))
        self._rule = extras.rule

    def load(self, version: int, model: Vector, in_transit: Collection[int] = ()) -> None:
        """Store the new common model."""
        super().load(version, model, in_transit)
        self._rule.loaded()

    def update(self, path: Trajectory, kept: Extent) -> Vector:
        """Return the update of a client by the rule."""
        return self._rule.sent(path.work, super().update(path, kept), path.reached)


class ArmTrainer(StackedTrainer):
    """Trains clients by a rule, on a stream."""

    def __init__(self, task: Task, config: RunConfig, folder: Path, extras: Extras) -> None:
        super().__init__(task, config, folder)
        self._extras = extras

    def losses(self, tensors: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the loss of each client."""
        if self._extras.losses is None:
            return super().losses(tensors, batch)
        return self._extras.losses(tuple(tensors.values()), batch)

    def batches_of(self, work: Work, steps: range) -> tuple[Samples, Sequence[Rows]]:
        """Return batches of what a client sees at these steps."""
        stream = self._extras.stream
        if stream is None:
            return super().batches_of(work, steps)
        samples, _ = super().batches_of(work, range(0))
        return samples, [self._seen(stream, work, at) for at in steps]

    def _seen(self, stream: Stream, work: Work, at: int) -> Rows:
        seen, order = stream.window(client_of(work), at), key(work.seed, work.client, "order")
        return seen.first + batch_rows(seen.last - seen.first, self._trainer.config.batch_size, at, order)

    def change(self, works: Sequence[Work]) -> Change | None:
        """Return what the rule changes in the gradients of these clients."""
        rule = self._extras.rule
        changes = _Changes(
            rule.proximal,
            self._cut([self._states.model(each.version) for each in works]) if rule.proximal else (),
            self._filled([rule.offset(each) for each in works], 0.0),
            self._filled([rule.trained(each) for each in works], 1.0),
        )
        return changes if rule.proximal or changes.offsets or changes.masks else None

    def _filled(self, vectors: Sequence[Vector | None], usual: float) -> Sequence[Tensor]:
        """Return the vectors of all clients, `usual` where there is none; nothing if all are missing."""
        filled = np.full(self._trainer.flat.size, usual, np.float32)
        given = any(each is not None for each in vectors)
        return self._cut([filled if each is None else each for each in vectors]) if given else ()

    def _cut(self, vectors: Sequence[Vector]) -> list[Tensor]:
        """Return tensors of the shapes of the parameters, with the clients along the first dimension."""
        parameters = self._trainer.flat.trainable
        parts = torch.split(torch.from_numpy(np.stack(vectors)), [each.numel() for each in parameters], dim=1)
        return [part.view(-1, *each.shape) for part, each in zip(parts, parameters, strict=True)]


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes of a rule to the gradients of a stack."""

    proximal: float
    starts: Sequence[Tensor]
    offsets: Sequence[Tensor]
    masks: Sequence[Tensor]

    @torch.no_grad()
    def __call__(self, weights: Sequence[Tensor]) -> None:
        """Change the gradients of the clients that are left, which are the first."""
        for at, weight in enumerate(weights):
            gradient, count = weight.grad, len(weight)
            if gradient is None:
                continue
            if self.starts:
                gradient = gradient + self.proximal * (weight - self.starts[at][:count])
            if self.offsets:
                gradient = gradient + self.offsets[at][:count]
            if self.masks:
                gradient = gradient * self.masks[at][:count]
            weight.grad = gradient
