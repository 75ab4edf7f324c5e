"""One module that carries one trajectory at a time: loads it, does a step, gives it back.

A trajectory is a chunk's way from a common model. Each starts from the common vector, buffers included, and
from a fresh optimizer; a step depends on (seed, version, chunk, step) and the trajectory's own state alone.
So it does not matter in which order chunks are worked on, how often one is set aside, or who does it.

The learning rate follows the run's schedule; where there is shared momentum, the module's own step is taken
at alpha times the rate, and the lead added to it (lead.py).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, BadTask, TaskFailed
from fedgc.messages import Pool
from fedgc.training.cache import Saved
from fedgc.training.data import Rows, Samples, batch_rows, samples_of, together
from fedgc.training.devices import autocast, choose, repeatable
from fedgc.training.digest import content_digest
from fedgc.training.dropout import same_dropout
from fedgc.training.flat import FlatModel, Vector
from fedgc.training.injection import everything, injected_rows
from fedgc.training.randomness import key, seeded
from fedgc.training.record_clipping import clipped_gradients, limit_of
from fedgc.training.sgd import Descent
from fedgc.training.tasks import Task

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Pass:
    """Which step: number `step` (from 0) of what `way` names, at a share of the full learning rate."""

    way: tuple[int | str, ...]
    step: int
    share: float = 1.0
    pool: Pool | None = None  # the way is then (seed, device)


def fresh(task: Task, config: RunConfig) -> FlatModel:
    """Return the task's model as every device of the run makes it, frozen weights included."""
    with seeded(key(config.seed, "model")):
        return FlatModel(_made("model", task.model))


class Trainer:
    """The compute device's side of local training."""

    def __init__(self, task: Task, config: RunConfig) -> None:
        self._task = task
        self.config = config
        self._reach: float | None = None  # how far one record may move an update, where that is bounded
        self.device = choose(config.device)
        if config.threads:
            torch.set_num_threads(config.threads)
        made = fresh(task, config)
        self.flat = FlatModel(made.module.to(self.device))
        self._first_unsent = self.flat.read_unsent()
        self._optimizer = self._new_optimizer()
        self.sizes = task.sizes()
        self.squared_gradient = 0.0  # of the last step, where the gate wants it
        self._wants_gradient = config.work == "local" and config.measure == "gradient"
        self._rates = [config.alpha * float(group["lr"]) for group in self._optimizer.param_groups]
        self._lead: Sequence[Tensor] | None = None
        self._loaded: dict[tuple[str, ...], Samples] = {}
        self._digests: dict[str, str] = {}

    def clip_records(self, reach: float) -> None:
        """Bound how far one record moves an update (private.py); refuse what such a bound cannot hold for."""
        config = self.config
        if (config.work, config.round_steps) != ("local", 1) or not config.new_gate().always_syncs:
            raise BadSetting(
                "privacy: needed work = local, local-steps = 1 and a gate that exchanges every round"
            )
        if self._task.optimizer is not None or self.flat.size != self.flat.parameters:
            raise BadSetting("privacy: saw an optimizer or running statistics, needed plain SGD without them")
        self._reach = reach

    def load(self, names: tuple[str, ...]) -> int:
        """Have the samples of these chunks ready, together; return how many there are."""
        if names not in self._loaded:
            self._loaded[names] = together([self._chunk(name) for name in names])
        return len(self._loaded[names])

    def _chunk(self, name: str) -> Samples:
        if name not in self.sizes:
            raise TaskFailed(f"chunk {name!r} is not among the {len(self.sizes)} that can be loaded here")
        samples = samples_of(self._task.load(name), self.device)
        if len(samples) != self.sizes[name]:
            raise TaskFailed(
                f"chunk {name!r}: load() gave {len(samples)} samples, chunks says {self.sizes[name]}"
            )
        return samples

    def digest(self, name: str) -> str:
        """Return the digest of a shared chunk, made once; nothing where chunks are the device's own."""
        if not self._task.may_move:
            return ""
        if name not in self._digests:
            self._digests[name] = content_digest(self._task, name, self.sizes[name])
        return self._digests[name]

    def follow(self, lead: Vector | None) -> None:
        """From now on steps are led so."""
        self._lead = None if lead is None else self.flat.parts(lead)

    def begin(self, start: Vector) -> None:
        """Start a trajectory from the common model."""
        self.flat.write(start)
        self.flat.write_unsent(self._first_unsent)
        self._optimizer = self._new_optimizer()

    def resume(self, saved: Saved) -> None:
        """Take up a trajectory where it was set aside."""
        self.flat.write(saved.vector)
        self.flat.write_unsent(saved.unsent)
        self._optimizer = self._new_optimizer()
        self._optimizer.load_state_dict(dict(saved.optimizer))

    def save(self) -> Saved:
        """Return the present trajectory; it shares nothing with what is trained next."""
        return Saved(self.flat.read(), self.flat.read_unsent(), _on_cpu(self._optimizer.state_dict()))

    def step(self, names: tuple[str, ...], this: Pass) -> float:
        """Do one step on these chunks together; return its loss."""
        samples, rows = self._exchange_drawn(names, this)
        module = self.flat.module.train()
        module.zero_grad(set_to_none=True)
        with seeded(key(*this.way, this.step)), repeatable(self.device):
            with same_dropout():  # around backward too: activation checkpointing runs forward again there
                if self._reach is None:
                    value = self._backward(module, samples.batch(rows))
                else:
                    value = self._clipped(module, samples, rows, self._reach)
            self._move(this.share)
        if not math.isfinite(value):
            raise TaskFailed(f"the loss is {value}, needed a finite number")
        return value

    def _exchange_drawn(self, names: tuple[str, ...], this: Pass) -> tuple[Samples, Rows]:
        size = self.config.batch_size
        if this.pool is None:
            samples = self._loaded[names]
            return samples, batch_rows(len(samples), size, this.step, key(*this.way, "order"))
        seed, device = this.way
        rows = injected_rows(this.pool, self.sizes, (int(seed), str(device)), this.step, size)
        return self._loaded[everything(this.pool)], rows

    def _backward(self, module: nn.Module, batch: Any) -> float:  # noqa: ANN401  the task's own
        loss = self._loss(module, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()  # waits for the step on a device that works ahead, so that time is measured

    def _loss(self, module: nn.Module, batch: Any) -> Tensor:  # noqa: ANN401  the same: a user's batch
        with autocast(self.device, self.config):
            loss = self._task.loss(module, batch)
        _check_loss(loss)
        return loss

    def _clipped(self, module: nn.Module, samples: Samples, rows: Rows, reach: float) -> float:
        """Go through the records one by one, so that none counts for more than its reach."""
        size, rate = self.config.batch_size, self.config.learning_rate * self.config.alpha

        def of(row: int) -> Callable[[], Tensor]:
            return lambda: self._loss(module, samples.batch(np.array([row])))

        losses = [of(row) for row in np.unique(rows).tolist()]
        return clipped_gradients(self.flat.trainable, losses, limit_of(reach, size, rate), size)

    def _move(self, share: float) -> None:
        if self._wants_gradient:
            gradients = (each.grad for each in self.flat.trainable)
            self.squared_gradient = sum(float(each.square().sum()) for each in gradients if each is not None)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * share
        self._optimizer.step()
        if self._lead is not None:
            with torch.no_grad():
                for tensor, part in zip(self.flat.trainable, self._lead, strict=True):
                    tensor.sub_(part, alpha=share)

    def _new_optimizer(self) -> torch.optim.Optimizer | Descent:
        chosen, rate = self._task.optimizer, self.config.learning_rate
        if chosen is None:
            return Descent(self.flat.trainable, rate)
        made = _made("optimizer", lambda: chosen(self.flat.trainable, rate))
        if not isinstance(made, torch.optim.Optimizer):
            raise BadTask(f"task: optimizer() returned a {type(made).__name__}, needed a torch optimizer")
        return made


def _made(what: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except Exception as error:  # the user's code may raise anything
        raise BadTask(f"task: {what}() raised {type(error).__name__}: {error}") from error


def _check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        seen = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise TaskFailed(f"loss() returned {seen}, needed a tensor of one number")
    if not loss.requires_grad:
        raise TaskFailed("loss() returned a tensor without gradient, needed one that follows from the module")


def _on_cpu(state: Any) -> Any:  # noqa: ANN401  an optimizer's state nests as it likes
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {name: _on_cpu(each) for name, each in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_on_cpu(each) for each in state)
    return state
