"""The engine of local work: local SGD with partial work on all data of the client (FedAvg, McMahan 2017).

What trains is a `LocalLoop`: that of a task, or a training script. There is one trajectory
(`LOCAL_TRAJECTORY`). The engine reports at the target, lets the loop continue up to `Work.most_steps`,
reports again and waits. A request for the update stops the loop at the end of its present step.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from fedgc.codecs import EXACT, codec_of, naming
from fedgc.config import RunConfig
from fedgc.errors import BadMessage, ChunkFailed, EdgeFailed, FedgcError
from fedgc.fragments import buffers_in, fragment_of
from fedgc.large_vectors import Readable
from fedgc.messages import (
    SUMMED,
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
from fedgc.training.local_progress import LocalProgress, Mark, Place
from fedgc.training.local_update import (
    LOCAL_TRAJECTORY,
    Residuals,
    chunk_names,
    trajectory_name,
    with_error_feedback,
)
from fedgc.training.trajectories import Origin, Trajectories
from fedgc.training.update import MeanUpdate

KINDS: Final = ("local", "masked")


class LocalEngine(Engine):
    """Trains one model on all data of the client."""

    def __init__(self, loop: LocalLoop, config: RunConfig, trajectories: Trajectories) -> None:
        super().__init__(config, trajectories)
        self._loop, self._fragments = loop, config.fragments
        self.records = loop.records
        self._progress = LocalProgress(loop, config, trajectories)
        self._residuals = Residuals(trajectories.residual())
        self._queued = False  # there is work to do
        self._ahead = False  # it has reported at the target and continues
        self._asked: Reveal | None = None  # for the update, which the loop has yet to hand in
        self._leaves = False  # it has yet to report what it has, for the last time
        self._awaits_score = False
        self._scoring = 0  # the version that the loop was told to score last
        self._sent: Mark | None = None  # where the fragment was read that was sent

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
        return self._work is not None and self._progress.reached > 0

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
        changed, before = self._models.changed, self._work
        if self._fragments == 1 or changed is None or before is None or before.version == work.version:
            return False
        same = changed.since == before.version and (before.names, before.pool) == (work.names, work.pool)
        if not same or LOCAL_TRAJECTORY not in self._trajectories:
            return False
        if self._current is None:  # it was put aside to score a model
            self._open(before, self._progress.reached)
        try:
            if self._loop.hand_in(wait=True) is None:
                return False
        except FedgcError:
            return False
        self._progress.count()
        self._merge(work, changed.parts)
        return True

    def _merge(self, work: Work, parts: Sequence[slice]) -> None:
        """Enter a new common model into the trajectory; steps that were handed in no longer count."""
        sent, model = self._sent or Mark(), self._models.of(work)
        own = self._config.fragment_mixing if self._progress.reached > sent.reached else 0.0
        self._progress.count_from(sent)
        self._trajectories.move(Origin(work.version, work.seed, work.first_step, work.common_steps))
        self._models.keep([work.version])
        self._work = work
        names = chunk_names(self._trajectories[LOCAL_TRAJECTORY].name)
        self._loop.merge(Begin(work, names, model, None, None, self._progress.reached), parts, own)
        self._start_round(work.order)
        self._validate_due(work, model)

    def _go_on(self) -> None:
        if self._work is not None and self._current is not None and self._queued:
            self._loop.go_on(self._work)

    def _set_aside(self) -> None:
        """Leave the trajectory in the loop, which may continue with it."""

    def _named(self, work: Work) -> dict[int, str]:
        return {LOCAL_TRAJECTORY: trajectory_name(dict(work.names))}

    def _start_round(self, order: tuple[int, ...]) -> None:
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
        counted = command.outcome in SUMMED
        if self._fragments == 1 or not counted:
            super()._close(command)
        elif self._asked is not None:  # too late
            self._asked = None
            self._go_on()
        if command.frees and not counted:  # the run goes back to an earlier model
            self._residuals = Residuals(None)
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
        finally:
            self.has_left = self._loop.has_left  # also if no other turn follows

    def _failed_step(self, error: Exception) -> Failed | Scored:
        awaited, self._awaits_score = self._awaits_score, False
        if self._work is None:
            if not awaited:
                raise error
            return Scored(0.0, UNNAMED, self._scoring, 1, (), str(error)[:LONGEST_REASON])
        failed = self._abandon(LOCAL_TRAJECTORY, self._work, error)
        if not isinstance(error, ChunkFailed):
            return failed
        return replace(failed, chunks=tuple(at for at, name in self._work.names if name == error.name))

    def _collect_scores(self) -> None:
        busy = self._fragments == 1 and (self._queued or self._leaves or self._asked is not None)
        scores = self._loop.scores(wait=not busy)
        self._pending_events += scores
        self._awaits_score = self._awaits_score and not scores

    def _advance(self, work: Work) -> Report | None:
        reached, goal = self._progress.reached, work.most_steps if self._ahead else work.target
        if self._current is None and reached < goal:
            self._open(work, reached)
        if reached < goal and not self._progress.count(goal):
            if self._loop.has_left:
                self.leave()
            return None
        if self._progress.reached < goal:
            return None
        if self._sent is not None:  # nothing more is wanted before the next model
            self._queued = False
            return None
        report = self._report(work)
        if self._loop.is_costly:
            self._write()
        self._queued = self._ahead = self._progress.reached < work.most_steps
        return report

    def _write(self) -> None:
        """Write the trajectory to the client cache, for a process after this one."""
        work = self._work
        self._save_current()
        if work is not None and LOCAL_TRAJECTORY in self._trajectories:
            with suppress(EdgeFailed):  # a full disk: a later process trains it anew
                self._trajectories.write(LOCAL_TRAJECTORY, self._models[work.version])

    def _open(self, work: Work, reached: int) -> None:
        name = self._names[LOCAL_TRAJECTORY]
        saved = self._trajectories.take(LOCAL_TRAJECTORY)
        self._loop.begin(
            Begin(work, chunk_names(name), self._models[work.version], self._lead, saved, reached)
        )
        self._progress.start(name, is_new=saved is None)
        self._current = LOCAL_TRAJECTORY

    # ---- what is handed in

    def _handed_in(self, command: Reveal) -> Answer | None:
        work = self._require_round(command)
        vector = None
        if LOCAL_TRAJECTORY in self._trajectories:
            try:
                vector = self._end()
            except FedgcError:
                self._asked = None
                raise
            if vector is None:
                return None
        self._asked = None
        report = self._report(work, vector)
        if self._fragments > 1:  # train on while the fragment travels, unless the client waits or leaves
            self._sent = self._progress.mark()
            self._queued = self._ahead = self._queued and self._sent.reached < work.most_steps
        if not report.steps or vector is None:
            if command.kind == "masked":
                raise BadMessage("update: saw no local step since the common model, needed at least one")
            return Answer(command, report, None)
        return self._answered(command, work, report, vector)

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
        layout = self._loop.layout
        buffers = 0 if layout is None else layout.buffer_size
        with naming(command.wire, "an update"):
            codec = codec_of(command.wire, buffers_in(part, self.size, buffers))
            data, rest = with_error_feedback(update[:], codec, stamp, last)
        self._residuals.put(part, rest)
        return Answer(command, report, None, encoded=data)

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
        self._progress.count()
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
        self._progress.count()
        return self._loop.saved()

    def _report(self, work: Work, vector: Readable | None = None) -> Report:
        """Return the progress of training, with the measure of the gate."""
        name, start = self._names[LOCAL_TRAJECTORY], self._models[work.version]
        place = Place(name, start, self._lead, in_loop=self._current is not None)
        return self._progress.report(work, place, vector)
