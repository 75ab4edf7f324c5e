"""The engine of coded work: trains each chunk by itself, and mixes finished chunks into codewords.

The queue is `Work.order`; a finished chunk is followed by the next one at once, unless `lockstep`. A chunk
that is being fetched waits for those that are here. `Skip` removes a chunk from the queue and keeps its
trajectory. `Take` moves chunks to the front; those that are finished are reported again. `Continue` trains
the same trajectories up to a higher target.
"""

from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from fedgc.errors import BadMessage, EdgeFailed, NotHere
from fedgc.messages import (
    Continue,
    Failed,
    Fetched,
    Held,
    Layout,
    Mix,
    Progress,
    Repair,
    Reveal,
    Skip,
    Take,
    Work,
)
from fedgc.training.cache import Saved
from fedgc.training.engine import Answer, Engine, failed
from fedgc.training.flat import Vector
from fedgc.training.pace import Pace
from fedgc.training.randomness import key
from fedgc.training.trainer import LocalStep, Trainer
from fedgc.training.trajectories import Trajectories
from fedgc.training.update import Measure, measure, mixed

MOST_NAMED: Final = 1000  # chunks of a failure: what a server names without end must fit a line
WORTH_S: Final = 0.5  # a chunk that took longer is written to disk once finished


class CodedEngine(Engine):
    """Trains the chunks of a round one by one, in order (coded work)."""

    def __init__(self, trainer: Trainer, trajectories: Trajectories, pace: Pace) -> None:
        super().__init__(trainer.config, trajectories)
        self._trainer, self._pace = trainer, pace
        self._queue: deque[int] = deque()
        self._again: deque[int] = deque()  # finished chunks to report once more
        self._waits = False  # lockstep: waiting for a command after a finished chunk

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing until a command comes."""
        if self._pending_events:
            return False
        return not self._again and (self._waits or (self._current is None and not self._queue))

    @property
    def layout(self) -> Layout:
        """The layout of the task's model."""
        return self._trainer.layout

    def initial(self) -> Vector:
        """Return the task's initial model."""
        return self._trainer.initial()

    def holds(self) -> tuple[Held, ...]:
        """Return the chunks that this client can load."""
        return self._trainer.holds()

    def answer(self, command: Reveal | Repair) -> Answer:
        """Return the requested codeword, or the mean update for a masked exchange."""
        if isinstance(command, Reveal) and command.kind == "masked":
            update, samples = self.mean_update(command)
            return Answer(command, None, update, samples)
        if command.mix is None:
            raise BadMessage(f"{type(command).__name__}: saw no mix, needed one, this is coded work")
        return Answer(command, None, self.codeword(command.mix))

    def codeword(self, mix: Mix) -> Vector:
        """Mix finished updates; raise NotHere if one is unfinished, EdgeFailed if one is unreadable."""
        work = self._require_work(mix)
        return mixed(self._models[work.version], self._ends(mix.chunks, work), mix)

    def mean_update(self, command: Reveal) -> tuple[Vector, int]:
        """Return the mean update of the finished chunks, and their samples."""
        work = self._require_round(command)
        reached = self._trajectories.reached
        done = [chunk for chunk in sorted(self._names) if reached(chunk) == work.target]
        if not done:
            raise BadMessage("update: saw no finished chunk, needed one at least")
        update = self.codeword(Mix(tuple(done), ((1.0,),) * len(done)))
        samples = sum(self._trajectories[chunk].samples for chunk in done)
        update /= np.float32(samples)
        return update, samples

    def _ends(self, chunks: tuple[int, ...], work: Work) -> list[tuple[Vector, int]]:
        reached = self._trajectories.reached
        lacking = tuple(chunk for chunk in chunks if reached(chunk) != work.target)
        if lacking:
            chunk = lacking[0]
            reason = f"codeword: chunk {chunk} is at step {reached(chunk)}, needed {work.target}"
            raise NotHere(reason, lacking)
        return [(self._trajectories.vector(chunk), self._trajectories[chunk].samples) for chunk in chunks]

    def leave(self) -> None:
        """Train no more chunks; those that are finished are reported already."""
        self._save_current()
        self._queue.clear()

    @property
    def has_work(self) -> bool:
        """Whether a chunk is finished."""
        work, reached = self._work, self._trajectories.reached
        return work is not None and any(reached(chunk) == work.target for chunk in self._names)

    # ---- commands

    def _begin(self, work: Work) -> None:
        if work.kind != "coded":
            raise BadMessage(f"work of round {work.round}: saw {work.kind} work, needed coded")
        super()._begin(work)

    def _continue(self, command: Continue) -> None:
        self._require_work(command)
        unknown = set(command.order) - set(self._names)
        if unknown:
            raise BadMessage(f"continue: saw chunks {sorted(unknown)}, which no work has named")
        super()._continue(command)

    def _named(self, work: Work) -> dict[int, str]:
        return dict(work.names)

    def _start_round(self, order: tuple[int, ...]) -> None:
        self._queue = deque(order)
        self._hold()
        self._again.clear()
        self._waits = False

    def _reorder(self, command: Skip | Take, work: Work) -> None:
        self._waits = False
        if isinstance(command, Skip):
            if command.chunk == self._current:
                self._save_current()
            self._unqueue(command.chunk)
        else:
            for chunk in reversed(command.chunks):
                if chunk in self._names:
                    self._take(chunk, work)
            self._hold()
            if unknown := tuple(chunk for chunk in command.chunks if chunk not in self._names):
                reason = f"chunk {unknown[0]} is not among the {len(self._names)} chunks of the work"
                self._pending_events.append(
                    replace(failed(unknown[0], work, reason), chunks=unknown[:MOST_NAMED])
                )

    def _hold(self) -> None:
        """Have the chunks fetched in the order of the queue."""
        self._trainer.hold([self._names[chunk] for chunk in dict.fromkeys((*self._queue, *self._names))])

    def _take(self, chunk: int, work: Work) -> None:
        if self._trajectories.reached(chunk) == work.target:
            if chunk not in self._again:
                self._again.append(chunk)
        elif chunk != self._current:
            self._unqueue(chunk)
            self._queue.appendleft(chunk)

    def _unqueue(self, chunk: int) -> None:
        self._queue = deque(each for each in self._queue if each != chunk)
        self._again = deque(each for each in self._again if each != chunk)

    def _clear_queue(self) -> None:
        self._queue.clear()
        self._again.clear()

    # ---- training

    def _turn(self) -> Progress | Failed | None:
        if self._work is None:
            return None
        chunk = self._next()
        try:
            return self._advance(chunk, self._work)
        except Exception as error:  # the task's code may raise anything
            return self._abandon(chunk, self._work, error)

    def _advance(self, chunk: int, work: Work) -> Progress | None:
        if chunk == self._current:
            began = self._pace.clock()
        elif self._trajectories.reached(chunk) >= work.target:
            return self._finished(chunk, work)
        else:
            samples = self._trainer.load((self._names[chunk],))  # the chunk's time excludes loading
            began = self._pace.clock()
            self._tell_fetched(work)
            self._open(chunk, samples, work)
        trajectory = self._trajectories[chunk]
        if self._pace.behind:
            trajectory.seconds += self._pace.catch_up()
            return None
        share = self._config.rate_share(work.first_step + trajectory.reached)
        local_step = LocalStep((work.seed, work.version, chunk), trajectory.reached, share)
        trajectory.losses += self._trainer.step((self._names[chunk],), local_step)
        trajectory.reached += 1
        trajectory.measured = None
        trajectory.seconds += self._pace.after_step(began)
        if trajectory.reached < work.target:
            return None
        self._save_current()
        return self._finished(chunk, work) if chunk in self._trajectories else None

    def _tell_fetched(self, work: Work) -> None:
        count, size_bytes, seconds = self._trainer.fetched()
        if count:
            self._pending_events.append(Fetched(0.0, work.client, count, size_bytes, seconds))

    def _open(self, chunk: int, samples: int, work: Work) -> None:
        saved = self._trajectories.take(chunk)
        if saved is None:
            self._trajectories.start(chunk, self._names[chunk], samples)
            self._trainer.begin(self._models[work.version])
        else:
            self._trainer.resume(saved)
        self._current = chunk

    def _saved(self) -> Saved:
        return self._trainer.save()

    def _validate(self, version: int, model: Vector) -> bool:
        self._save_current()
        scored = self._trainer.validate(version, model)
        self._pending_events += [scored] if scored is not None else []
        return scored is not None

    def _next(self) -> int:
        if self._again:
            return self._again.popleft()
        if self._current is not None:
            return self._current
        chunk = next(filter(self._is_ready, self._queue), self._queue[0])
        self._queue.remove(chunk)
        return chunk

    def _is_ready(self, chunk: int) -> bool:
        """Whether this chunk waits for no fetch."""
        finished = self._work is not None and self._trajectories.reached(chunk) >= self._work.target
        return finished or self._trainer.is_here(self._names[chunk])

    def _finished(self, chunk: int, work: Work) -> Progress:
        trajectory = self._trajectories[chunk]
        measured = trajectory.measured or self._measured(chunk, work)
        self._waits = work.lockstep
        return Progress(
            now=0.0,
            client=work.client,
            round=work.round,
            chunk=chunk,
            reached=trajectory.reached,
            seconds=trajectory.seconds,
            samples=trajectory.samples,
            squared_norm=measured.squared_norm,
            loss=trajectory.losses / trajectory.reached,
            sketch=measured.sketch,
            model_norm=measured.model_norm,
        )

    def _measured(self, chunk: int, work: Work) -> Measure:
        trajectory, start = self._trajectories[chunk], self._models[work.version]
        signs = key(work.seed, work.version, "sketch")  # one projection for all chunks, to compare them
        trajectory.measured = measure(start, self._trajectories.vector(chunk), trajectory.samples, signs)
        if trajectory.seconds >= WORTH_S:
            with suppress(EdgeFailed):  # it is in memory as well
                self._trajectories.write(chunk, start)
        return trajectory.measured
