"""Training of many simulated clients as one batch of models (`torch.func.vmap`).

A step of a small model takes less time on a GPU, or on a core, than it takes to start its operations. Here
one step serves many clients. Clients are trained together whatever their common models and steps, unless the
optimizer, the learning rate or shared momentum makes steps of another kind; they leave the stack as they
reach their ends. A client's result is that of `ClientTrainer` up to rounding, but for dropout, whose masks
are drawn for the whole stack.

A small stack is kept after each of its steps: a client that a command stops earlier is not trained again.

The task's loss runs under vmap: it must not depend on values of tensors (`.item()`, or `if` on a tensor).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, TaskFailed
from fedgc.messages import LARGEST_AMOUNT, Work
from fedgc.training.data import Columns, Rows, Samples
from fedgc.training.devices import deterministic_cudnn
from fedgc.training.flat import Vector
from fedgc.training.model_stack import (
    Batch,
    Change,
    ClientRows,
    Left,
    ModelStack,
    StackLoss,
    Start,
    check_stacks,
)
from fedgc.training.randomness import key, restored, seeded
from fedgc.training.sgd import PlainSGD
from fedgc.training.shared_momentum import led_share
from fedgc.training.simulated import ClientStates, Stretch, Trained, chunks_of, failing
from fedgc.training.tasks import Task
from fedgc.training.trainer import Trainer

BLOCK_BYTES: Final = 1 << 26  # of samples that are gathered at a time
KEPT_BYTES: Final = 1 << 25  # of a stack after all of its steps; one that takes more is not kept
KEPT_STACKS: Final = 8  # the latest stacks that are kept

Outcome = Trained | EdgeFailed


class _KeptStack:
    """The clients of a stack, and what they had after each of its steps."""

    def __init__(self, stack: ModelStack, members: Sequence[Stretch], lead: Sequence[Tensor]) -> None:
        """`members` are in the order of the stack, the longest first."""
        self.stack, self._members, self.lead = stack, members, lead
        self._at = {each.work.client: at for at, each in enumerate(members)}
        self._steps: list[tuple[ClientRows, Sequence[float]]] = []  # with the steps of the lead
        self._passed = 0

    def add(self, led: Sequence[float]) -> None:
        """Keep the present step, if the stack was small enough from its first step on."""
        rows, steps = self.stack.rows, self._members[0].last - self._members[0].first
        if steps > 1 and self._passed == len(self._steps) and rows.nbytes * steps <= KEPT_BYTES:
            self._steps.append((rows.part(torch.clone), led))
        self._passed += 1

    @property
    def is_kept(self) -> bool:
        """Whether there is a step to return to."""
        return bool(self._steps)

    def furthest(self, stretch: Stretch) -> int:
        """Return the last step of a client's stretch that is kept; its first one if there is none."""
        at = self._at.get(stretch.work.client)
        if at is None or _trajectory(self._members[at].work) != _trajectory(stretch.work):
            return stretch.first
        mine = self._members[at]
        step = min(stretch.last, mine.last, mine.first + len(self._steps))
        return step if step > max(mine.first, stretch.first) else stretch.first

    def left_at(self, client: str, step: int) -> tuple[Stretch, Left, float]:
        """Return the stretch of a client, what it had at a step that is kept, and its steps of the lead."""
        at = self._at[client]
        mine = self._members[at]
        rows, led = self._steps[step - mine.first - 1]
        (left,) = self.stack.left(rows.part(lambda each: each[at : at + 1]), self.lead, led[at : at + 1])
        return mine, left, led[at]


class StackedTrainer:
    """Trains stretches, many at a time."""

    def __init__(self, task: Task, config: RunConfig, folder: Path) -> None:
        """Make the trainer; raise BadTask for a task that a stack would train differently."""
        self._trainer = Trainer(task, config)
        check_stacks(self._trainer)
        self._has_state = not isinstance(self._trainer.new_optimizer(self._trainer.flat.optimized), PlainSGD)
        self._states = ClientStates(config, self._trainer.flat, folder)
        self._loss = StackLoss(self._trainer)
        self._batch_bytes = 0  # of a client; unknown before the first one
        self._kept_stacks = deque[_KeptStack](maxlen=KEPT_STACKS)

    # ---- what a trainer of other local steps replaces

    def losses(self, tensors: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the loss of each client on its batch."""
        return self._loss.of(tensors, batch)

    def batches_of(self, work: Work, steps: range) -> tuple[Samples, Sequence[Rows]]:
        """Return a client's samples, and which of them it uses at each of these steps of the run."""
        return self._trainer.batches_of(chunks_of(work), (work.seed, work.client), steps, work.pool)

    def change(self, works: Sequence[Work]) -> Change | None:  # noqa: ARG002  plain local SGD
        """Return what changes the gradients of these clients, or of the first of them; None: nothing."""
        return None

    # ---- stretches

    def share(self, models: Mapping[int, Vector]) -> None:
        """Train from these common models, in place of their files."""
        self._states.share(models)

    def kept(self, stretch: Stretch) -> tuple[int, Trained] | None:
        """Return the furthest step of a stretch that a stack has passed and kept, with the result there."""
        kept_stack = max(self._kept_stacks, key=lambda each: each.furthest(stretch), default=None)
        step = stretch.first if kept_stack is None else kept_stack.furthest(stretch)
        if kept_stack is None or step == stretch.first:
            return None
        longer, left, led = kept_stack.left_at(stretch.work.client, step)
        if left.bad_loss is not None:
            return None
        return step, self._written(stretch, left, longer.losses, led)

    def train(self, stretches: Sequence[Stretch]) -> list[Outcome]:
        """Do the steps; the outcome of a client whose training fails is the error."""
        outcomes = dict[int, Outcome]()
        alike = dict[tuple[object, ...], list[int]]()
        self._trainer.unload_others({chunks_of(each.work) for each in stretches})
        for at, stretch in enumerate(stretches):
            try:
                alike.setdefault((self._load(stretch.work), *self._kind(stretch)), []).append(at)
            except EdgeFailed as error:
                outcomes[at] = error
        for members in alike.values():
            members.sort(key=lambda at: stretches[at].first - stretches[at].last)
            outcomes |= zip(members, self._outcomes([stretches[at] for at in members]), strict=True)
        return [outcomes[at] for at in range(len(stretches))]

    def _load(self, work: Work) -> int:
        """Load a client's samples; return how many a batch has."""
        size = self._trainer.config.batch_size
        with failing(work):
            samples = self._trainer.load(chunks_of(work))
            for client, names in work.pool.holders if work.pool is not None else ():
                held = sum(self._trainer.sizes[name] for name in names)
                if held < size:  # a batch would then have another size in each step
                    raise TaskFailed(f"stack: saw {held} samples of {client}, needed {size} for a batch")
        return min(size, samples)

    def _kind(self, stretch: Stretch) -> tuple[object, ...]:
        """Return what the stretches have in common that are trained together."""
        work, config = stretch.work, self._trainer.config
        varies = config.schedule != "constant" or bool(config.warmup_steps)
        leads = config.alpha < 1.0 and (work.version, work.before, work.first_step, work.common_steps)
        return (
            stretch.first if self._has_state else -1,  # it counts steps
            work.first_step + stretch.first if varies else -1,
            leads,
        )

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
        """Train stretches of one kind, the longest first."""
        trainer, work, led = self._trainer, group[0].work, [each.led for each in group]
        lead = self._states.lead_of(work)
        leads = () if lead is None else trainer.flat.parts(lead)
        stack = ModelStack(trainer, self._starts(group))
        kept_stack, blocks = _KeptStack(stack, group, leads), _Blocks(self.batches_of, self._batch_bytes)
        change = self.change([each.work for each in group])
        outcomes, done = list[Outcome](), 0
        while group:
            at, batch = work.first_step + group[0].first + done, blocks.batch(group, done)
            share = trainer.config.rate_share(at)
            with seeded(key(work.seed, work.client, "stack", at)), deterministic_cudnn(trainer.device):
                stack.step(self.losses, batch, share, change)
            if leads:
                shares = [led_share(share, each.first + done, work.common_steps) for each in group]
                stack.subtract(leads, shares)
                led = [so_far + more for so_far, more in zip(led, shares, strict=True)]
            done += 1
            kept_stack.add(led)
            if ending := [each for each in group if each.last - each.first == done]:
                group, left_led = group[: -len(ending)], led[-len(ending) :]
                led = led[: len(group)]
                left = stack.leave(len(ending), leads, left_led)
                outcomes[:0] = map(self._outcome, ending, left, left_led)
        self._batch_bytes = blocks.batch_bytes
        if kept_stack.is_kept and not trainer.flat.private:  # private tensors depend on earlier common models
            self._kept_stacks.append(kept_stack)
        return outcomes

    def _starts(self, group: Sequence[Stretch]) -> list[Start]:
        versions = {each.work.version for each in group}
        models = {version: self._states.model(version) for version in sorted(versions)}
        return [Start(models[each.work.version], *self._states.kept(each)) for each in group]

    def _outcome(self, stretch: Stretch, left: Left, led: float) -> Outcome:
        work = stretch.work
        if left.bad_loss is not None:
            return EdgeFailed(
                f"training: {work.client}, round {work.round}: the loss is {left.bad_loss}, "
                f"needed a number up to {LARGEST_AMOUNT:g}"
            )
        return self._written(stretch, left, stretch.losses, led)

    def _written(self, stretch: Stretch, left: Left, losses: float, led: float) -> Trained:
        """Write what a client keeps; `losses` is the sum over the steps before those in the stack."""
        trained = Trained(losses + left.losses, led, left.squared_norm, stretch.room)
        return self._states.written(stretch, left.saved, left.private, trained)


class _Blocks:
    """The batches of a group of clients, gathered for several steps at a time."""

    def __init__(
        self, batches_of: Callable[[Work, range], tuple[Samples, Sequence[Rows]]], batch_bytes: int
    ) -> None:
        """`batch_bytes` are those of a client's batch, or 0 if they are unknown."""
        self._batches_of, self.batch_bytes = batches_of, batch_bytes
        self._block: Batch = None  # clients x steps x samples
        self._first = self._end = 0  # steps of the block

    def batch(self, group: Sequence[Stretch], done: int) -> Batch:
        """Return the batches of the step after `done` ones, with the clients along the first dimension."""
        if done >= self._end:
            most = BLOCK_BYTES // (self.batch_bytes * len(group)) if self.batch_bytes else 1
            leaves = group[-1].last - group[-1].first  # no sample is read that no step needs
            self._first, self._end = done, min(done + max(1, most), leaves)
            flat = _merged(torch.stack, [self._of(each) for each in group])
            steps = self._end - done
            self._block = _merged(lambda tensors: torch.unflatten(tensors[0], 1, (steps, -1)), [flat])
            self.batch_bytes = _bytes(self._block) // steps // len(group)
        count, step = len(group), done - self._first
        return _merged(lambda tensors: tensors[0][:count, step], [self._block])

    def _of(self, stretch: Stretch) -> Batch:
        """Return the samples of one client for all steps of the block."""
        work, first = stretch.work, stretch.work.first_step + stretch.first
        steps = range(first + self._first, first + self._end)
        samples, rows_of_steps = self._batches_of(work, steps)
        if isinstance(samples, Columns):
            return samples.batch(np.concatenate(rows_of_steps))
        batches = []
        for at, rows in zip(steps, rows_of_steps, strict=True):
            with seeded(key(work.seed, work.client, at)):  # a dataset may change its items at random
                batches.append(samples.batch(rows))
        return _merged(torch.cat, batches)


def _trajectory(work: Work) -> tuple[object, ...]:
    """Return what the steps of a client depend on."""
    led = work.before, work.first_step, work.common_steps
    return work.client, work.version, work.names, work.pool, *led


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
