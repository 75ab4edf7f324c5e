"""The engine of local work: local SGD with partial work on all data of the client (FedAvg, McMahan 2017).

What trains is a `LocalLoop`: that of a task, or a training script. There is one trajectory
(`LOCAL_TRAJECTORY`). The engine reports at the target, lets the loop continue up to `Work.most_steps`,
reports again and waits. A request for the update stops the loop at the end of its present step.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from fedgc.codecs import EXACT, make_codec
from fedgc.config import RunConfig
from fedgc.errors import BadMessage, EdgeFailed, FedgcError, TaskFailed
from fedgc.fragments import fragment_of
from fedgc.large_vectors import Readable
from fedgc.messages import (
    Close,
    Continue,
    Failed,
    Held,
    Layout,
    Repair,
    Report,
    Reveal,
    Scored,
    Skip,
    Take,
    Work,
)
from fedgc.training.cache import Saved
from fedgc.training.engine import LONGEST_REASON, Answer, Engine, EngineEvent
from fedgc.training.figures import UNNAMED
from fedgc.training.flat import Vector, check_parts
from fedgc.training.local_loop import Begin, LocalLoop
from fedgc.training.local_update import (
    LOCAL_TRAJECTORY,
    Residuals,
    chunk_names,
    trajectory_name,
    with_error_feedback,
)
from fedgc.training.record_privacy import RecordPrivacy
from fedgc.training.shared_momentum import squared_distance
from fedgc.training.trajectories import Origin, Trajectories, Trajectory
from fedgc.training.update import MeanUpdate

KINDS: Final = ("local", "masked")


class LocalEngine(Engine):
    """Trains one model on all data of the client."""

    def __init__(self, loop: LocalLoop, config: RunConfig, trajectories: Trajectories) -> None:
        super().__init__(config, trajectories)
        self._loop, self._fragments = loop, config.fragments
        self._residuals = Residuals(trajectories.residual())
        self._queued = False  # there is work to do
        self._ahead = False  # it has reported at the target and continues
        self._asked: Reveal | None = None  # for the update, which the loop has yet to hand in
        self._leaves = False  # it has yet to report what it has, for the last time
        self._awaits_score = False
        self._measured: tuple[int, int, float] | None = None  # version, steps and squared norm
        self._scoring = 0  # the version that the loop was told to score last
        self._sent: tuple[int, float, float] | None = None  # of the fragment sent: steps, seconds, losses

    @property
    def layout(self) -> Layout | None:
        """The layout of the loop's model."""
        layout = self._loop.layout
        if layout is not None:
            self._trajectories.open(layout.size)
        return layout

    def holds(self) -> tuple[Held, ...]:
        """Return the chunks that the loop trains on."""
        return self._loop.holds()

    @property
    def records(self) -> RecordPrivacy | None:
        """What the loop has spent of the privacy of its records, if they are protected."""
        return self._loop.records

    def initial(self) -> Vector:
        """Return the model as this client made it."""
        return self._loop.initial()

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing until a command comes."""
        waits = self._queued or self._asked is not None or self._awaits_score or self._leaves
        return not self._pending_events and not waits

    def answer(self, command: Reveal | Repair) -> Answer | None:
        """Stop at the end of the present step; return the report and the update, once they are there.

        With fragments training goes on as soon as the numbers of the fragment are copied.
        """
        if not isinstance(command, Reveal) or command.kind not in KINDS:
            raise BadMessage(f"{type(command).__name__}: needed a request for an update, this is local work")
        self._require_round(command)
        if self._fragments == 1:
            self._clear_queue()
        self._asked = command
        return self._handed_in(command)

    def leave(self) -> None:
        """Stop at the end of the present step, and report the steps that are done."""
        if self._work is not None and self._asked is None:
            self._clear_queue()
            self._leaves = LOCAL_TRAJECTORY in self._trajectories

    @property
    def has_work(self) -> bool:
        """Whether a step was done."""
        return self._work is not None and self._trajectories.reached(LOCAL_TRAJECTORY) > 0

    def keep(self) -> tuple[Report | Failed, ...]:
        """Write to the client cache; return the report of unfinished work, and failures."""
        under_way = self._work is not None and self._queued
        self._save_current()
        self._trajectories.write_residual(self._residuals.whole(self.size))
        reports = [self._report(self._work)] if self._work is not None and under_way else []
        return (*reports, *super().keep())

    def close(self, *, complete: bool = False) -> None:
        """End the loop, and discard what the client cache does not hold."""
        super().close(complete=complete)
        self._loop.close(complete=complete)

    # ---- commands

    def _begin(self, work: Work) -> None:
        if work.kind != "local":
            raise BadMessage(f"work of round {work.round}: saw {work.kind} work, needed local")
        self._asked = None
        if not self._goes_on_with(work):
            super()._begin(work)
        self._sent = None
        self._go_on()

    def _goes_on_with(self, work: Work) -> bool:
        """Go on from the present trajectory, if only parts of the model have changed since its own."""
        changed, before = self._changed, self._work
        if self._fragments == 1 or changed is None or before is None or before.version == work.version:
            return False
        same = changed.since == before.version and (before.names, before.pool) == (work.names, work.pool)
        if not same or LOCAL_TRAJECTORY not in self._trajectories:
            return False
        if self._current is None:  # it was put aside to score a model
            self._open(before, self._trajectories.reached(LOCAL_TRAJECTORY))
        try:
            if self._loop.hand_in(wait=True) is None:
                return False
        except FedgcError:
            return False
        self._count_steps(self._trajectories.reached(LOCAL_TRAJECTORY))
        self._merge(work, changed.parts)
        return True

    def _merge(self, work: Work, parts: Sequence[slice]) -> None:
        """Enter a new common model into the trajectory; steps that were handed in no longer count."""
        trajectory, model = self._trajectories[LOCAL_TRAJECTORY], self._model(work)
        steps, seconds, losses = self._sent or (0, 0.0, 0.0)
        own = self._config.fragment_mixing if trajectory.reached > steps else 0.0
        trajectory.reached -= steps
        trajectory.seconds, trajectory.losses = trajectory.seconds - seconds, trajectory.losses - losses
        self._trajectories.move(Origin(work.version, work.seed, work.first_step, work.common_steps))
        self._models, self._work = {work.version: model}, work
        names = chunk_names(trajectory.name)
        self._loop.merge(Begin(work, names, model, None, None, trajectory.reached), parts, own)
        self._start_round(work, work.order)
        self._validate_due(work, model)

    def _go_on(self) -> None:
        if self._work is not None and self._current is not None and self._queued:
            self._loop.go_on(self._work)

    def _set_aside(self) -> None:
        """Leave the trajectory in the loop, which may continue with it."""

    def _named(self, work: Work) -> dict[int, str]:
        return {LOCAL_TRAJECTORY: trajectory_name(dict(work.names))}

    def _start_round(self, work: Work, order: tuple[int, ...]) -> None:  # noqa: ARG002  the order says all
        if LOCAL_TRAJECTORY not in self._trajectories:
            self._current = None  # what the loop has began elsewhere
        self._queued, self._ahead, self._asked, self._leaves = bool(order), False, None, False

    def _continue(self, command: Continue) -> None:
        super()._continue(command)
        self._go_on()

    def _reorder(self, command: Skip | Take, work: Work) -> None:  # noqa: ARG002  there is no queue of chunks
        raise BadMessage(f"{command!r}: local work has no order of chunks")

    def _unqueue(self, chunk: int) -> None:  # noqa: ARG002  there is but one
        self._clear_queue()

    def _clear_queue(self) -> None:
        self._queued = self._ahead = self._leaves = False
        self._asked = None

    def _close(self, command: Close) -> None:
        counted = command.outcome in ("synced", "approximate")
        if self._fragments == 1 or not counted:
            super()._close(command)
        elif self._asked is not None:  # too late
            self._asked = None
            self._go_on()
        self._residuals.closed(command.round, counted=counted)
        if not self._queued:
            self._loop.rest()

    def _validate(self, version: int, model: Vector) -> bool:
        if self._current is not None and self._fragments > 1 and self._loop.scores_models:
            self._save_current()
        elif self._current is not None and self._fragments == 1:
            raise BadMessage(f"validation of version {version}: saw training under way, needed none")
        self._scoring = version
        self._awaits_score = self._loop.validate(version, model)
        return self._awaits_score

    # ---- training

    def _turn(self) -> EngineEvent | None:
        try:
            if self._awaits_score or self._queued:
                self._collect_scores()
            if self._pending_events:
                return self._pending_events.pop(0)
            if self._awaits_score and self._fragments > 1:
                return None
            if self._asked is not None:
                return self._handed_in(self._asked)
            if self._leaves and self._work is not None:
                return self._last_report(self._work)
            return self._advance(self._work) if self._work is not None and self._queued else None
        except Exception as error:  # the user's code may raise anything
            return self._failed_step(error)

    def _failed_step(self, error: Exception) -> Failed | Scored:
        awaited, self._awaits_score = self._awaits_score, False
        if self._work is None:
            if not awaited:
                raise error
            return Scored(0.0, UNNAMED, self._scoring, 1, (), str(error)[:LONGEST_REASON])
        return self._abandon(LOCAL_TRAJECTORY, self._work, error)

    def _collect_scores(self) -> None:
        busy = self._fragments == 1 and (self._queued or self._leaves or self._asked is not None)
        scores = self._loop.scores(wait=not busy)
        self._pending_events += scores
        self._awaits_score = self._awaits_score and not scores

    def _advance(self, work: Work) -> Report | None:
        reached = self._trajectories.reached(LOCAL_TRAJECTORY)
        if self._current is None and reached < self._goal(work):
            self._open(work, reached)
        if reached < self._goal(work) and not self._count_steps(self._goal(work)):
            return None
        if self._trajectories.reached(LOCAL_TRAJECTORY) < self._goal(work):
            return None
        if self._sent is not None:  # nothing more is wanted before the next model
            self._queued = False
            return None
        report = self._report(work)
        if self._loop.is_costly:
            self._write()
        self._queued = self._ahead = self._trajectories.reached(LOCAL_TRAJECTORY) < work.most_steps
        return report

    def _write(self) -> None:
        """Write the trajectory to the client cache, for a process after this one."""
        work = self._work
        self._save_current()
        if work is not None and LOCAL_TRAJECTORY in self._trajectories:
            with suppress(EdgeFailed):  # a full disk: a later process trains it anew
                self._trajectories.write(LOCAL_TRAJECTORY, self._models[work.version])

    def _goal(self, work: Work) -> int:
        return work.most_steps if self._ahead else work.target

    def _open(self, work: Work, reached: int) -> None:
        name = self._names[LOCAL_TRAJECTORY]
        saved, self._measured = self._trajectories.take(LOCAL_TRAJECTORY), None
        self._loop.begin(
            Begin(work, chunk_names(name), self._models[work.version], self._lead, saved, reached)
        )
        if saved is None:
            self._trajectories.start(LOCAL_TRAJECTORY, name, self._samples(name))
        self._current = LOCAL_TRAJECTORY

    def _count_steps(self, goal: int) -> bool:
        """Enter the steps that the loop has done; return whether there were any."""
        trajectory = self._trajectories[LOCAL_TRAJECTORY]
        advance = self._loop.advance(trajectory.reached, goal)
        if advance is None:
            return False
        trajectory.reached += advance.steps
        trajectory.seconds += advance.seconds
        trajectory.losses += advance.losses
        trajectory.led += advance.led
        return advance.steps > 0

    # ---- what is handed in

    def _handed_in(self, command: Reveal) -> Answer | None:
        work = self._require_round(command)
        vector = None
        if LOCAL_TRAJECTORY in self._trajectories:
            vector = self._ended()
            if vector is None:
                return None
        self._asked = None
        report = self._report(work, vector)
        if self._fragments > 1:
            self._note_sent(work)
        if not report.steps or vector is None:
            if command.kind == "masked":
                raise BadMessage("update: saw no local step since the common model, needed at least one")
            return Answer(command, report, None)
        return self._answered(command, work, report, vector)

    def _ended(self) -> Readable | None:
        """End the steps under way, and return the trained model; None until they have ended."""
        try:
            return self._end()
        except FedgcError:
            self._asked = None
            raise

    def _answered(self, command: Reveal, work: Work, report: Report, vector: Readable) -> Answer:
        """Return the update, or of its fragment a copy, so that training can go on."""
        update: Readable = MeanUpdate(self._models[work.version], vector)
        part = fragment_of(work.version, self._fragments, self.size)
        if self._fragments > 1:
            update = update[part]
            self._go_on()
        if command.wire == EXACT:
            return Answer(command, report, update, report.samples)
        stamp = (command.round, command.attempt, command.client)
        last = self._residuals.of(part, self.size)
        data, rest = with_error_feedback(update[:], make_codec(command.wire), stamp, last)
        self._residuals.put(part, rest)
        return Answer(command, report, None, encoded=data)

    def _note_sent(self, work: Work) -> None:
        """Train on while the fragment travels, unless the client waits or leaves."""
        known = self._trajectories
        at = known[LOCAL_TRAJECTORY] if LOCAL_TRAJECTORY in known else Trajectory("", 0)
        self._sent = at.reached, at.seconds, at.losses
        self._queued = self._ahead = self._queued and at.reached < work.most_steps

    def _last_report(self, work: Work) -> Report | None:
        """Return the report of a client that leaves, once the loop is at the end of its step."""
        vector = self._end()
        if vector is None:
            return None
        self._leaves = False
        return self._report(work, vector)

    def _end(self) -> Readable | None:
        """Return where the trajectory is now, or None if the loop has not handed it in yet."""
        if self._current is None:
            return self._trajectories.vector(LOCAL_TRAJECTORY)
        vector = self._loop.hand_in()
        if vector is None:
            return None
        self._count_steps(self._trajectories.reached(LOCAL_TRAJECTORY))
        check_parts(vector, self.size)
        if self._loop.is_costly:
            self._write()
        return vector

    def _saved(self) -> Saved | None:
        vector = None
        with suppress(FedgcError):
            vector = self._loop.hand_in(wait=True)
        if vector is None:
            self._trajectories.drop(LOCAL_TRAJECTORY)
            return None
        self._count_steps(self._trajectories.reached(LOCAL_TRAJECTORY))
        return self._loop.saved()

    def _report(self, work: Work, vector: Readable | None = None) -> Report:
        """Return the progress of training, with the measure of the gate."""
        known, name = self._trajectories, self._names[LOCAL_TRAJECTORY]
        at = known[LOCAL_TRAJECTORY] if LOCAL_TRAJECTORY in known else Trajectory(name, 0)
        squared_norm = self._squared_norm(at, work, vector)
        if not math.isfinite(squared_norm):
            raise TaskFailed(f"the squared norm is {squared_norm}, needed a finite number")
        loss = at.losses / at.reached if at.reached else 0.0
        samples = self._samples(name)
        return Report(0.0, work.client, work.round, at.reached, samples, at.seconds, squared_norm, loss)

    def _squared_norm(self, at: Trajectory, work: Work, vector: Readable | None) -> float:
        layout = self.layout
        if not at.reached or self._config.measure == "gradient" or layout is None:
            return self._loop.squared_gradient
        if self._measured is not None and self._measured[:2] == (work.version, at.reached):
            return self._measured[2]  # nothing was trained since
        if vector is None:
            vector = (
                self._trajectories.vector(LOCAL_TRAJECTORY) if self._current is None else self._loop.vector()
            )
        if vector is None:
            return 0.0
        size = layout.parameter_size
        found = squared_distance(self._models[work.version][:size], vector, self._lead, at.led)
        if at.reached == work.target:  # beyond it, a script's model is that of an earlier step
            self._measured = (work.version, at.reached, found)
        return found

    def _samples(self, name: str) -> int:
        return sum(self._loop.sizes[each] for each in chunk_names(name))
