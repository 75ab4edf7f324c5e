"""The engine of coded work: trains each chunk by itself, and mixes finished chunks into codewords.

The queue is `Work.order`; a finished chunk is followed by the next one at once, unless `lockstep`. `Skip`
removes a chunk from the queue and keeps its trajectory. `Take` moves chunks to the front; those that are
finished are reported again. `Continue` trains the same trajectories up to a higher target.
"""

from collections import deque
from contextlib import suppress
from typing import Final

import numpy as np

from fedgc.errors import BadMessage, EdgeFailed, NotHere
from fedgc.messages import Continue, Mix, Progress, Repair, Report, Reveal, Skip, Take, Work
from fedgc.training.engine import Engine
from fedgc.training.flat import Vector
from fedgc.training.pace import Pace
from fedgc.training.randomness import key
from fedgc.training.trainer import Pass, Trainer
from fedgc.training.trajectories import Trajectories
from fedgc.training.update import Measure, measure, mixed

WORTH_S: Final = 0.5  # a chunk that took longer is written to disk as soon as it is finished


class CodedEngine(Engine):
    """Trains the chunks of a round in order."""

    def __init__(self, trainer: Trainer, trajectories: Trajectories, pace: Pace) -> None:
        super().__init__(trainer, trajectories, pace)
        self._queue: deque[int] = deque()
        self._again: deque[int] = deque()  # finished chunks to report once more
        self._waits = False  # lockstep: for a command after a finished chunk

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing until a command comes."""
        if self._to_say:
            return False
        return not self._again and (self._waits or (self._current is None and not self._queue))

    def answer(self, command: Reveal | Repair) -> tuple[None, Vector]:
        """Return the codeword that is asked for."""
        if command.mix is None:
            raise BadMessage(f"{type(command).__name__}: saw no mix, needed one, this is coded work")
        return None, self.codeword(command.mix)

    def codeword(self, mix: Mix) -> Vector:
        """Mix finished updates; raise NotHere if some are not finished, EdgeFailed if one is unreadable."""
        work = self._begun(mix)
        return mixed(self._models[work.version], self._ends(mix.chunks, work), mix)

    def mean_update(self, command: Reveal) -> tuple[Vector, int]:
        """Return the mean update of the finished chunks, and their samples."""
        work = self._this_round(command)
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
            said = f"codeword: chunk {chunk} is at step {reached(chunk)}, needed {work.target}"
            raise NotHere(said, lacking)
        return [(self._trajectories.vector(chunk), self._trajectories[chunk].samples) for chunk in chunks]

    # ---- commands

    def _begin(self, work: Work) -> None:
        if work.kind != "coded":
            raise BadMessage(f"work of round {work.round}: saw {work.kind} work, needed coded")
        super()._begin(work)

    def _continue(self, command: Continue) -> None:
        self._begun(command)
        unknown = set(command.order) - set(self._names)
        if unknown:
            raise BadMessage(f"continue: saw chunks {sorted(unknown)}, which no work has named")
        super()._continue(command)

    def _lead_of(self, work: Work) -> Vector | None:
        """Return the lead of this work; replicas of a chunk only agree if all clients have the same lead."""
        lead = super()._lead_of(work)
        lacks = lead is None and work.common_steps and work.version - 1 not in self._models
        if lacks and self._trainer.config.alpha < 1:
            raise BadMessage(
                f"work of round {work.round}: needed model version {work.version - 1} as well, from which "
                "shared momentum is computed"
            )
        return lead

    def _named(self, work: Work) -> dict[int, str]:
        return dict(work.names)

    def _start_round(self, work: Work, order: tuple[int, ...]) -> None:  # noqa: ARG002  the order says all
        self._queue = deque(order)
        self._again.clear()
        self._waits = False

    def _reorder(self, command: Skip | Take, work: Work) -> None:
        self._waits = False
        if isinstance(command, Skip):
            if command.chunk == self._current:
                self._set_aside()
            self._unqueue(command.chunk)
        else:
            for chunk in reversed(command.chunks):
                self._take(chunk, work)

    def _take(self, chunk: int, work: Work) -> None:
        if chunk not in self._names:
            reason = f"chunk {chunk} is not among the {len(self._names)} that the work has named"
            self._fail(chunk, work, reason)
        elif self._trajectories.reached(chunk) == work.target:
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

    def _next(self) -> int:
        if self._again:
            return self._again.popleft()
        return self._queue.popleft() if self._current is None else self._current

    def _goal(self, work: Work) -> int:
        return work.target

    def _load(self, chunk: int, work: Work) -> int:  # noqa: ARG002  a chunk is all data of its trajectory
        return self._trainer.load((self._names[chunk],))

    def _pass(self, chunk: int, work: Work) -> tuple[tuple[str, ...], Pass]:
        reached = self._trajectories.reached(chunk)
        share = self._trainer.config.rate_share(work.first_step + reached)
        return (self._names[chunk],), Pass((work.seed, work.version, chunk), reached, share)

    def _finished(self, chunk: int, work: Work) -> Progress | Report:
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
        )

    def _measured(self, chunk: int, work: Work) -> Measure:
        trajectory, start = self._trajectories[chunk], self._models[work.version]
        signs = key(work.seed, work.version, "sketch")  # one projection for all chunks, to compare them
        trajectory.measured = measure(start, self._trajectories.vector(chunk), trajectory.samples, signs)
        if trajectory.seconds >= WORTH_S:
            with suppress(EdgeFailed):  # it is in memory as well
                self._trajectories.write(chunk, start)
        return trajectory.measured
