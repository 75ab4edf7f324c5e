"""The local loop of a task: its steps are done by a `Trainer`, in the engine's thread.

Steps are numbered through the whole run, so that batches continue from one common model to the next.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from fedgc.errors import EdgeFailed
from fedgc.large_vectors import Readable
from fedgc.messages import Held, Layout, Scored, Work
from fedgc.training.cache import Saved
from fedgc.training.cache_files import CacheFiles
from fedgc.training.flat import Vector
from fedgc.training.injection import pool_chunks
from fedgc.training.local_loop import Advance, Begin, LocalLoop
from fedgc.training.pace import Pace
from fedgc.training.shared_momentum import led_share
from fedgc.training.trainer import LocalStep, Trainer


class TaskLoop(LocalLoop):
    """Trains the task's model on the client's chunks together."""

    def __init__(
        self,
        trainer: Trainer,
        pace: Pace,
        files: CacheFiles | None = None,
        leave: Callable[[str], None] = lambda _: None,
        *,
        keeps: int = 0,
    ) -> None:
        """Make the loop.

        Args:
            trainer: Does the steps.
            pace: Enforces the least time of a step.
            files: Keep private tensors.
            leave: Called, with the reason, once the privacy of records allows no further step.
            keeps: How many sets of chunks besides the present one stay in memory.
        """
        self._trainer, self._pace, self._files, self._leave = trainer, pace, files, leave
        self._keeps = keeps
        self.records = trainer.records
        if files is not None and trainer.flat.private:
            trainer.flat.write_private(files.private())
        self._begin: Begin | None = None
        self._began: float | None = None  # when the first step's time began
        self._scores: list[Scored] = []

    @property
    def layout(self) -> Layout:
        """The layout of the task's model."""
        return self._trainer.layout

    @property
    def sizes(self) -> Mapping[str, int]:
        """The chunks of the task."""
        return self._trainer.sizes

    def holds(self) -> tuple[Held, ...]:
        """Return the chunks of the task, with digests if they are shared."""
        return self._trainer.holds()

    def initial(self) -> Vector:
        """Return the model as the task makes it."""
        return self._trainer.initial()

    def begin(self, begin: Begin) -> None:
        """Load the samples and the trajectory; the time of loading samples is not measured."""
        work = begin.work
        chunks = begin.chunks if work.pool is None else pool_chunks(work.pool)
        self._trainer.hold(chunks)
        self._trainer.unload(self._keeps, chunks)
        self._trainer.load(chunks)
        self._began = self._pace.clock()
        self._trainer.follow(begin.lead)
        if begin.saved is None:
            self._trainer.begin(begin.model)
        else:
            self._trainer.resume(begin.saved)
        self._begin = begin

    def merge(self, begin: Begin, parts: Sequence[slice], own: float) -> None:
        """Write the parts into the module; the optimizer is not touched."""
        for part in parts:
            self._trainer.flat.mix(begin.model, part, own)
        self._begin = begin

    def go_on(self, work: Work) -> None:
        """Do nothing: the next step is done when it is asked for."""

    def advance(self, reached: int, goal: int) -> Advance | None:
        """Do one step, or wait for what is left of the last one's least time."""
        begin = self._begin
        if begin is None or reached >= goal:
            return None
        if self.records is not None and (spent := self.records.ending):
            self._leave(spent)
            return None
        began, self._began = self._began, None
        if began is None:
            began = self._pace.clock()
        if self._pace.behind:
            return Advance(0, self._pace.catch_up(), 0.0)
        work, at = begin.work, begin.work.first_step + reached
        share = self._trainer.config.rate_share(at)
        led = led_share(share, reached, work.common_steps) if begin.lead is not None else 0.0
        local_step = LocalStep((work.seed, work.client), at, share, led, work.pool)
        loss = self._trainer.step(begin.chunks, local_step)
        self.squared_gradient = self._trainer.squared_gradient
        if self._trainer.config.measure == "gradient":  # which the next report tells
            self._keep_spent()
        return Advance(1, self._pace.after_step(began), loss, led)

    def vector(self) -> Readable:
        """Return the present model."""
        self._keep_spent()
        return self._trainer.flat.view()

    def hand_in(self, *, wait: bool = False) -> Readable:  # noqa: ARG002  it is there at once
        """Return the present model."""
        self._keep_spent()
        if self._files is not None and self._trainer.flat.private:
            with suppress(EdgeFailed):  # a full disk: a later process trains them anew
                self._files.put_private(self._trainer.flat.read_private())
        return self._trainer.flat.view()

    def saved(self) -> Saved:
        """Return a copy of the trajectory."""
        self._keep_spent()
        return self._trainer.save()

    @property
    def scores_models(self) -> bool:
        """Whether the task has a function for that, whose figures may leave."""
        return self._trainer.scores_models and self.records is None

    def validate(self, version: int, model: Vector) -> bool:
        """Score the model with the task's function, if it has one."""
        scored = self._trainer.validate(version, model) if self.scores_models else None
        self._scores += [scored] if scored is not None else []
        return scored is not None

    def scores(self, *, wait: bool) -> tuple[Scored, ...]:  # noqa: ARG002  they are there at once
        """Return the figures since the last call."""
        scores, self._scores = tuple(self._scores), []
        return scores

    def rest(self) -> None:
        """Do nothing: no step is done unless it is asked for."""

    def close(self, *, complete: bool) -> None:  # noqa: ARG002  the loop has no resources of its own
        """Write what is spent of the privacy of records."""
        with suppress(EdgeFailed):  # nothing leaves any more
            self._keep_spent()

    def _keep_spent(self) -> None:
        if self.records is not None:
            self.records.keep()
