"""Local work of a whole fleet as one batch of models, equivalent to one engine for each client but faster.

A client's trajectory from a common model depends only on the model, the momentum, its data and the indices of
its steps; the clock decides when it stops. When one client's result is needed, all clients with work advance
by as many steps, as one batch of models (`torch.func.vmap`). Each step is stored, for clients that stop
there. A trajectory ends with its common model, or with its client.

It supports models without randomness and running statistics, on tensors, with batches of one size; others are
refused. Tests compare it with an engine for each client, up to rounding.
"""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from benchmarks.local_rules import LocalSteps
from benchmarks.streams import Stream
from fedgc.codecs import EXACT, make_codec
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.messages import LARGEST_AMOUNT, Continue, Repair, Reveal, Work
from fedgc.sim.clock import Finding
from fedgc.sim.fleet import MODELS_KEPT
from fedgc.sim.training import Job
from fedgc.training.data import Rows, batch_rows
from fedgc.training.flat import FlatModel, Vector
from fedgc.training.injection import injected_rows, pool_chunks
from fedgc.training.local_update import Residual, with_error_feedback
from fedgc.training.randomness import key
from fedgc.training.shared_momentum import lead_of, led_share, squared_distance
from fedgc.training.tasks import Task
from fedgc.training.trainer import initial_model
from fedgc.training.update import update_of

CHANCE: Final = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


@dataclass(slots=True)
class Trajectory:
    """One client's trajectory since its common model: its stopped steps, and the steps computed ahead."""

    work: Work
    target: int
    samples: int
    start: Vector
    lead: Vector | None
    front: int = 0  # last computed step
    optimizer: Mapping[str, Any] | None = None  # its state at the front
    ends: dict[int, Vector] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=lambda: {0: 0.0})  # sums
    led: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    gradients: dict[int, float] = field(default_factory=lambda: {0: 0.0})  # squared norms

    def settle(self, steps: int) -> None:
        """Discard earlier steps."""
        for known in (self.ends, self.losses, self.led, self.gradients):
            for step in [each for each in known if each < steps]:
                del known[step]


Losses = Callable[[Sequence[Tensor], tuple[Tensor, ...]], Tensor]  # parameters and batches, models first


@dataclass(frozen=True, slots=True)
class Extras:
    """What a run has beside task and settings; `losses` computes those of a stack quicker than vmap."""

    stream: Stream | None = None
    rule: LocalSteps = field(default_factory=LocalSteps)
    losses: Losses | None = None


NO_EXTRAS: Final = Extras()


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes of a rule to the gradients of a stack."""

    proximal: float
    starts: Sequence[Tensor]
    offsets: Sequence[Tensor]
    masks: Sequence[Tensor]

    def __call__(self, gradients: Sequence[Tensor], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the gradients of a step from these parameters."""
        if self.starts:
            apart = zip(gradients, tensors, self.starts, strict=True)
            gradients = [gradient + self.proximal * (now - start) for gradient, now, start in apart]
        if self.offsets:
            gradients = [each + offset for each, offset in zip(gradients, self.offsets, strict=True)]
        if self.masks:
            gradients = [each * mask for each, mask in zip(gradients, self.masks, strict=True)]
        return gradients


class Stacked:
    """The engines of a fleet with local work, as one batch."""

    def __init__(self, task: Task, config: RunConfig, extras: Extras = NO_EXTRAS) -> None:
        self._task, self._config, self._extras = task, config, extras
        if config.threads:
            torch.set_num_threads(config.threads)
        made = initial_model(task, config)
        _check(made)
        self._module, self._shapes = made.module.train(), [each.shape for each in made.trainable]
        self._names = [name for name, _ in made.module.named_parameters()]
        self._size, self._sizes = made.size, task.sizes()
        self._models: dict[int, Vector] = {}
        self._trajectories: dict[str, Trajectory] = {}
        self._rests: dict[str, Residual] = {}
        self._columns: dict[str, tuple[tuple[str, ...], tuple[Tensor, ...]]] = {}

    # ---- commands to clients

    def begin(self, work: Work) -> None:
        """Begin a trajectory, unless it has begun already."""
        known = self._trajectories.get(work.client)
        if known is not None and (known.work.version, known.work.names) == (work.version, work.names):
            known.work, known.target = work, work.target
            return
        steps = (work.first_step, work.common_steps)
        lead = lead_of(self._config, self._models, work.version, self._size, steps)
        samples = self._samples(work)
        start = self._models[work.version]
        self._trajectories[work.client] = Trajectory(work, work.target, samples, start, lead, ends={0: start})

    def carry_on(self, work: Continue) -> None:
        """Continue the client's work."""
        if work.client in self._trajectories:
            self._trajectories[work.client].target = work.target

    def finding(self, chunk: int, target: int) -> Finding:
        """Raise: local work does not train single chunks."""
        raise EdgeFailed(f"training: chunk {chunk} was taken to {target} steps, needed local work")

    def reached(self, client: str, steps: int) -> Finding:
        """Return the finding of the client at this step."""
        path = self._trajectories[client]
        if not steps:
            return Finding(path.samples, 0.0, 0.0)
        if path.front < steps:
            more = steps - path.front
            self._ahead(
                [each for each in self._trajectories.values() if each is path or each.front < each.target],
                more,
            )
        if steps not in path.ends:
            raise EdgeFailed(f"stack: {client} was asked for step {steps}, it had been stopped after that")
        path.settle(steps)
        squared = path.gradients[steps]
        if not self._wants_gradient:
            squared = squared_distance(path.start, path.ends[steps], path.lead, path.led[steps])
        return Finding(path.samples, squared, path.losses[steps] / steps)

    def lost(self, client: str) -> None:
        """Discard the client's work."""
        self._trajectories.pop(client, None)
        self._rests.pop(client, None)

    def load(self, version: int, model: Vector, in_transit: Collection[int] = ()) -> None:
        """Store the new common model and a few earlier ones; clients will begin from those `in_transit`."""
        kept = {old for old in self._models if old > version - MODELS_KEPT or old in in_transit}
        self._models = {old: each for old, each in self._models.items() if old in kept}
        self._models[version] = model.copy()
        self._extras.rule.loaded()

    def sent(self, command: Reveal | Repair) -> Vector:
        """Return the client's update as decoded by the server."""
        if isinstance(command, Repair):
            raise EdgeFailed(f"training: {command.client} was asked for a repair, needed local work")
        path = self._trajectories[command.client]
        stopped = min(path.ends)
        update = self._extras.rule.sent(path.work, update_of(path.start, path.ends[stopped], 1), stopped)
        if command.wire == EXACT:
            return update
        codec, stamp = make_codec(command.wire), (command.round, command.attempt, command.client)
        data, self._rests[command.client] = with_error_feedback(
            update, codec, stamp, self._rests.get(command.client)
        )
        return codec.decode(data, update.size)

    def close(self) -> None:
        """Release all state."""
        self._trajectories.clear()

    # ---- steps

    @property
    def _wants_gradient(self) -> bool:
        return self._config.measure == "gradient"

    def _ahead(self, trajectories: Sequence[Trajectory], steps: int) -> None:
        """Advance these trajectories by this many steps, and store each step."""
        models = torch.from_numpy(np.stack([path.ends[path.front] for path in trajectories]))
        tensors, leads = self._cut(models), self._leads(trajectories)
        changes = self._changes(trajectories)
        columns = [
            torch.stack(each)
            for each in zip(*(self._batches(path, steps) for path in trajectories), strict=True)
        ]
        optimizers = self._optimizers(trajectories, tensors)
        for step in range(steps):
            leaves = [each.detach().requires_grad_() for each in tensors]
            losses = self._losses(leaves, tuple(column[:, step] for column in columns))
            gradients = changes(torch.autograd.grad(losses.sum(), leaves), tensors)
            shares = [self._config.rate_share(path.work.first_step + path.front) for path in trajectories]
            self._step(tensors, gradients, optimizers, shares)
            led = [_led(path, share) for path, share in zip(trajectories, shares, strict=True)]
            for tensor, lead in zip(tensors, leads, strict=False):
                tensor.sub_(lead * _wide(led, lead))
            squares = self._squares(gradients, len(trajectories))
            _remember(trajectories, models.clone().numpy(), losses.tolist(), squares, led)
        for path, optimizer in zip(trajectories, optimizers, strict=False):
            path.optimizer = _copied(optimizer.state_dict())

    def _batches(self, path: Trajectory, steps: int) -> list[Tensor]:
        """Return the batches of the steps after the front, for each tensor: steps x samples x shape."""
        first, start = path.work.first_step + path.front, key(path.work.seed, path.work.client, "order")
        size, pool = self._config.batch_size, path.work.pool
        at_steps = range(first, first + steps)
        if self._extras.stream is not None:
            rows = [self._seen(self._extras.stream, path.work.client, at, start) for at in at_steps]
        elif pool is None:
            rows = [batch_rows(path.samples, size, at, start) for at in at_steps]
        else:
            who = (path.work.seed, path.work.client)
            rows = [injected_rows(pool, self._sizes, who, at, size) for at in at_steps]
        index = torch.from_numpy(np.concatenate(rows))
        return [column[index].view(steps, size, *column.shape[1:]) for column in self._data(path.work)]

    def _seen(self, stream: Stream, client: str, step: int, start: int) -> Rows:
        """Return a batch of what a client sees at this step."""
        seen = stream.window(int(client.split()[1]), step)
        return seen.first + batch_rows(seen.last - seen.first, self._config.batch_size, step, start)

    def _changes(self, trajectories: Sequence[Trajectory]) -> "_Changes":
        """Return what the rule changes in the gradients of these trajectories."""
        rule, works = self._extras.rule, [path.work for path in trajectories]
        offsets, masks = [rule.offset(each) for each in works], [rule.trained(each) for each in works]
        starts = [path.start for path in trajectories]
        return _Changes(
            rule.proximal,
            self._cut(torch.from_numpy(np.stack(starts))) if rule.proximal else (),
            self._stack(offsets, 0.0),
            self._stack(masks, 1.0),
        )

    def _stack(self, vectors: Sequence[Vector | None], usual: float) -> Sequence[Tensor]:
        """Return the vectors of all models, `usual` where there is none; nothing if all are missing."""
        if all(each is None for each in vectors):
            return ()
        filled = np.full(self._size, usual, np.float32)
        return self._cut(torch.from_numpy(np.stack([filled if each is None else each for each in vectors])))

    def _losses(self, leaves: Sequence[Tensor], batch: tuple[Tensor, ...]) -> Tensor:
        """Return the loss of each model."""
        if self._extras.losses is not None:
            return self._extras.losses(leaves, batch)
        losses: Tensor = vmap(self._loss)(leaves, batch)
        return losses

    def _loss(self, parts: Sequence[Tensor], batch: tuple[Tensor, ...]) -> Tensor:
        named = dict(zip(self._names, parts, strict=True))

        def module(*given: Tensor) -> object:
            return functional_call(self._module, named, given)

        loss: Tensor = self._task.loss(module, batch)  # type: ignore[arg-type]  # called, as a module is
        return loss

    def _step(
        self,
        tensors: Sequence[Tensor],
        gradients: Sequence[Tensor],
        optimizers: Sequence[torch.optim.Optimizer],
        shares: Sequence[float],
    ) -> None:
        rate = self._config.learning_rate * self._config.alpha
        if not optimizers:
            for tensor, gradient in zip(tensors, gradients, strict=True):
                tensor.sub_(gradient * _wide([rate * share for share in shares], gradient))
        for at, (optimizer, share) in enumerate(zip(optimizers, shares, strict=False)):
            group = optimizer.param_groups[0]
            for own, gradient in zip(group["params"], gradients, strict=True):
                own.grad = gradient[at]
            group["lr"] = rate * share
            optimizer.step()

    def _optimizers(
        self, trajectories: Sequence[Trajectory], tensors: Sequence[Tensor]
    ) -> list[torch.optim.Optimizer]:
        """Return the task's optimizers for the models of the stack, with their states; none for plain SGD."""
        make = self._task.optimizer
        if make is None:
            return []
        made = []
        for at, path in enumerate(trajectories):
            own = [each[at].detach().requires_grad_() for each in tensors]  # shares the stack's memory
            made.append(make(own, self._config.learning_rate * self._config.alpha))
            if path.optimizer is not None:
                made[-1].load_state_dict(_copied(path.optimizer))
        return made

    def _leads(self, trajectories: Sequence[Trajectory]) -> Sequence[Tensor]:
        """Return the shared momentum of each trajectory, or nothing without any."""
        return self._stack([path.lead for path in trajectories], 0.0)

    def _squares(self, gradients: Sequence[Tensor], count: int) -> list[float]:
        if not self._wants_gradient:
            return [0.0] * count
        # `sum` begins with the number 0
        squares: list[float] = sum(each.square().flatten(1).sum(1) for each in gradients).tolist()  # type: ignore[union-attr]
        return squares

    def _cut(self, vectors: Tensor) -> list[Tensor]:
        """Return views of the parameters, one model after the other along the first dimension."""
        parts = torch.split(vectors, [shape.numel() for shape in self._shapes], dim=1)
        return [part.view(-1, *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _data(self, work: Work) -> tuple[Tensor, ...]:
        """Return the samples of a client's chunks, combined as in its engine."""
        names, whose = tuple(name for _, name in sorted(work.names)), work.client
        if work.pool is not None:
            names, whose = pool_chunks(work.pool), ""  # the same for all clients
        if self._columns.get(whose, ((), ()))[0] != names:
            parts = zip(*(self._task.load(name) for name in names), strict=True)
            self._columns[whose] = (
                names,
                tuple(torch.cat([*map(torch.as_tensor, each)]) for each in parts),
            )
        return self._columns[whose][1]

    def _samples(self, work: Work) -> int:
        """Return the number of a client's samples; raise if they are too few for equal batches."""
        holders = ((work.client, tuple(name for _, name in work.names)),)
        chunks = dict(holders if work.pool is None else work.pool.holders)
        counts = {client: sum(self._sizes[name] for name in names) for client, names in chunks.items()}
        for client, samples in counts.items():
            if samples < self._config.batch_size:
                raise BadSetting(
                    f"stack: {client} has {samples} samples, needed {self._config.batch_size} for a batch"
                )
        return counts[work.client]


def _remember(
    trajectories: Sequence[Trajectory],
    ends: Vector,
    losses: Sequence[float],
    squares: Sequence[float],
    led: Sequence[float],
) -> None:
    """Advance the fronts by a step."""
    for at, path in enumerate(trajectories):
        if not abs(losses[at]) <= LARGEST_AMOUNT:
            seen = f"training: {path.work.client}: the loss is {losses[at]}"
            raise EdgeFailed(f"{seen}, needed a number up to {LARGEST_AMOUNT:g}")
        before, path.front = path.front, path.front + 1
        path.ends[path.front] = ends[at]
        path.losses[path.front] = path.losses[before] + losses[at]
        path.led[path.front] = path.led[before] + led[at]
        path.gradients[path.front] = squares[at]


def _led(path: Trajectory, share: float) -> float:
    """Return the share of the lead in the step after the front."""
    return 0.0 if path.lead is None else led_share(share, path.front, path.work.common_steps)


def _wide(numbers: Sequence[float], tensor: Tensor) -> Tensor:
    """Return one number for each model, shaped to broadcast over the stack."""
    return torch.tensor(numbers).view(-1, *[1] * (tensor.dim() - 1))


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(dict(state))


def _check(made: FlatModel) -> None:
    """Raise for a model that a stack would train differently."""
    chance = [type(each).__name__ for each in made.module.modules() if isinstance(each, CHANCE)]
    if chance or made.size != made.parameters:
        seen = ", ".join(chance) or "running statistics"
        raise BadSetting(f"stack: saw {seen} in the model, needed one whose steps depend on weights alone")


def stacked(job: Job, folder: Path, extras: Extras = NO_EXTRAS) -> Stacked:  # noqa: ARG001  nothing is spilled
    """Return the stack that trains a whole fleet; pass it as `Job.engines`."""
    return Stacked(job.task, job.config, extras)
