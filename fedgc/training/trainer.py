"""Does the local steps of one trajectory at a time, on the compute device.

A trajectory is the local training of a chunk from a common model. It starts from the common vector, buffers
included, and a new optimizer. A step depends only on (seed, version, chunk, step) and the trajectory's state,
so the result is the same in any order of chunks, after any interruption, and on any client.

The learning rate follows the run's schedule. With shared momentum, the optimizer steps at alpha times the
rate, and the lead is added (`shared_momentum`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedgc.config import RunConfig
from fedgc.errors import BadTask, ChunkFailed, TaskFailed, words_of
from fedgc.messages import LARGEST_AMOUNT, LONGEST_DIGEST, Held, Layout, Pool, Scored
from fedgc.training.account_file import AccountFile
from fedgc.training.adapter import announced_layout
from fedgc.training.cache import Saved
from fedgc.training.data import Rows, Samples, batch_rows, concatenated, samples_of
from fedgc.training.devices import autocast, choose, deterministic_cudnn
from fedgc.training.digest import content_digest
from fedgc.training.dropout import portable_dropout
from fedgc.training.figures import scored
from fedgc.training.flat import FlatModel, Vector
from fedgc.training.injection import injected_rows, pool_chunks
from fedgc.training.randomness import key, seeded
from fedgc.training.record_gradients import RecordGradients
from fedgc.training.record_privacy import RecordPrivacy
from fedgc.training.sgd import PlainSGD
from fedgc.training.tasks import Task

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class LocalStep:
    """Number `step` (from 0) of the random stream named by `stream`, at a share of the full learning rate.

    `led` is the share of the lead of shared momentum.
    """

    stream: tuple[int | str, ...]
    step: int
    share: float = 1.0
    led: float = 0.0
    pool: Pool | None = None  # of data injection; `stream` is then (seed, client)


def initial_model(task: Task, config: RunConfig) -> FlatModel:
    """Return the task's initial model, which is the same on all machines of the run."""
    with seeded(key(config.seed, "model")):
        return FlatModel(_made("model", task.model), task.private)


def set_threads(config: RunConfig) -> None:
    """Let torch use as many threads as the settings say."""
    if config.threads:
        torch.set_num_threads(config.threads)


class Trainer:
    """Holds the module, the optimizer and the loaded samples; trains one trajectory at a time."""

    def __init__(self, task: Task, config: RunConfig) -> None:
        self._task = task
        self.config = config
        self.records: RecordPrivacy | None = None  # makes the gradients, with record-level privacy
        self.device = choose(config.device)
        set_threads(config)
        made = initial_model(task, config)
        self.layout: Layout = announced_layout(made.layout, made.module, task.private)
        self.flat = FlatModel(made.module.to(self.device), task.private)
        self._modules, self._weights = [*self.flat.module.modules()], [*self.flat.module.parameters()]
        self._trains = False  # whether `train()` of the module was called
        self.first_unsent = self.flat.read_unsent()
        self._optimizer = self.new_optimizer(self.flat.optimized)
        self.sizes = task.sizes()
        self.squared_gradient = 0.0  # of the last step, if the gate uses it
        self.wants_gradient = config.measure == "gradient"
        self.rates = [config.alpha * float(group["lr"]) for group in self._optimizer.param_groups]
        self._lead: Sequence[Tensor] | None = None
        self._loaded: dict[tuple[str, ...], Samples] = {}
        self._digests: dict[str, str] = {}

    def protect(self, entropy: Callable[[int], bytes], account: AccountFile | None = None) -> None:
        """Take noised gradients of single records, as `RecordPrivacy` says.

        Raises:
            BadTask: The model has no gradients of single records, or several clients have the records.
            EdgeFailed: What is spent cannot be read.
        """
        if self._task.may_move:
            raise BadTask(
                "task: saw data that may move, whose records would spend the budgets of several clients; "
                "needed each client's own (may_move = False) with privacy.unit = record"
            )
        gradients = RecordGradients(self.flat.module, self.autocast_loss, self.config.privacy_clip)
        if self.flat.size != self.flat.parameters or self.flat.is_half:
            raise BadTask(
                "task: saw running statistics or half precision, needed a model of float32 parameters alone "
                "with privacy.unit = record"
            )
        self.records = RecordPrivacy(self.config, gradients, entropy, account)
        if samples := sum(self.sizes.values()):
            self.records.begin(samples)  # so that it says before any work if no step can follow

    def load(self, names: tuple[str, ...]) -> int:
        """Load the samples of these chunks as one; return their number."""
        if self.records is not None and len(set(names)) < len(names):
            raise TaskFailed(
                f"saw chunks {', '.join(names)}, needed each once: the privacy of a record counts it once"
            )
        if names not in self._loaded:
            self._loaded[names] = concatenated([self._read(name) for name in names])
        if self.records is not None:
            self.records.begin(len(self._loaded[names]))
        return len(self._loaded[names])

    def hold(self, names: Sequence[str]) -> None:
        """Tell the source of chunks that travel which ones this client holds; unload all others."""
        if self._task.source is None:
            return
        for loaded in [each for each in self._loaded if not set(each) <= set(names)]:
            del self._loaded[loaded]
        self._task.source.hold(names)

    def is_here(self, name: str) -> bool:
        """Return whether a chunk can be loaded without waiting for its source."""
        return (name,) in self._loaded or self._task.source is None or self._task.source.has(name)

    def fetched(self) -> tuple[int, int, float]:
        """Return the chunks, bytes and seconds of what the source has fetched since the last call."""
        return self._task.source.fetched() if self._task.source is not None else (0, 0, 0.0)

    def unload(self, keep: int, needed: tuple[str, ...]) -> None:
        """Unload the samples that were loaded first, except for this set of chunks and `keep` others."""
        others = [names for names in self._loaded if names != needed]
        for names in others[: max(0, len(others) - keep)]:
            del self._loaded[names]

    def unload_others(self, needed: Collection[tuple[str, ...]]) -> None:
        """Unload the samples of all but these sets of chunks."""
        self._loaded = {names: each for names, each in self._loaded.items() if names in needed}

    def _read(self, name: str) -> Samples:
        try:
            return self._chunk(name)
        except Exception as error:  # the task's code may raise anything
            raise ChunkFailed(words_of(error), name) from error

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
        """Return the digest of a shared chunk, computed once; empty if chunks are not shared."""
        if not self._task.may_move:
            return ""
        if self._task.source is not None:
            return self._task.source.digest(name)[:LONGEST_DIGEST]
        if name not in self._digests:
            self._digests[name] = content_digest(self._task, name, self.sizes[name])
        return self._digests[name]

    def holds(self) -> tuple[Held, ...]:
        """Return the chunks that can be loaded here, with digests if they are shared."""
        return tuple(Held(name, samples, self.digest(name)) for name, samples in self.sizes.items())

    def initial(self) -> Vector:
        """Return the vector of the task's initial model."""
        return initial_model(self._task, self.config).read()

    @property
    def scores_models(self) -> bool:
        """Whether the task has a function `validate`."""
        return self._task.validate is not None

    def validate(self, version: int, model: Vector) -> Scored | None:
        """Score a common model with the task's `validate`; None if it has none.

        The trajectory that is being trained must have been saved before.
        """
        validate = self._task.validate
        if validate is None:
            return None
        self.flat.write(model)
        module = self.flat.module.eval()
        with seeded(key(self.config.seed, "validate")), torch.no_grad():
            return scored(version, lambda: validate(module), sum(self.sizes.values()))

    def follow(self, lead: Vector | None) -> None:
        """Set the lead of shared momentum for the next steps."""
        self._lead = None if lead is None else self.flat.parts(lead)

    def begin(self, start: Vector) -> None:
        """Start a trajectory from the common model, which is finite."""
        self.flat.write(start, is_finite=True)
        self.flat.write_unsent(self.first_unsent)
        self._optimizer = self.new_optimizer(self.flat.optimized)

    def resume(self, saved: Saved) -> None:
        """Continue a saved trajectory."""
        self.flat.write(saved.vector)
        self.flat.write_unsent(saved.unsent)
        self._optimizer = self.new_optimizer(self.flat.optimized)
        with self.flat.stepping(self._optimizer):
            self._optimizer.load_state_dict(dict(saved.optimizer))

    def save(self) -> Saved:
        """Return a copy of the present trajectory."""
        return Saved(self.flat.read(), self.flat.read_unsent(), _on_cpu(self._optimizer.state_dict()))

    def step(self, names: tuple[str, ...], local_step: LocalStep) -> float:
        """Do one local step on the samples of these chunks; return its loss (0 with privacy of records)."""
        module = self.training_module()
        with seeded(key(*local_step.stream, local_step.step)), deterministic_cudnn(self.device):
            if self.records is None:
                samples, (rows,) = self.batches_of(
                    names, local_step.stream, (local_step.step,), local_step.pool
                )
                with portable_dropout():  # includes backward, where checkpointing reruns forward
                    value = self._backward(module, samples.batch(rows))
            else:
                value = 0.0  # the loss of single records is no figure that may leave
                self.records.set_gradients(self._loaded[names], self.flat.optimized)
            self._update(local_step.share, local_step.led)
        if not abs(value) <= LARGEST_AMOUNT:  # not a number either
            raise TaskFailed(f"the loss is {value}, needed a number up to {LARGEST_AMOUNT:g}")
        return value

    def training_module(self) -> nn.Module:
        """Return the module in training mode, without gradients."""
        if not (self._trains and all(each.training for each in self._modules)):
            self.flat.module.train()  # a module of the user's may leave some of its parts as they are
            self._trains = True
        for each in self._weights:
            each.grad = None
        return self.flat.module

    def batches_of(
        self, names: tuple[str, ...], stream: tuple[int | str, ...], steps: Sequence[int], pool: Pool | None
    ) -> tuple[Samples, Sequence[Rows]]:
        """Return the loaded samples of these chunks, and which of them each of the steps uses."""
        size = self.config.batch_size
        if pool is None:
            samples, order = self._loaded[names], key(*stream, "order")
            return samples, [batch_rows(len(samples), size, at, order) for at in steps]
        who = int(stream[0]), str(stream[1])
        rows = [injected_rows(pool, self.sizes, who, at, size) for at in steps]
        return self._loaded[pool_chunks(pool)], rows

    def _backward(self, module: nn.Module, batch: Any) -> float:  # noqa: ANN401  the task's own
        loss = self._loss(module, batch)
        loss.backward()
        return loss.item()  # waits for an asynchronous device, so that the step's time is measured

    def _loss(self, module: nn.Module, batch: Any) -> Tensor:  # noqa: ANN401  the same: a user's batch
        loss = self.autocast_loss(module, batch)
        check_number(loss)
        check_gradient(loss)
        return loss

    def autocast_loss(self, module: nn.Module, batch: Any) -> Tensor:  # noqa: ANN401  the same
        """Return the task's loss, in the precision of the settings."""
        with autocast(self.device, self.config):
            return self._task.loss(module, batch)

    def _update(self, share: float, led: float) -> None:
        if self.wants_gradient:
            gradients = (each.grad for each in self.flat.trainable)
            self.squared_gradient = sum(
                float(each.float().square().sum()) for each in gradients if each is not None
            )
        for group, rate in zip(self._optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * share
        with self.flat.stepping(self._optimizer):
            self._optimizer.step()
        if self._lead is not None and led:
            self.flat.subtract(self._lead, led)

    def new_optimizer(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer | PlainSGD:
        """Return the task's optimizer for these parameters."""
        chosen, rate = self._task.optimizer, self.config.learning_rate
        if chosen is None:
            return PlainSGD(parameters, rate)
        made = _made("optimizer", lambda: chosen(parameters, rate))
        if not isinstance(made, torch.optim.Optimizer):
            raise BadTask(f"task: optimizer() returned a {type(made).__name__}, needed a torch optimizer")
        return made


def _made(what: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise BadTask(f"task: {what}() raised {words_of(error)}") from error


def check_number(loss: object) -> None:
    """Raise TaskFailed unless this is a tensor of one number."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        seen = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise TaskFailed(f"loss() returned {seen}, needed a tensor of one number")


def check_gradient(loss: Tensor) -> None:
    """Raise TaskFailed if the loss does not depend on the module."""
    if not loss.requires_grad:
        raise TaskFailed("loss() returned a tensor without gradient, needed one computed by the module")


def _on_cpu(state: Any) -> Any:  # noqa: ANN401  the nested state of an optimizer
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {name: _on_cpu(each) for name, each in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_on_cpu(each) for each in state)
    return state
