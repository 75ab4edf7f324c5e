"""The engine of local work: local SGD on all chunks of the client, with partial steps.

There is one trajectory, number WHOLE. The engine reports at the target and goes on up to `Work.most_steps`
until a command comes; there it reports again, and waits. A request for its update stops it at any step. Steps
are numbered through the whole run, so that batches go on from one common model to the next.
"""

import math

from fedgc.codecs import EXACT, make_codec
from fedgc.errors import BadMessage, TaskFailed
from fedgc.messages import Failed, Progress, Repair, Report, Reveal, Skip, Take, Work
from fedgc.training.engine import Engine
from fedgc.training.flat import Vector
from fedgc.training.injection import everything
from fedgc.training.local_update import WHOLE, names, title, with_rest
from fedgc.training.pace import Pace
from fedgc.training.shared_momentum import squared_way
from fedgc.training.trainer import Pass, Trainer
from fedgc.training.trajectories import Trajectories, Trajectory
from fedgc.training.update import update_of


class LocalEngine(Engine):
    """Trains one model on the client's data."""

    def __init__(self, trainer: Trainer, trajectories: Trajectories, pace: Pace) -> None:
        super().__init__(trainer, trajectories, pace)
        self._rounded = trajectories.rest()  # what rounding of updates has cost so far
        self._queued = False  # there is work to do
        self._ahead = False  # it has reported in this round, and goes on

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing until a command comes."""
        return not self._to_say and not self._queued

    def answer(self, command: Reveal | Repair) -> tuple[Report, Vector | None]:
        """Return the report and the update."""
        if not isinstance(command, Reveal) or command.kind != "local":
            raise BadMessage(f"{type(command).__name__}: needed a request for an update, this is local work")
        return self.update(command)

    def update(self, command: Reveal) -> tuple[Report, Vector | None]:
        """Stop at the present step; return how far training came and the update, None without any step."""
        work = self._this_round(command)
        self._set_aside()
        self._clear_queue()
        report = self._report(work)
        if not report.steps:
            return report, None
        update = update_of(self._models[work.version], self._trajectories.vector(WHOLE), 1)
        if command.wire != EXACT:
            stamp = (command.round, command.attempt, command.client)
            update, self._rounded = with_rest(update, make_codec(command.wire), stamp, self._rounded)
        return report, update

    def mean_update(self, command: Reveal) -> tuple[Vector, int]:
        """Return the update and the client's samples."""
        report, update = self.update(command)
        if update is None:
            raise BadMessage("update: saw no step since the common model, needed one at least")
        return update, report.samples

    def keep(self) -> tuple[Report | Failed, ...]:
        """Write everything for a later process; return the steps done towards the target, and failures."""
        self._set_aside()
        self._trajectories.write_rest(self._rounded)
        under_way = self._work is not None and self._queued
        reports = [self._report(self._work)] if self._work is not None and under_way else []
        return (*reports, *super().keep())

    # ---- commands

    def _begin(self, work: Work) -> None:
        if work.kind != "local":
            raise BadMessage(f"work of round {work.round}: saw {work.kind} work, needed local")
        super()._begin(work)

    def _named(self, work: Work) -> dict[int, str]:
        return {WHOLE: title(dict(work.names))}

    def _start_round(self, work: Work, order: tuple[int, ...]) -> None:  # noqa: ARG002  the order says all
        self._queued, self._ahead = bool(order), False

    def _reorder(self, command: Skip | Take, work: Work) -> None:  # noqa: ARG002  there is no queue of chunks
        raise BadMessage(f"{command!r}: local work has no order of chunks")

    def _unqueue(self, chunk: int) -> None:  # noqa: ARG002  there is but one
        self._clear_queue()

    def _clear_queue(self) -> None:
        self._queued = self._ahead = False

    # ---- training

    def _next(self) -> int:
        return WHOLE

    def _goal(self, work: Work) -> int:
        return work.most_steps if self._ahead else work.target

    def _load(self, chunk: int, work: Work) -> int:
        sources = names(self._names[chunk])
        if work.pool is None:
            return self._trainer.load(sources)
        self._trainer.load(everything(work.pool))
        return self._samples(sources)

    def _pass(self, chunk: int, work: Work) -> tuple[tuple[str, ...], Pass]:
        at = work.first_step + self._trajectories.reached(chunk)
        share = self._trainer.config.rate_share(at)
        return names(self._names[chunk]), Pass((work.seed, work.client), at, share, work.pool)

    def _finished(self, chunk: int, work: Work) -> Progress | Report:
        self._queued = self._ahead = self._trajectories.reached(chunk) < work.most_steps
        return self._report(work)

    def _report(self, work: Work) -> Report:
        """Return how far training is, with what the gate needs."""
        known = self._trajectories
        at = known[WHOLE] if WHOLE in known else Trajectory(self._names[WHOLE], 0)
        squared_norm = self._squared_norm(at, work)
        if not math.isfinite(squared_norm):
            raise TaskFailed(f"the squared norm is {squared_norm}, needed a finite number")
        loss = at.losses / at.reached if at.reached else 0.0
        samples = self._samples(names(at.name))
        return Report(0.0, work.client, work.round, at.reached, samples, at.seconds, squared_norm, loss)

    def _squared_norm(self, at: Trajectory, work: Work) -> float:
        if not at.reached or self._trainer.config.measure == "gradient":
            return self._trainer.squared_gradient
        parameters = self._trainer.flat.parameters
        start, now = self._models[work.version][:parameters], self._trajectories.vector(WHOLE)[:parameters]
        return squared_way(start, now, self._lead, at.led)

    def _samples(self, sources: tuple[str, ...]) -> int:
        return sum(self._trainer.sizes[name] for name in sources)
