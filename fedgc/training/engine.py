"""The engine of a client: does one local step at a time, as the server commands. No I/O, no threads.

A link, a simulator or a test passes commands with `handle` and calls `step`; any command can come between two
steps. There is one engine for each kind of work:

    CodedEngine  trains each chunk separately and mixes finished updates into codewords (gradient coding)
    LocalEngine  local SGD on all data of the client, with partial work (FedAvg, McMahan 2017)

What trains in local work is a `LocalLoop`: that of a task, or a training script.

An error of the user's code (data, loss, non-finite numbers) becomes a `Failed` event
for the chunk, and the engine goes on. Events carry time 0.0, because the server uses its own clock.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedgc.codecs import Bytes
from fedgc.codecs.model_change import Changed
from fedgc.config import RunConfig
from fedgc.errors import BadMessage, EdgeFailed, words_of
from fedgc.large_vectors import Readable
from fedgc.messages import (
    Close,
    Continue,
    Failed,
    Fetched,
    Held,
    Kept,
    Layout,
    Progress,
    Repair,
    Report,
    Reveal,
    Scored,
    Skip,
    Take,
    Validate,
    Work,
)
from fedgc.training.cache import Saved
from fedgc.training.figures import UNNAMED
from fedgc.training.flat import Vector, check_shape, check_vector
from fedgc.training.local_update import LOCAL_TRAJECTORY
from fedgc.training.record_privacy import RecordPrivacy
from fedgc.training.shared_momentum import lead_of
from fedgc.training.trajectories import Origin, Trajectories

LONGEST_REASON: Final = 400  # characters of an error message sent to the server
NO_VALIDATE: Final = "it has no function `validate` to score models with"
Order = (
    Work | Skip | Take | Continue | Close | Validate
)  # commands for the engine; the others are for the link


class CommonModels(Mapping[int, Vector]):
    """The common models that a client holds, by version."""

    def __init__(self) -> None:
        self._known: dict[int, Vector] = {}
        self.changed: Changed | None = None  # where the last model differs from an earlier one

    def __getitem__(self, version: int) -> Vector:
        return self._known[version]

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, versions: Collection[int]) -> None:
        """Discard all other versions."""
        self._known = {version: model for version, model in self._known.items() if version in versions}

    def put(self, version: int, model: Vector, changed: Changed | None) -> None:
        """Enter a model; `changed` says where it differs from an earlier one, if that is known."""
        self._known[version], self.changed = model, changed

    def of(self, command: Work | Validate) -> Vector:
        """Return the model that a command names; raise BadMessage if it is not here."""
        model = self._known.get(command.version)
        if model is None:
            here = f"only {sorted(self._known)}" if self._known else "none"
            what = "work" if isinstance(command, Work) else "validation"
            raise BadMessage(
                f"{what} of round {command.round}: needed model version {command.version}, saw {here}"
            )
        return model


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a `Reveal` or `Repair` asked for."""

    command: Reveal | Repair
    report: Report | None  # to be sent before the vector
    vector: Readable | None  # None without any step, or if it is encoded; read until the round is closed
    weight: int = 0  # samples behind the mean update that a masked exchange asks for
    encoded: Bytes | None = None  # the update of local work by the codec of the command


EngineEvent = Progress | Report | Failed | Fetched | Scored | Answer


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """The starting point of work, which must be equal for all updates of a masked sum.

    `before` is the previous model if shared momentum uses it. The other fields are those of `Work`.
    """

    model: Vector
    before: Vector | None
    first_step: int
    common_steps: float
    chunks: int  # number of chunks in the work


class Engine(ABC):
    """Base of the engines; make one with `new_engine`."""

    def __init__(self, config: RunConfig, trajectories: Trajectories) -> None:
        self._config, self._trajectories = config, trajectories
        self.records: RecordPrivacy | None = None  # if the client's records are protected
        self.has_left = False  # it trains no more in this session, as its script has left the run
        self._models = CommonModels()
        self._work: Work | None = None  # with the round and target of the last Continue
        self._lead: Vector | None = None  # the common part of every step
        self._names: dict[int, str] = {}
        self._current: int | None = None  # the chunk whose trajectory is being trained
        self._pending_events: list[Failed | Fetched | Scored] = []
        self._validated: int | None = None  # the version that was scored last

    # ---- models and commands

    @property
    @abstractmethod
    def layout(self) -> Layout | None:
        """The layout of the model's vector; None while it is not known yet."""

    @property
    def size(self) -> int:
        """The length of the model's vector; 0 while it is not known yet."""
        return self.layout.size if self.layout is not None else 0

    @property
    def start(self) -> Start | None:
        """The starting point of the present work, if there is work and its model."""
        work = self._work
        if work is None or work.version not in self._models:
            return None
        model, before = self._models[work.version], self._trajectories.before
        return Start(model, before, work.first_step, work.common_steps, len(work.names))

    def load(
        self, version: int, vector: Vector, changed: Changed | None = None, *, is_finite: bool = False
    ) -> None:
        """Load a common model, which must not change later; raise BadVector if it does not fit the task's.

        `changed` says where it differs from an earlier one, if the client was sent only that. A link that has
        checked all of its numbers knows that it `is_finite`.
        """
        (check_shape if is_finite else check_vector)(vector, self.size)
        known = self._models.get(version)
        if known is not None and np.array_equal(known, vector):
            return
        same = known is None and self._trajectories.started_from(vector)
        origin = self._trajectories.origin
        if origin is not None and origin.version == version and not same:
            self._clear()  # a server resumed from a checkpoint and made this version again
            self._work = None
        newest = max((each for each in self._models if each < version), default=version)
        working = self._work.version if self._work else newest
        needed = {working, version - 1} if self._config.alpha < 1 else {working}
        self._models.keep(needed)
        self._models.put(version, vector, changed)

    def handle(self, command: Order) -> None:
        """Carry out a command; raise BadMessage if it does not fit the present work."""
        match command:
            case Work():
                self._begin(command)
            case Continue():
                self._continue(command)
            case Skip() | Take():
                self._reorder(command, self._require_round(command))
            case Close():
                self._close(command)
            case Validate():
                if not self._validate(command.version, self._models.of(command)):
                    self._pending_events.append(Scored(0.0, UNNAMED, command.version, 1, (), NO_VALIDATE))

    # ---- steps and answers

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether a step would do nothing until a command comes."""

    def step(self) -> EngineEvent | None:
        """Do one local step, or report; return the event to send, if any."""
        if self._pending_events:
            return self._pending_events.pop(0)
        return None if self.idle else self._turn()

    @abstractmethod
    def answer(self, command: Reveal | Repair) -> Answer | None:
        """Return what is asked for, or None if a later `step` will return it.

        A masked exchange asks for the mean update of all finished work.

        Raises:
            BadMessage: The command is not for this kind of work.
            NotHere: The work is not finished.
            EdgeFailed: A vector cannot be read.
        """

    # ---- leaving

    @abstractmethod
    def leave(self) -> None:
        """Train no more after the present step; later steps report what is done, as far as it is not yet."""

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether there is work since the common model that an exchange could count."""

    # ---- client cache

    @abstractmethod
    def initial(self) -> Vector:
        """Return the model as this client made it."""

    @abstractmethod
    def holds(self) -> tuple[Held, ...]:
        """Return the chunks that this client can load, with digests if chunks are shared."""

    def kept(self) -> tuple[Kept, ...]:
        """Return the progress of trajectories from earlier work."""
        return self._trajectories.kept()

    def keep(self) -> tuple[Report | Failed, ...]:
        """Write all trajectories to the client cache; return reports of progress and of failed writes."""
        self._save_current()
        model = self._models.get(self._work.version) if self._work else None
        failed = []
        for chunk in self._trajectories:
            try:
                self._trajectories.write(chunk, model)
            except EdgeFailed as error:
                client, round_ = (self._work.client, self._work.round) if self._work else ("?", 0)
                failed.append(Failed(0.0, client, round_, str(error)[:LONGEST_REASON], _named(chunk)))
        return tuple(failed)

    def close(self, *, complete: bool = False) -> None:  # noqa: ARG002  for a training script
        """Discard all trajectories in memory and spilled files; the client cache stays.

        `complete` says that the run is over: a training script may then end by itself.
        """
        self._current, self._work = None, None
        self._clear_queue()
        self._trajectories.close()

    # ---- hooks of each kind of work

    @abstractmethod
    def _turn(self) -> EngineEvent | None:
        """Do what is next; called if the engine is not idle."""

    @abstractmethod
    def _validate(self, version: int, model: Vector) -> bool:
        """Score this model on the client's own data; return whether it has a function for that."""

    @abstractmethod
    def _named(self, work: Work) -> dict[int, str]:
        """Return the names of the trajectories of this work."""

    @abstractmethod
    def _start_round(self, order: tuple[int, ...]) -> None:
        """Queue the work of a round."""

    @abstractmethod
    def _reorder(self, command: Skip | Take, work: Work) -> None:
        """Change the order of the queue."""

    @abstractmethod
    def _unqueue(self, chunk: int) -> None:
        """Train a trajectory no more in this round."""

    @abstractmethod
    def _clear_queue(self) -> None:
        """Leave nothing to do."""

    @abstractmethod
    def _saved(self) -> Saved | None:
        """Return a copy of the trajectory that is being trained; None if it cannot be had."""

    # ---- commands

    def _begin(self, work: Work) -> None:
        model = self._models.of(work)
        lead = self._lead_of(work)
        before = self._models.get(work.before) if lead is not None else None
        origin = Origin(work.version, work.seed, work.first_step, work.common_steps)
        self._set_aside()
        self._lead = lead
        self._trajectories.set_origin(origin, before)
        led_from = work.before if self._config.alpha < 1 else work.version
        self._models.keep([each for each in self._models if each == led_from or each >= work.version])
        self._names = self._named(work)
        self._trajectories.restrict(self._names, work.target)
        self._work = work
        self._start_round(work.order)
        self._validate_due(work, model)

    def _validate_due(self, work: Work, model: Vector) -> None:
        every = self._config.evaluate_every
        if every and work.version % every == 0 and self._validated != work.version:
            self._validate(work.version, model)
            self._validated = work.version

    def _continue(self, command: Continue) -> None:
        work = self._require_work(command)
        if command.target < work.target:
            raise BadMessage(f"continue: saw target {command.target}, needed at least {work.target}")
        self._set_aside()
        self._work = replace(work, round=command.round, target=command.target)
        self._start_round(command.order)

    def _close(self, command: Close) -> None:
        if self._work is None or command.round != self._work.round:
            return
        self._set_aside()
        self._clear_queue()
        if command.frees:
            self._clear()
            self._work = None

    def _set_aside(self) -> None:
        """Make room for another trajectory, before the next command is taken in."""
        self._save_current()

    def _lead_of(self, work: Work) -> Vector | None:
        layout = self.layout
        if layout is None:
            return None
        return lead_of(self._config, self._models, work, layout.parameter_size, self._lead)

    def _require_work(self, message: object) -> Work:
        if self._work is None:
            raise BadMessage(f"{message!r}: saw no work before it, needed some")
        return self._work

    def _require_round(self, command: Skip | Take | Reveal) -> Work:
        work = self._require_work(command)
        if command.round != work.round:
            raise BadMessage(f"{command!r}: needed round {work.round}")
        return work

    # ---- trajectories

    def _save_current(self) -> None:
        """Save the trajectory that is being trained."""
        if self._current is None or self._work is None:
            return
        saved = self._saved()
        lost = self._trajectories.put(self._current, saved) if saved is not None else {}
        self._current = None
        for chunk, reason in lost.items():
            self._unqueue(chunk)
            self._pending_events.append(failed(chunk, self._work, reason))

    def _clear(self) -> None:
        self._current = None
        self._clear_queue()
        self._trajectories.clear()

    # ---- failures

    def _abandon(self, chunk: int, work: Work, error: Exception) -> Failed:
        reached = self._trajectories.reached(chunk)
        step = min(reached + 1, work.target)
        if chunk == self._current:
            self._current = None
        self._unqueue(chunk)
        self._trajectories.drop(chunk)
        where = "local work" if chunk == LOCAL_TRAJECTORY else f"chunk {chunk} ({self._names[chunk]})"
        told = failed(chunk, work, f"{where}, step {step}: {words_of(error)}")
        return replace(told, steps=reached) if chunk == LOCAL_TRAJECTORY else told


def failed(chunk: int, work: Work, reason: str) -> Failed:
    """Return the event of a failed trajectory."""
    return Failed(0.0, work.client, work.round, reason[:LONGEST_REASON], _named(chunk))


def _named(chunk: int) -> tuple[int, ...]:
    """Return the chunks of a failure; empty for local work, where it concerns all chunks."""
    return () if chunk == LOCAL_TRAJECTORY else (chunk,)
