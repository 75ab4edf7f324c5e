"""The reference client: its queue, progress and reports equal those of the engines of `fedgc.training`.

The simulator and the tests of rounds and runs use it in place of a client. It has a queue, and it stores how
far each chunk is trained; it has no vectors, no data and no clock. The caller passes the steps trained and
their seconds before it passes the next command. A test compares it with the real engines.

    client = ReferenceClient("a")
    client.handle(Work(...))
    while not client.idle:
        reported = client.step()
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fedgc.errors import BadMessage, FedgcError, NotHere
from fedgc.messages import Close, Continue, Failed, Kept, Progress, Repair, Report, Reveal, Skip, Take, Work
from fedgc.sim.clock.interfaces import NOTHING_FOUND, Finding

ROUNDING: Final = 1e-9  # of a step: less is an error of arithmetic
WHOLE: Final = -1  # all chunks of a client, when one model is trained on them together
Origin = tuple[int, int, int, float]  # version, seed, first step, common steps: as in `Work`


class Reported(NamedTuple):
    """A report of a client: the steps since the common model, of a chunk or (WHOLE) of local work."""

    round: int
    chunk: int
    reached: int
    seconds: float
    repeated: bool  # these steps were reported before

    def event(
        self, now: float, client: str, samples: int, found: Finding = NOTHING_FOUND
    ) -> Progress | Report:
        """Return the message, with the samples and the results of training."""
        if self.chunk == WHOLE:
            norm, loss = found.squared_norm, found.loss
            return Report(now, client, self.round, self.reached, samples, self.seconds, norm, loss)
        return Progress(
            now,
            client,
            self.round,
            self.chunk,
            self.reached,
            self.seconds,
            samples,
            found.squared_norm,
            found.loss,
            found.sketch,
        )


@dataclass(slots=True)
class Trajectory:
    """The progress of a chunk from the common model."""

    of: object  # the name of the chunk; in local work all names
    reached: float = 0.0  # a fraction while a simulated step is under way
    seconds: float = 0.0
    last_report: int = -1  # steps of the last report


class ReferenceClient:
    """One client; `Engine` documents the effect of each command."""

    __slots__ = (
        "_most_steps",
        "_steered",
        "_waits",
        "again",
        "current",
        "failures",
        "goal",
        "local",
        "lockstep",
        "name",
        "named",
        "names",
        "origin",
        "queue",
        "round",
        "target",
        "trajectories",
    )

    def __init__(self, name: str, *, steered: bool = True) -> None:
        """Make a client without work; if not `steered`, it puts taken chunks last."""
        self.name = name
        self._steered = steered
        self.restart(keeps=False)

    def restart(self, *, keeps: bool) -> None:
        """Start a new process of this client, which may find trained steps on its disk."""
        if not keeps:
            self.origin: Origin | None = None
            self.trajectories: dict[int, Trajectory] = {}
        self.named: tuple[tuple[int, str], ...] = ()  # chunk numbers and names in the last work
        self.names: Mapping[int, str] = {}
        self.local = self.lockstep = False
        self.round, self.target, self._most_steps = -1, 0, 0  # round -1: no work
        self.goal = 0  # steps at which the next report is due
        self.current: int | None = None  # the chunk in training
        self.queue: dict[int, None] = {}  # the next one is last
        self.again: list[int] = []  # finished chunks to report again
        self.failures: list[Failed] = []  # not yet reported
        self._waits = False  # lockstep: for a command after each finished chunk

    # ---- commands

    def handle(self, command: Any) -> Reported | None:  # noqa: ANN401  a command for clients
        """Carry out a command; return the report that precedes an update of local work.

        Raises:
            BadMessage: The command cannot be followed.
            NotHere: The command asks for chunks that are not finished.
        """
        handler = _HANDLERS.get(type(command))
        return handler(self, command) if handler else None

    def _begin(self, work: Work) -> None:
        self.current = None
        origin = (work.version, work.seed, work.first_step, work.common_steps)
        if origin != self.origin:
            self.trajectories.clear()
            self.origin = origin
        if work.names is not self.named:
            self.named, self.names = work.names, dict(work.names)
        self.local, self.lockstep = work.kind == "local", work.lockstep
        if self.trajectories:
            self._restrict(work.target)
        self.round, self.target, self._most_steps = work.round, work.target, work.most_steps
        self._start_round(work.order)

    def _restrict(self, target: int) -> None:
        """Discard steps on other chunks, and steps beyond the target."""
        for chunk, each in list(self.trajectories.items()):
            beyond = chunk != WHOLE and each.reached > target
            if beyond or each.of != self._of(chunk):
                del self.trajectories[chunk]

    def _of(self, chunk: int) -> object:
        if self.local:
            return self.names if chunk == WHOLE else None
        return self.names.get(chunk)

    def _start_round(self, order: tuple[int, ...]) -> None:
        self.again.clear()
        self.goal, self._waits = self.target, False
        if self.local:
            order = (WHOLE,) if order else ()
        self.queue = dict.fromkeys(reversed(order))

    def _continue(self, command: Continue) -> None:
        self._needs_work(command)
        if not self.local and not self.names.keys() >= set(command.order):
            raise BadMessage(f"{command!r}: needed chunks that work has named")
        if command.target < self.target:
            raise BadMessage(f"{command!r}: needed a target of at least {self.target}")
        self.current = None
        self.round, self.target = command.round, command.target
        self._start_round(command.order)

    def _skip(self, command: Skip) -> None:
        self._needs_order(command)
        self._waits = False
        self._unqueue(command.chunk)

    def _take(self, command: Take) -> None:
        self._needs_order(command)
        self._waits = False
        taken = []
        for chunk in reversed(command.chunks):
            if chunk not in self.names:
                self.failures.append(Failed(0.0, self.name, self.round, "no work has named it", (chunk,)))
            elif self.reached(chunk) == self.target:
                self.again.append(chunk)
            elif chunk != self.current:
                self.queue.pop(chunk, None)
                taken.append(chunk)
        if self._steered:
            self.queue.update(dict.fromkeys(taken))
        else:
            self.queue = {**dict.fromkeys(taken), **self.queue}

    def _answer(self, command: Reveal | Repair) -> Reported | None:
        """Check that the requested chunks are finished, and stop local work."""
        if isinstance(command, Reveal) and command.kind == "masked":
            self._mean_update(command)
            return None
        if self.local:
            return self._update(command)
        if command.mix is None:
            raise BadMessage(f"{command!r}: needed a mix, this is coded work")
        self._needs_work(command)
        lacking = tuple(chunk for chunk in command.mix.chunks if self.reached(chunk) != self.target)
        if lacking:
            raise NotHere(f"chunk {lacking[0]} is at step {self.reached(lacking[0])}", lacking)
        return None

    def _update(self, command: Reveal | Repair) -> Reported:
        if isinstance(command, Repair) or command.kind == "coded":
            raise BadMessage(f"{command!r}: needed a request for an update, this is local work")
        self._needs_round(command)
        self.current = None
        self._clear_queue()
        return self._report(WHOLE)

    def _mean_update(self, command: Reveal) -> None:
        self._needs_round(command)
        done = self._update(command).reached if self.local else self.finished
        if not done:
            raise BadMessage(f"{command!r}: saw no trained steps, needed some")

    def _close(self, command: Close) -> None:
        if command.round != self.round:
            return
        self.current = None
        self._clear_queue()
        if command.frees:
            self.forget()

    def _needs_work(self, command: object) -> None:
        if self.round < 0:
            raise BadMessage(f"{command!r}: saw no work before it, needed some")

    def _needs_round(self, command: Skip | Take | Reveal) -> None:
        if command.round != self.round:
            raise BadMessage(f"{command!r}: saw work of round {self.round}, needed that round")

    def _needs_order(self, command: Skip | Take) -> None:
        self._needs_round(command)
        if self.local:
            raise BadMessage(f"{command!r}: local work has no order of chunks")

    def _unqueue(self, chunk: int) -> None:
        if chunk == self.current:
            self.current = None
        self.queue.pop(chunk, None)
        if chunk in self.again:
            self.again = [each for each in self.again if each != chunk]

    def _clear_queue(self) -> None:
        self.queue.clear()
        self.again.clear()
        self.goal = self.target

    # ---- training

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do until the next command."""
        if self.failures or self.again:
            return False
        return self._waits or (self.current is None and not self.queue)

    @property
    def left(self) -> float:
        """Return the steps until the next report on the chunk in training."""
        return self.goal - self.trajectories[self.current].reached if self.current is not None else 0.0

    @property
    def finished(self) -> tuple[int, ...]:
        """Return the chunks at the target."""
        return tuple(c for c, each in self.trajectories.items() if each.reached == self.target)

    def reached(self, chunk: int) -> float:
        """Return the steps of a chunk since the common model."""
        at = self.trajectories.get(chunk)
        return at.reached if at is not None else 0.0

    def due(self) -> Reported | Failed | None:
        """Return the next report that needs no training, if there is one."""
        if self.failures:
            return self.failures.pop(0)
        if self.again:
            return self._finished(self.again.pop(0))
        if self.current is None and self.queue and not self._waits:
            chunk = next(reversed(self.queue))
            if self.reached(chunk) >= self.goal:
                del self.queue[chunk]
                return self._finished(chunk)
        return None

    def start(self) -> int | None:
        """Return the chunk in training; start the next one if there is none."""
        if self._waits:
            return None
        if self.current is None and self.queue:
            self.current, _ = self.queue.popitem()
            if self.current not in self.trajectories:
                self.trajectories[self.current] = Trajectory(self._of(self.current))
        return self.current

    def advance(self, steps: float, seconds: float) -> None:
        """Train the current chunk by fewer steps than are left."""
        if self.current is not None:
            at = self.trajectories[self.current]
            at.reached += steps
            at.seconds += seconds

    def finish(self, seconds: float) -> Reported:
        """Train the current chunk to its goal; return the report."""
        chunk = self.current
        if chunk is None:
            raise BadMessage(f"{self.name} finishes a chunk: saw none in training, needed one")
        at = self.trajectories[chunk]
        at.reached = self.goal
        at.seconds += seconds
        self.current = None
        return self._finished(chunk)

    def is_in_step(self) -> bool:
        """Return whether local work is within a step, which a client ends before it answers a request.

        The step is then the last one until the next command.
        """
        at = self.trajectories.get(WHOLE) if self.current == WHOLE else None
        if at is None:
            return False
        nearest = round(at.reached)
        if abs(at.reached - nearest) < ROUNDING:
            at.reached = nearest
            return False
        self.goal = int(at.reached) + 1
        return True

    def step(self, seconds: float = 0.0) -> Reported | Failed | None:
        """Train one step, or report, as an engine does; return the report, if there is one."""
        due = self.due()
        if due is not None or self.start() is None:
            return due
        if self.left <= 1:
            return self.finish(seconds)
        self.advance(1, seconds)
        return None

    def _finished(self, chunk: int) -> Reported:
        reported = self._report(chunk)
        if not self.local:
            self._waits = self.lockstep
        elif reported.reached < self._most_steps:
            self.goal = self._most_steps  # continues without an answer
            self.queue[WHOLE] = None
        else:
            self._clear_queue()
        return reported

    def _report(self, chunk: int) -> Reported:
        at = self.trajectories.get(chunk)
        if at is None:
            return Reported(self.round, chunk, 0, 0.0, False)
        reached = int(at.reached)
        again, at.last_report = at.last_report == reached, reached
        return Reported(self.round, chunk, reached, at.seconds, again)

    # ---- failures, and work kept between rounds

    def forget(self) -> None:
        """Discard all trained steps and the work."""
        self.current = None
        self._clear_queue()
        self.trajectories.clear()
        self.origin, self.round = None, -1

    def fail(self, chunk: int, reason: str) -> Failed:
        """Discard a chunk (or WHOLE) that cannot be trained; return the failure to report."""
        self._unqueue(chunk)
        if chunk == WHOLE:
            self._clear_queue()
        steps = int(self.reached(WHOLE)) if chunk == WHOLE else 0
        self.trajectories.pop(chunk, None)
        return Failed(0.0, self.name, self.round, reason, () if chunk == WHOLE else (chunk,), steps)

    def kept(self) -> tuple[Kept, ...]:
        """Return the kept steps of earlier work."""
        if self.origin is None:
            return ()
        version = self.origin[0]
        return tuple(
            Kept(version, number, int(each.reached))
            for chunk, each in sorted(self.trajectories.items())
            if each.reached >= 1
            for number in self._numbers(chunk, each)
        )

    @staticmethod
    def _numbers(chunk: int, at: Trajectory) -> Iterable[int]:
        return sorted(at.of) if chunk == WHOLE and isinstance(at.of, dict) else (chunk,)


def failed(now: float, command: Any, error: FedgcError) -> Failed:  # noqa: ANN401  a command for clients
    """Return the failure that a client reports for a command that it cannot carry out."""
    chunks = error.chunks if isinstance(error, NotHere) else ()
    return Failed(now, command.client, command.round, str(error), chunks)


_HANDLERS: Final[Mapping[type, Callable[[ReferenceClient, Any], Reported | None]]] = {
    Work: ReferenceClient._begin,
    Continue: ReferenceClient._continue,
    Skip: ReferenceClient._skip,
    Take: ReferenceClient._take,
    Reveal: ReferenceClient._answer,
    Repair: ReferenceClient._answer,
    Close: ReferenceClient._close,
}
