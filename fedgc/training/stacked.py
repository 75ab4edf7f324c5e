"""Training of many simulated clients as one batch of models (`torch.func.vmap`).

A step of a small model takes less time on a GPU, or on a core, than it takes to start its operations. Here
one step serves many clients. Clients whose stretches begin at the same step of the same common model are
trained together, and leave the stack as they reach their ends. A client's result is that of `ClientTrainer`
up to rounding, but for dropout, whose masks are drawn for the whole stack.

The task's loss runs under vmap: it must not depend on values of tensors (`.item()`, or `if` on a tensor).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, TaskFailed
from fedgc.messages import LARGEST_AMOUNT, Work
from fedgc.training.data import Columns
from fedgc.training.devices import deterministic_cudnn
from fedgc.training.model_stack import Batch, Left, ModelStack, StackLoss, check_stacks
from fedgc.training.randomness import key, restored, seeded
from fedgc.training.shared_momentum import led_share
from fedgc.training.simulated import ClientStates, Stretch, Trained, chunks_of, failing
from fedgc.training.tasks import Task
from fedgc.training.trainer import LocalStep, Trainer

BLOCK_BYTES: Final = 1 << 26  # of samples that are gathered at a time

Outcome = Trained | EdgeFailed


class StackedTrainer:
    """Trains stretches, many at a time."""

    def __init__(self, task: Task, config: RunConfig, folder: Path) -> None:
        """Make the trainer; raise BadTask for a task that a stack would train differently."""
        self._trainer = Trainer(task, config)
        check_stacks(self._trainer)
        self._states = ClientStates(config, self._trainer.flat, folder)
        self._loss = StackLoss(self._trainer)

    def train(self, stretches: Sequence[Stretch]) -> list[Outcome]:
        """Do the steps; the outcome of a client whose training fails is the error."""
        outcomes = dict[int, Outcome]()
        alike = dict[tuple[object, ...], list[int]]()
        self._trainer.unload_others({chunks_of(each.work) for each in stretches})
        for at, stretch in enumerate(stretches):
            try:
                alike.setdefault((self._load(stretch.work), *_origin(stretch)), []).append(at)
            except EdgeFailed as error:
                outcomes[at] = error
        for members in alike.values():
            members.sort(key=lambda at: -stretches[at].last)
            outcomes |= zip(members, self._outcomes([stretches[at] for at in members]), strict=True)
        return [outcomes[at] for at in range(len(stretches))]

    def _load(self, work: Work) -> int:
        """Load a client's samples; return how many a batch has."""
        with failing(work):
            return min(self._trainer.config.batch_size, self._trainer.load(chunks_of(work)))

    def _outcomes(self, group: Sequence[Stretch]) -> list[Outcome]:
        """Train a group; where that fails, train its clients one by one, to tell which of them fail."""
        try:
            with failing(group[0].work), restored():
                return self._together(group)
        except EdgeFailed as error:
            if len(group) == 1:
                return [error]
            if isinstance(error.__cause__, torch.OutOfMemoryError):  # one by one would take very long
                seen = f"training: a stack of {len(group)} clients does not fit into the device's memory"
                return [EdgeFailed(f"{seen}, needed a smaller stack")] * len(group)
            return [self._outcomes([each])[0] for each in group]

    def _together(self, group: Sequence[Stretch]) -> list[Outcome]:
        """Train stretches that begin alike, the longest first."""
        trainer, work, reached, led = self._trainer, group[0].work, group[0].first, group[0].led
        lead = self._states.lead_of(work)
        leads = () if lead is None else trainer.flat.parts(lead)
        kept = [self._states.kept(each) for each in group]
        saved, private = [each for each, _ in kept if each is not None], [own for _, own in kept]
        stack = ModelStack(trainer, self._states.model(work.version), saved, private)
        outcomes, blocks = list[Outcome](), _Blocks(trainer)
        while group:
            at = work.first_step + reached
            share = trainer.config.rate_share(at)
            batch = blocks.batch(group, at)
            with seeded(key(work.seed, work.client, "stack", at)), deterministic_cudnn(trainer.device):
                stack.step(self._loss.of, batch, share)
            if leads and (following := led_share(share, reached, work.common_steps)):
                stack.subtract(leads, following)
                led += following
            reached += 1
            if ending := [each for each in group if each.last == reached]:
                group = group[: -len(ending)]
                left = stack.leave(len(ending), leads, led)
                outcomes[:0] = [self._outcome(*each, led) for each in zip(ending, left, strict=True)]
        return outcomes

    def _outcome(self, stretch: Stretch, left: Left, led: float) -> Outcome:
        work = stretch.work
        if left.bad_loss is not None:
            return EdgeFailed(
                f"training: {work.client}, round {work.round}: the loss is {left.bad_loss}, "
                f"needed a number up to {LARGEST_AMOUNT:g}"
            )
        trained = Trained(stretch.losses + left.losses, led, left.squared_norm, stretch.room)
        return self._states.written(stretch, left.saved, left.private, trained)


class _Blocks:
    """The batches of a group of clients, gathered for several steps at a time."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._block: Batch = None  # clients x steps x samples
        self._first = self._end = self._step_bytes = 0  # steps of the block, and bytes of one

    def batch(self, group: Sequence[Stretch], at: int) -> Batch:
        """Return the batches of the step `at`, with the clients along the first dimension."""
        if at >= self._end:
            most = BLOCK_BYTES // self._step_bytes if self._step_bytes else 1
            leaves = group[0].work.first_step + group[-1].last  # no sample is read that no step needs
            self._first, self._end = at, min(at + max(1, most), leaves)
            self._block = _merged(torch.stack, [self._of(each.work) for each in group])
            self._step_bytes = _bytes(self._block) // (self._end - at)
        count, step = len(group), at - self._first
        return _merged(lambda tensors: tensors[0][:count, step], [self._block])

    def _of(self, work: Work) -> Batch:
        """Return the batches of one client."""
        stream, chunks = (work.seed, work.client), chunks_of(work)
        steps = range(self._first, self._end)
        parts = [self._trainer.batch_of(chunks, LocalStep(stream, at)) for at in steps]
        samples = parts[0][0]
        if isinstance(samples, Columns):
            batch = samples.batch(np.concatenate([rows for _, rows in parts]))
            return _merged(lambda tensors: torch.unflatten(tensors[0], 0, (len(steps), -1)), [batch])
        batches = []
        for at, (_, rows) in zip(steps, parts, strict=True):
            with seeded(key(*stream, at)):  # a dataset may change its items at random
                batches.append(samples.batch(rows))
        return _merged(torch.stack, batches)


def _origin(stretch: Stretch) -> tuple[object, ...]:
    """Return what stretches that are trained together have in common."""
    work = stretch.work
    return work.version, work.seed, work.first_step, work.common_steps, stretch.first


def _merged(merge: Callable[[list[Tensor]], Tensor], batches: Sequence[Batch]) -> Batch:
    """Merge batches of one kind tensor by tensor."""
    first = batches[0]
    if isinstance(first, Tensor):
        if {each.shape for each in batches} != {first.shape}:
            raise TaskFailed("stack: saw batches of different shapes, needed one shape for all clients")
        return merge(list(batches))
    if isinstance(first, Mapping):
        return {name: _merged(merge, [each[name] for each in batches]) for name in first}
    if isinstance(first, list | tuple):
        return tuple(_merged(merge, list(each)) for each in zip(*batches, strict=True))
    raise TaskFailed(f"stack: saw a {type(first).__name__} in a batch, needed tensors")


def _bytes(batch: Batch) -> int:
    if isinstance(batch, Tensor):
        return batch.nbytes
    return sum(map(_bytes, batch.values() if isinstance(batch, Mapping) else batch))
