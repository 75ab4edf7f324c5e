"""Local work of a whole fleet in one stack of models: what an engine for each client does, only faster.

A client's way from a common model is a function of the model, the lead, its data and the numbers of its
steps; when it is stopped is the clock's business. So whenever one client is asked for, all that have work go
ahead by as many steps, as one batch of models (`torch.func.vmap`), and each step is remembered: one that is
then stopped in mid-way has its steps there. Only what no client was stopped at is forgotten. A way ends with
its common model, or with its client.

It serves models whose step draws no chance and which have no running statistics, on tensors; batches must be
of one size. Everything else is refused. An engine for each client is the slow twin, and the same to rounding.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedgc.codecs import EXACT, make_codec, rounding
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.messages import Continue, Repair, Reveal, Work
from fedgc.sim.clock import Finding
from fedgc.sim.training import MODELS_KEPT, Job
from fedgc.training.data import batch_rows
from fedgc.training.flat import FlatModel, Vector
from fedgc.training.injection import everything, injected_rows
from fedgc.training.local_update import Rest, with_rest
from fedgc.training.randomness import key
from fedgc.training.shared_momentum import lead_of, squared_way
from fedgc.training.tasks import Task
from fedgc.training.trainer import fresh
from fedgc.training.update import update_of

CHANCE: Final = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


@dataclass(slots=True)
class Way:
    """One client since its common model: the steps that it was stopped at, and those that are known ahead."""

    work: Work
    target: int
    samples: int
    start: Vector
    lead: Vector | None
    front: int = 0  # as far as it is known
    optimizer: Mapping[str, Any] | None = None  # its state at the front
    ends: dict[int, Vector] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=lambda: {0: 0.0})  # sums
    led: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    gradients: dict[int, float] = field(default_factory=lambda: {0: 0.0})  # squared norms

    def settle(self, steps: int) -> None:
        """Forget what was before."""
        for known in (self.ends, self.losses, self.led, self.gradients):
            for step in [each for each in known if each < steps]:
                del known[step]


class Stacked:
    """The engines of a fleet of local work."""

    def __init__(self, task: Task, config: RunConfig) -> None:
        self._task, self._config = task, config
        if config.threads:
            torch.set_num_threads(config.threads)
        made = fresh(task, config)
        _check(made)
        self._module, self._shapes = made.module.train(), [each.shape for each in made.trainable]
        self._names = [name for name, _ in made.module.named_parameters()]
        self._size, self._sizes = made.size, task.sizes()
        self._models: dict[int, Vector] = {}
        self._ways: dict[str, Way] = {}
        self._rests: dict[str, Rest] = {}
        self._columns: dict[str, tuple[tuple[str, ...], tuple[Tensor, ...]]] = {}

    # ---- what clients are told

    def begin(self, work: Work) -> None:
        """Begin a way, unless this one is on it already."""
        known = self._ways.get(work.client)
        if known is not None and (known.work.version, known.work.names) == (work.version, work.names):
            known.work, known.target = work, work.target
            return
        steps = (work.first_step, work.common_steps)
        lead = lead_of(self._config, self._models, work.version, self._size, steps)
        samples = self._samples(work)
        start = self._models[work.version]
        self._ways[work.client] = Way(work, work.target, samples, start, lead, ends={0: start})

    def carry_on(self, work: Continue) -> None:
        """Let it go on."""
        if work.client in self._ways:
            self._ways[work.client].target = work.target

    def finding(self, chunk: int, target: int) -> Finding:
        """Refuse: no chunk is trained by itself."""
        raise EdgeFailed(f"training: chunk {chunk} was taken to {target} steps, needed local work")

    def reached(self, client: str, steps: int) -> Finding:
        """Return what the client finds there."""
        way = self._ways[client]
        if not steps:
            return Finding(way.samples, 0.0, 0.0)
        if way.front < steps:
            more = steps - way.front
            self._ahead(
                [each for each in self._ways.values() if each is way or each.front < each.target], more
            )
        if steps not in way.ends:
            raise EdgeFailed(f"stack: {client} was asked for step {steps}, it had been stopped after that")
        way.settle(steps)
        squared = way.gradients[steps]
        if not self._wants_gradient:
            squared = squared_way(way.start, way.ends[steps], way.lead, way.led[steps])
        return Finding(way.samples, squared, way.losses[steps] / steps)

    def lost(self, client: str) -> None:
        """Forget all that the client did."""
        self._ways.pop(client, None)
        self._rests.pop(client, None)

    def load(self, version: int, model: Vector) -> None:
        """Keep the new common model, and the few before it."""
        self._models = {old: each for old, each in self._models.items() if old > version - MODELS_KEPT}
        self._models[version] = model.copy()

    def sent(self, told: Reveal | Repair) -> Vector:
        """Return the client's update as the server reads it off the wire."""
        if isinstance(told, Repair):
            raise EdgeFailed(f"training: {told.client} was asked for a repair, needed local work")
        way = self._ways[told.client]
        end = way.ends[min(way.ends)]  # where it was stopped
        update = update_of(way.start, end, 1)
        if told.wire == EXACT:
            return update
        codec, stamp = make_codec(told.wire), (told.round, told.attempt, told.client)
        whole, self._rests[told.client] = with_rest(update, codec, stamp, self._rests.get(told.client))
        return codec.decode(codec.encode(whole, rounding(*stamp)), whole.size)

    def close(self) -> None:
        """Forget everything."""
        self._ways.clear()

    # ---- steps

    @property
    def _wants_gradient(self) -> bool:
        return self._config.measure == "gradient"

    def _ahead(self, ways: Sequence[Way], steps: int) -> None:
        """Take these ways so many steps on, and remember each step."""
        models = torch.from_numpy(np.stack([way.ends[way.front] for way in ways]))
        tensors, leads = self._cut(models), self._leads(ways)
        columns = [
            torch.stack(each) for each in zip(*(self._batches(way, steps) for way in ways), strict=True)
        ]
        optimizers = self._optimizers(ways, tensors)
        for step in range(steps):
            leaves = [each.detach().requires_grad_() for each in tensors]
            losses = vmap(self._loss)(leaves, tuple(column[:, step] for column in columns))
            gradients = torch.autograd.grad(losses.sum(), leaves)
            shares = [self._config.rate_share(way.work.first_step + way.front) for way in ways]
            self._step(tensors, gradients, optimizers, shares)
            for tensor, lead in zip(tensors, leads, strict=False):
                tensor.sub_(lead * _wide(shares, lead))
            squares = self._squares(gradients, len(ways))
            _remember(ways, models.clone().numpy(), losses.tolist(), squares, shares)
        for way, optimizer in zip(ways, optimizers, strict=False):
            way.optimizer = _copied(optimizer.state_dict())

    def _batches(self, way: Way, steps: int) -> list[Tensor]:
        """Return what the steps after the front are on, of each column: steps x samples x what one is."""
        first, start = way.work.first_step + way.front, key(way.work.seed, way.work.client, "order")
        size, pool = self._config.batch_size, way.work.pool
        at_steps = range(first, first + steps)
        if pool is None:
            rows = [batch_rows(way.samples, size, at, start) for at in at_steps]
        else:
            who = (way.work.seed, way.work.client)
            rows = [injected_rows(pool, self._sizes, who, at, size) for at in at_steps]
        index = torch.from_numpy(np.concatenate(rows))
        return [column[index].view(steps, size, *column.shape[1:]) for column in self._data(way.work)]

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

    def _optimizers(self, ways: Sequence[Way], tensors: Sequence[Tensor]) -> list[torch.optim.Optimizer]:
        """Return the task's optimizer over each model of the stack, as it was left; plain SGD needs none."""
        make = self._task.optimizer
        if make is None:
            return []
        made = []
        for at, way in enumerate(ways):
            own = [each[at].detach().requires_grad_() for each in tensors]  # shares the stack's memory
            made.append(make(own, self._config.learning_rate * self._config.alpha))
            if way.optimizer is not None:
                made[-1].load_state_dict(_copied(way.optimizer))
        return made

    def _leads(self, ways: Sequence[Way]) -> Sequence[Tensor]:
        """Return the lead of every way, or nothing where none has one."""
        if all(way.lead is None for way in ways):
            return ()
        none = np.zeros(self._size, np.float32)
        return self._cut(torch.from_numpy(np.stack([none if way.lead is None else way.lead for way in ways])))

    def _squares(self, gradients: Sequence[Tensor], count: int) -> list[float]:
        if not self._wants_gradient:
            return [0.0] * count
        squares: list[float] = sum(each.square().flatten(1).sum(1) for each in gradients).tolist()  # type: ignore[union-attr]
        return squares

    def _cut(self, vectors: Tensor) -> list[Tensor]:
        """Return views of the parameters, one model after the other along the first dimension."""
        parts = torch.split(vectors, [shape.numel() for shape in self._shapes], dim=1)
        return [part.view(-1, *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _data(self, work: Work) -> tuple[Tensor, ...]:
        """Return the samples of a client's chunks, as its engine puts them together."""
        names, whose = tuple(name for _, name in sorted(work.names)), work.client
        if work.pool is not None:
            names, whose = everything(work.pool), ""  # all use the same
        if self._columns.get(whose, ((), ()))[0] != names:
            parts = zip(*(self._task.load(name) for name in names), strict=True)
            self._columns[whose] = (
                names,
                tuple(torch.cat([*map(torch.as_tensor, each)]) for each in parts),
            )
        return self._columns[whose][1]

    def _samples(self, work: Work) -> int:
        """Return how many samples a client has; raise where they are too few for batches of one size."""
        holders = ((work.client, tuple(name for _, name in work.names)),)
        everybody = dict(holders if work.pool is None else work.pool.holders)
        counts = {client: sum(self._sizes[name] for name in names) for client, names in everybody.items()}
        for client, samples in counts.items():
            if samples < self._config.batch_size:
                raise BadSetting(
                    f"stack: {client} has {samples} samples, needed {self._config.batch_size} for a batch"
                )
        return counts[work.client]


def _remember(
    ways: Sequence[Way],
    ends: Vector,
    losses: Sequence[float],
    squares: Sequence[float],
    shares: Sequence[float],
) -> None:
    """Move the fronts on by a step."""
    for at, way in enumerate(ways):
        if not math.isfinite(losses[at]):
            raise EdgeFailed(f"training: {way.work.client}: the loss is {losses[at]}, needed a finite number")
        before, way.front = way.front, way.front + 1
        way.ends[way.front] = ends[at]
        way.losses[way.front] = way.losses[before] + losses[at]
        way.led[way.front] = way.led[before] + (0.0 if way.lead is None else shares[at])
        way.gradients[way.front] = squares[at]


def _wide(numbers: Sequence[float], tensor: Tensor) -> Tensor:
    """Return one number for each model, shaped to be multiplied with the stack."""
    return torch.tensor(numbers).view(-1, *[1] * (tensor.dim() - 1))


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(dict(state))


def _check(made: FlatModel) -> None:
    """Refuse a model that a stack would train differently."""
    chance = [type(each).__name__ for each in made.module.modules() if isinstance(each, CHANCE)]
    if chance or made.size != made.parameters:
        seen = ", ".join(chance) or "running statistics"
        raise BadSetting(f"stack: saw {seen} in the model, needed one whose steps depend on weights alone")


def stacked(job: Job, folder: Path) -> Stacked:  # noqa: ARG001  nothing is spilled
    """Return the stack that trains a whole fleet; pass it as `Job.engines`."""
    return Stacked(job.task, job.config)
