"""Rank 0 of a training script: speaks with the client, and decides what all ranks do next.

Between two steps, `next` returns the next action. While the script may train and the client has sent nothing,
that costs one look at the socket.
"""

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import TracebackType
from typing import Any, Final

from fedgc.errors import BadTask, EdgeFailed, text_of
from fedgc.guards import guarded
from fedgc.messages import LARGEST_AMOUNT, Layout, Scored
from fedgc.training.flat import Vector
from fedgc.training.loop.environment import ScriptEnvironment
from fedgc.training.loop.protocol import LineSocket
from fedgc.training.loop.shared_vectors import GENERATION, LOGGED, LOSSES, SECONDS, STEPS, SharedVectors


class Do(IntEnum):
    """What all ranks do next."""

    STEP = 0  # train one step
    LOAD = 1  # write the vector that the client sent into the model
    VALIDATE = 2  # score the model
    READ = 3  # read the model into the shared vector, and go on
    HAND_IN = 4  # read the model into the shared vector, and wait
    LEAVE = 5  # the same, and take part no more
    END = 6  # the run is over
    FAIL = 7  # rank 0 has lost its client
    ANNOUNCE = 8  # the client has taken the model: read it into the shared vector
    WAIT = 9  # the client has nothing to do yet
    STOP = 10  # the client ends before the run


@dataclass(frozen=True, slots=True)
class Action:
    """What to do, and where the run is; all are numbers, so that they can be broadcast."""

    do: Do
    round: int = 0
    version: int = 0
    first_step: int = 0  # local steps of the run before the common model
    steps: int = 0  # since the common model, for LOAD

    def numbers(self) -> tuple[int, ...]:
        """Return the action as numbers."""
        return (self.do, self.round, self.version, self.first_step, self.steps)

    @classmethod
    def of(cls, numbers: tuple[int, ...]) -> "Action":
        """Return the action of these numbers."""
        return cls(Do(numbers[0]), *numbers[1:])


ENDED: Final = "fedgc: the client has ended the training"
FORKED: Final = (
    "fedgc: saw a step of a fork of the process that called fedgc.join, needed both in one process"
)
HEARTBEAT_S: Final = 30.0  # in which all ranks hear of rank 0: less than the timeout of a process group
NUMBERS: Final = len(Action(Do.STEP).numbers())


class ClientEnded(EdgeFailed):
    """The client ends before the run: it leaves, or the server has ended. The script may be started again.

    It ends the script unless that catches it, in one line (`end_in_one_line`).
    """


def end_in_one_line() -> None:
    """Have a ClientEnded end this process in one line: it is no error of the script."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, ClientEnded):
            sys.stderr.write(
                f"{error}; this is no error of the script, which starts again when the run goes on\n"
            )
        else:
            before(kind, error, trace)

    sys.excepthook = hook


class _Interrupted(Exception):
    """A signal came while the script was waiting for the client."""


class Leader:
    """The connection of a script to its client."""

    def __init__(self, environment: ScriptEnvironment) -> None:
        """Connect to the client; raise EdgeFailed if it is not there."""
        self._line = LineSocket(_connected(environment.socket), takes_descriptors=True)
        self._line.send("hello", secret=environment.secret)
        self._process = os.getpid()
        self._pace_s = environment.pace_s
        self._memory: SharedVectors | None = None
        self._actions: deque[Action] = deque()
        self._place = Action(Do.STEP)  # round, version and first step of the present work
        self._may_train = False
        self._target = self._limit = 0
        self._generation = self._ask = 0  # of the last commands to train from a model, and to hand in
        self._reads_at_target = False
        self._leaving = self._waiting = self._at_exit = False
        self._since = time.monotonic()
        self._owed_s = 0.0

    def announce(self, layout: Layout, samples: int, *, validates: bool, trained: bool = False) -> None:
        """Tell the client what is trained, and map the shared memory; raise BadTask if the client refuses.

        A model that is `trained` already is no first model: the client gives it to nobody.
        """
        self._refuse_fork()
        self._line.send("announce", **layout.fields(), samples=samples, validates=validates, trained=trained)
        message = self._hear()
        if message["kind"] == "refused":
            raise BadTask(str(message.get("reason")))
        if message["kind"] != "memory":
            raise EdgeFailed(f"fedgc: saw {message['kind']} from the client, needed shared memory")
        self._memory = SharedVectors(self._line.descriptor(), layout.size)

    def ready(self) -> None:
        """Tell the client that the model as the script made it is in the shared memory."""
        self._line.send("ready")

    @property
    def common(self) -> Vector:
        """The vector that the client sent."""
        return self._shared.common

    @property
    def trained(self) -> Vector:
        """Where the trained model is written."""
        return self._shared.trained

    @property
    def steps(self) -> int:
        """Steps since the common model."""
        return int(self._shared.counts[STEPS])

    # ---- between two steps

    @property
    def goal(self) -> int:
        """The steps that the client wants next: up to its target, then up to its limit."""
        return self._target if self.steps < self._target else self._limit

    def count_step(self) -> None:
        """Count a step that ended now, after it has taken at least the client's least time."""
        self._refuse_fork()
        if self._pace_s:
            self._rest()
        self.count_steps(self.steps + 1, time.monotonic() - self._since)

    def count_steps(self, steps: int, seconds: float) -> None:
        """Count all steps up to this one; the new ones have taken these seconds."""
        counts, sums = self._shared.counts, self._shared.sums
        sums[SECONDS] += seconds
        counts[STEPS] = steps  # last: the client reads the others when this one has changed

    def log_loss(self, loss: float) -> None:
        """Add the loss of a step unless it is too large or no number: mixed precision skips such steps."""
        if not abs(loss) <= LARGEST_AMOUNT:
            return
        self._shared.sums[LOSSES] += loss
        self._shared.counts[LOGGED] += 1

    def next(self, wait_s: float = HEARTBEAT_S) -> Action:
        """Return what all ranks do next; wait some seconds for the client if there is nothing to do."""
        while not self._actions:
            if self._leaving:
                return self._here(Do.LEAVE)
            if self._may_train and self.steps >= self._target and self._reads_at_target:
                self._reads_at_target = False
                return self._here(Do.READ)
            if self._may_train and self.steps < self._limit and not self._line.ready():
                self._since = time.monotonic()
                return self._here(Do.STEP)
            if (message := self._heard(wait_s)) is None:
                return self._here(Do.WAIT)
            with guarded("a line of the client", error=EdgeFailed):
                self._obey(message)
        return self._actions.popleft()

    def leave(self, *, at_exit: bool = False) -> None:
        """Have the next action hand in the steps that are done; safe in a signal handler.

        `at_exit` says that the script is ending: its exit status decides whether it counts as a failure.
        """
        self._leaving, self._at_exit = True, at_exit
        if self._waiting:
            raise _Interrupted

    # ---- answers to the client

    def handed_in(self, do: Do) -> None:
        """Tell the client that the trained model is in the shared memory."""
        kind = {Do.READ: "reached", Do.HAND_IN: "handed", Do.LEAVE: "left"}[do]
        numbers = {"steps": self.steps, "generation": self._generation, "ask": self._ask}
        self._line.send(kind, **numbers, at_exit=self._at_exit)

    def scored(self, event: Scored) -> None:
        """Tell the client what the model is worth on this client's data, or why that is not known."""
        self._line.send(
            "scored",
            version=event.version,
            samples=event.samples,
            figures=dict(event.figures),
            problem=event.problem,
        )

    def close(self) -> None:
        """Close the connection."""
        self._line.close()

    # ---- inside

    def _refuse_fork(self) -> None:
        """Raise BadTask in a fork: it shares the counters, and has a model of its own."""
        if os.getpid() != self._process:
            raise BadTask(FORKED)

    @property
    def _shared(self) -> SharedVectors:
        if self._memory is None:
            raise EdgeFailed("fedgc: saw a step before the model was announced")
        return self._memory

    def _here(self, do: Do) -> Action:
        place = self._place
        steps = self.steps if do == Do.LOAD else 0
        return Action(do, place.round, place.version, place.first_step, steps)

    def _heard(self, wait_s: float) -> Mapping[str, Any] | None:
        """Return the client's next line; None after a signal to leave, or if none comes for long."""
        try:
            self._waiting = True
            return None if self._leaving else self._line.receive(wait_s)
        except _Interrupted:
            return None
        finally:
            self._waiting = False

    def _hear(self) -> Mapping[str, Any]:
        message = self._line.receive()
        if message is None:
            raise EdgeFailed("fedgc: the client said nothing")
        return message

    def _obey(self, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "train":
                self._train(message)
            case "validate":
                self._may_train = False
                first_step = int(message["first_step"])
                self._place = Action(Do.STEP, self._place.round, int(message["version"]), first_step)
                self._actions += [replace(self._here(Do.LOAD), steps=0), self._here(Do.VALIDATE)]
            case "hand-in":
                self._may_train = False
                self._ask = int(message["ask"])
                self._actions.append(self._here(Do.HAND_IN))
            case "end":
                self._may_train = False
                if not message.get("complete"):
                    raise ClientEnded(f"{ENDED}: {message.get('reason')}")
                self._actions.append(self._here(Do.END))
            case "rest":
                self._may_train = False
            case other:
                raise EdgeFailed(f"fedgc: saw {other!r} from the client, which this version does not know")

    def _train(self, message: Mapping[str, Any]) -> None:
        self._place = Action(
            Do.STEP, int(message["round"]), int(message["version"]), int(message["first_step"])
        )
        self._target, self._limit = int(message["target"]), int(message["limit"])
        self._reads_at_target = bool(message["reads_at_target"])
        self._may_train = True
        if message["load"]:
            counts, sums = self._shared.counts, self._shared.sums
            counts[LOGGED], sums[LOSSES], sums[SECONDS] = 0, 0.0, 0.0
            counts[STEPS] = int(message["steps"])
            counts[GENERATION] = self._generation = int(message["generation"])
            self._actions.append(self._here(Do.LOAD))
            if message["validate"]:
                self._actions.append(self._here(Do.VALIDATE))

    def _rest(self) -> None:
        """Wait for what is left of the step's least time; a line from the client ends the wait."""
        due = self._since + self._pace_s + self._owed_s
        self._owed_s = 0.0
        while (left := due - time.monotonic()) > 0:
            if self._leaving or self._line.ready(left):
                self._owed_s = max(0.0, due - time.monotonic())
                return


def _connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise EdgeFailed(f"fedgc: the client's socket {path}: {text_of(error)}") from error
    return connection
