"""The engine of a client: trains one micro-batch step at a time, as the server commands. No I/O, no threads.

A link, a simulator or a test gives it commands and asks for steps. Between two steps it takes any command.
There is one engine for each kind of work:

    CodedEngine  trains each chunk by itself and mixes the finished ones into codewords
    LocalEngine  trains one model on all chunks of the client; any number of steps counts

Both train through a `Trainer`. An error of the task (data, loss, numbers that are not finite) becomes a
`Failed` event that names the chunk, and the engine goes on. Events carry 0.0 as their time, because the
server's clock counts.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Final

from fedgc.errors import BadMessage, EdgeFailed, FedgcError
from fedgc.messages import (
    Close,
    Continue,
    Failed,
    Held,
    Kept,
    Progress,
    Repair,
    Report,
    Reveal,
    Skip,
    Take,
    Work,
)
from fedgc.training.flat import Vector, check_vector
from fedgc.training.local_update import WHOLE
from fedgc.training.pace import Pace
from fedgc.training.shared_momentum import lead_of
from fedgc.training.trainer import Pass, Trainer
from fedgc.training.trajectories import Origin, Trajectories

LONGEST_REASON: Final = 400  # characters of a task's exception that travel
Order = Work | Skip | Take | Continue | Close  # commands for the engine; the others are for the link
Said = Progress | Report | Failed


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """What work starts from. Masked updates can only be summed if all of them have it in common.

    `before` is the model before, if shared momentum uses it. The numbers are those of `Work`.
    """

    model: Vector
    before: Vector | None
    first_step: int
    common_steps: float
    chunks: int  # that the work names


class Engine(ABC):
    """Trains as it is commanded; see `new_engine`."""

    def __init__(self, trainer: Trainer, trajectories: Trajectories, pace: Pace) -> None:
        """Train with `trainer`; `pace` waits between steps."""
        self._trainer, self._trajectories, self._pace = trainer, trajectories, pace
        self._models: dict[int, Vector] = {}
        self._work: Work | None = None  # with the round and target of the last Continue
        self._lead: Vector | None = None  # the common part of every step
        self._names: dict[int, str] = {}
        self._current: int | None = None  # the chunk whose trajectory is in the trainer
        self._to_say: list[Failed] = []

    # ---- models and commands

    @property
    def size(self) -> int:
        """How many numbers the model's vector has."""
        return self._trainer.flat.size

    @property
    def start(self) -> Start | None:
        """What the present work starts from."""
        work = self._work
        if work is None or work.version not in self._models:
            return None
        model, before = self._models[work.version], self._trajectories.before
        return Start(model, before, work.first_step, work.common_steps, len(work.names))

    def load(self, version: int, vector: Vector) -> None:
        """Keep a new common model; raise BadVector if it is not of this task."""
        check_vector(vector, self.size)
        known = self._models.get(version)
        if known is not None and (known == vector).all():
            return
        same = known is None and self._trajectories.come_from(vector)
        origin = self._trajectories.origin
        if origin is not None and origin.version == version and not same:
            self._clear()  # a server that resumed from a checkpoint made this version again
            self._work = None
        working = self._work.version if self._work else version
        needed = {working, version - 1} if self._trainer.config.alpha < 1 else {working}
        self._models = {old: model for old, model in self._models.items() if old in needed}
        self._models[version] = vector.copy()

    def handle(self, command: Order) -> None:
        """Take in a command; raise BadMessage if it cannot be followed."""
        match command:
            case Work():
                self._begin(command)
            case Continue():
                self._continue(command)
            case Skip() | Take():
                self._reorder(command, self._this_round(command))
            case Close():
                self._close(command)

    # ---- steps and answers

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether a step would do nothing until a command comes."""

    def step(self) -> Said | None:
        """Do one micro-batch step, or report; return what is to be sent, if anything."""
        if self._to_say:
            return self._to_say.pop(0)
        if self.idle or self._work is None:
            return None
        chunk = self._next()
        try:
            return self._advance(chunk, self._work)
        except Exception as error:  # the task's code may raise anything
            return self._give_up(chunk, self._work, error)

    @abstractmethod
    def answer(self, command: Reveal | Repair) -> tuple[Report | None, Vector | None]:
        """Return the vector that the server asks for, and the report that goes before it, if there is one.

        Raise BadMessage if the command is not for this kind of work, NotHere if the work is not finished, and
        EdgeFailed if a vector cannot be read.
        """

    @abstractmethod
    def mean_update(self, command: Reveal) -> tuple[Vector, int]:
        """Return the mean update over all finished work, and its weight: the samples worked on."""

    # ---- what outlives a round

    def holds(self) -> tuple[Held, ...]:
        """Return the chunks that this client can load, with digests if chunks are shared."""
        digest = self._trainer.digest
        return tuple(Held(name, samples, digest(name)) for name, samples in self._trainer.sizes.items())

    def kept(self) -> tuple[Kept, ...]:
        """Return what is left of earlier work."""
        return self._trajectories.kept()

    def keep(self) -> tuple[Report | Failed, ...]:
        """Write everything for a later process; return the work's progress and what could not be written."""
        self._set_aside()
        model = self._models.get(self._work.version) if self._work else None
        failed = []
        for chunk in self._trajectories:
            try:
                self._trajectories.write(chunk, model)
            except EdgeFailed as error:
                client, round_ = (self._work.client, self._work.round) if self._work else ("?", 0)
                failed.append(Failed(0.0, client, round_, str(error)[:LONGEST_REASON], _named(chunk)))
        return tuple(failed)

    def close(self) -> None:
        """Discard everything that was not kept, and remove what was spilled to disk."""
        self._current, self._work = None, None
        self._clear_queue()
        self._trajectories.close()

    # ---- what differs by the kind of work

    @abstractmethod
    def _named(self, work: Work) -> dict[int, str]:
        """Return the names of the trajectories of this work."""

    @abstractmethod
    def _start_round(self, work: Work, order: tuple[int, ...]) -> None:
        """Queue the work of a round."""

    @abstractmethod
    def _reorder(self, command: Skip | Take, work: Work) -> None:
        """Change the order of the queue."""

    @abstractmethod
    def _unqueue(self, chunk: int) -> None:
        """Work on a trajectory no more in this round."""

    @abstractmethod
    def _clear_queue(self) -> None:
        """Leave nothing to do."""

    @abstractmethod
    def _next(self) -> int:
        """Return the trajectory of the next step."""

    @abstractmethod
    def _goal(self, work: Work) -> int:
        """Return the steps after which the next report is due."""

    @abstractmethod
    def _load(self, chunk: int, work: Work) -> int:
        """Have the samples of a step ready; return how many the trajectory is trained on."""

    @abstractmethod
    def _pass(self, chunk: int, work: Work) -> tuple[tuple[str, ...], Pass]:
        """Return the data of the next step, and which step it is."""

    @abstractmethod
    def _finished(self, chunk: int, work: Work) -> Progress | Report:
        """Return the report of a trajectory that has reached the goal."""

    # ---- commands

    def _begin(self, work: Work) -> None:
        if work.version not in self._models:
            here = f"only {sorted(self._models)}" if self._models else "none"
            raise BadMessage(f"work of round {work.round}: needed model version {work.version}, saw {here}")
        self._set_aside()
        self._lead = self._lead_of(work)
        self._trainer.follow(self._lead)
        before = self._models.get(work.version - 1) if self._lead is not None else None
        origin = Origin(work.version, work.seed, work.first_step, work.common_steps)
        self._trajectories.set_origin(origin, before)
        oldest = work.version - (self._trainer.config.alpha < 1)
        self._models = {version: model for version, model in self._models.items() if version >= oldest}
        self._names = self._named(work)
        self._trajectories.restrict(self._names, work.target)
        self._work = work
        self._start_round(work, work.order)

    def _continue(self, command: Continue) -> None:
        work = self._begun(command)
        if command.target < work.target:
            raise BadMessage(f"continue: saw target {command.target}, needed at least {work.target}")
        self._set_aside()
        self._work = replace(work, round=command.round, target=command.target)
        self._start_round(self._work, command.order)

    def _close(self, command: Close) -> None:
        if self._work is None or command.round != self._work.round:
            return
        self._set_aside()
        self._clear_queue()
        if command.frees:
            self._clear()
            self._work = None

    def _lead_of(self, work: Work) -> Vector | None:
        steps = (work.first_step, work.common_steps)
        parameters = self._trainer.flat.parameters
        return lead_of(self._trainer.config, self._models, work.version, parameters, steps)

    def _begun(self, message: object) -> Work:
        if self._work is None:
            raise BadMessage(f"{message!r}: saw no work before it, needed some")
        return self._work

    def _this_round(self, command: Skip | Take | Reveal) -> Work:
        work = self._begun(command)
        if command.round != work.round:
            raise BadMessage(f"{command!r}: needed round {work.round}")
        return work

    # ---- training

    def _advance(self, chunk: int, work: Work) -> Progress | Report | None:
        if chunk == self._current:
            began = self._pace.clock()
        elif self._trajectories.reached(chunk) >= self._goal(work):
            return self._finished(chunk, work)
        else:
            samples = self._load(chunk, work)  # loading is no part of the chunk's time
            began = self._pace.clock()
            self._open(chunk, samples, work)
        trajectory = self._trajectories[chunk]
        if self._pace.owes:
            trajectory.seconds += self._pace.catch_up()
            return None
        names, this = self._pass(chunk, work)
        trajectory.losses += self._trainer.step(names, this)
        trajectory.reached += 1
        trajectory.led += this.share if self._lead is not None else 0.0
        trajectory.measured = None
        trajectory.seconds += self._pace.after_step(began)
        if trajectory.reached < self._goal(work):
            return None
        self._set_aside()
        return self._finished(chunk, work) if chunk in self._trajectories else None

    def _open(self, chunk: int, samples: int, work: Work) -> None:
        saved = self._trajectories.take(chunk)
        if saved is None:
            self._trajectories.start(chunk, self._names[chunk], samples)
            self._trainer.begin(self._models[work.version])
        else:
            self._trainer.resume(saved)
        self._current = chunk

    def _set_aside(self) -> None:
        """Save the trajectory that is in the trainer."""
        if self._current is None or self._work is None:
            return
        lost = self._trajectories.put(self._current, self._trainer.save())
        self._current = None
        for chunk, reason in lost.items():
            self._unqueue(chunk)
            self._fail(chunk, self._work, reason)

    def _clear(self) -> None:
        self._current = None
        self._clear_queue()
        self._trajectories.clear()

    # ---- failures

    def _give_up(self, chunk: int, work: Work, error: Exception) -> Failed:
        step = min(self._trajectories.reached(chunk) + 1, work.target)
        said = str(error).strip().split("\n")[0]
        what = said if isinstance(error, FedgcError) else f"{type(error).__name__}: {said}"
        if chunk == self._current:
            self._current = None
        self._unqueue(chunk)
        self._trajectories.drop(chunk)
        where = "local work" if chunk == WHOLE else f"chunk {chunk} ({self._names[chunk]})"
        return _failed(chunk, work, f"{where}, step {step}: {what}")

    def _fail(self, chunk: int, work: Work, reason: str) -> None:
        self._to_say.append(_failed(chunk, work, reason))


def _failed(chunk: int, work: Work, reason: str) -> Failed:
    return Failed(0.0, work.client, work.round, reason[:LONGEST_REASON], _named(chunk))


def _named(chunk: int) -> tuple[int, ...]:
    """Return the chunks that a failure names; a failure of local work concerns all chunks and names none."""
    return () if chunk == WHOLE else (chunk,)
