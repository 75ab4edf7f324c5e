"""The server's end of one receiver: it starts the process, tells it what to do, and hears what it says."""

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from fedgc.errors import EdgeFailed, FedgcError, text_of
from fedgc.links.byte_counts import Accounts, Amounts
from fedgc.links.frames import Invitation
from fedgc.links.pieces import Numbers
from fedgc.links.quotas import Pause
from fedgc.links.receivers.pipe import Pipe, close_all
from fedgc.links.receivers.shared_arrays import Form, mapped
from fedgc.links.receivers.terms import ReceiverTerms
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Codeword, LinkEvent

START_S: Final = 30.0
ANSWER_S: Final = 2.0  # to wait for an invitation; one that comes later serves the next client
SILENT_S: Final = 30.0  # then a process is asked whether it is there, and is ended after as long again
END_S: Final = 5.0  # after its goodbyes
MODULE: Final = "fedgc.links.receivers.process"

Command = tuple[tuple[Any, ...], tuple[int, ...]]  # a name and what it is given; descriptors


@dataclass(frozen=True, slots=True)
class Reactions:
    """What follows from what a receiver says; called in the thread that listens to it."""

    heard: Callable[["Receiver", LinkEvent], None]
    began: Callable[[bytes], None]  # gets the token with which a session began
    excluded: Callable[["Receiver", str, Pause], None]
    ended: Callable[["Receiver"], None]


class Receiver:
    """One process that receives."""

    def __init__(
        self,
        terms: ReceiverTerms,
        around: Surroundings,
        reactions: Reactions,
        accounts: dict[str, Accounts],
    ) -> None:
        """`accounts` are those of the clients of all receivers."""
        self.terms: Final = terms
        self.address = ""
        self.invited = 0  # clients that it serves, or will
        self.names: Final[dict[str, str]] = {}
        self.is_open = False  # from its start until the server closes it
        self._around, self._reactions = around, reactions
        self._accounts = accounts
        self._vectors: dict[tuple[str, int, int], Numbers] = {}
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._is_asked = False  # for an invitation that has not come yet
        self._process: subprocess.Popen[bytes] | None = None
        self._threads: tuple[threading.Thread, ...] = ()
        self._is_over = False
        self._turning = threading.Lock()  # it is open before it is over, or never

    # ---- its life

    def launch(self) -> None:
        """Start the process, or raise EdgeFailed."""
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, sys.path))  # what codecs of other packages are imported from
        pipe = Pipe(ours)
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603  our own module
                    [sys.executable, "-m", MODULE, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "PYTHONPATH": path},
                    stdin=subprocess.DEVNULL,
                )
            pipe.send(self.terms)
        except OSError as error:
            pipe.close()
            raise EdgeFailed(f"a receiver cannot be started: {text_of(error)}") from error
        self._threads = tuple(
            threading.Thread(target=target, args=(pipe,), name=name, daemon=True)
            for target, name in ((self._write, "fedgc-to-receiver"), (self._read, "fedgc-from-receiver"))
        )
        for each in self._threads:
            each.start()

    def begin(self) -> None:
        """Wait until clients can connect to it; raise what it could not do."""
        self.address = self._answer(START_S)
        with self._turning:
            if self._is_over:
                raise EdgeFailed(f"receiver {self.pid}: the process has ended")
            self.is_open = True

    @property
    def answers(self) -> bool:
        """Whether it is open, and has answered what it was asked last."""
        return self.is_open and not self._is_asked

    @property
    def pid(self) -> int:
        """The process."""
        return 0 if self._process is None else self._process.pid

    def close(self, reason: str, *, complete: bool) -> None:
        """Have it say goodbye to its clients; `wait` waits for its end."""
        self.is_open = False
        self.tell("close", reason, complete)

    def wait(self) -> None:
        """Wait until the process has ended; end it if it takes too long."""
        self.is_open = False
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._commands.put(None)
        for each in self._threads:
            if each is not threading.current_thread():
                each.join(END_S)

    # ---- what it is told

    def tell(self, *command: object, descriptors: Sequence[int] = ()) -> None:
        """Tell it something, from any thread and from a signal handler; the descriptors are closed here."""
        if self._is_over:
            for each in descriptors:
                os.close(each)
        else:
            self._commands.put((command, tuple(descriptors)))

    def invite(self) -> Invitation:
        """Return a new invitation to it; raise EdgeFailed if it does not answer."""
        with self._asking:
            if self._is_over:
                raise EdgeFailed(f"receiver {self.pid}: the process has ended")
            wait_s = 0.0 if self._is_asked else ANSWER_S
            if not self._is_asked:
                self.tell("invite")
            self._is_asked = True
            invitation: Invitation = self._answer(wait_s)
            self._is_asked = False
            self.invited += 1
            return invitation

    def _answer(self, wait_s: float) -> Any:  # noqa: ANN401  whatever it answers
        try:
            answer = self._answers.get(timeout=wait_s)
        except queue.Empty:
            answer = EdgeFailed(f"receiver {self.pid}: it did not answer within {wait_s:g} s")
        if isinstance(answer, FedgcError):
            raise answer
        return answer

    def _write(self, pipe: Pipe) -> None:
        """Send what it is told; what waits goes as one message."""
        is_over = False
        while not is_over:
            batch = [self._commands.get()]
            with suppress(queue.Empty):
                while not (batch[-1] and batch[-1][1]):  # files go with the last command of a message
                    batch.append(self._commands.get_nowait())
            commands = [each for each in batch if each is not None]
            is_over = len(commands) < len(batch)
            descriptors = [each for _, files in commands for each in files]
            with suppress(OSError):  # it has ended
                pipe.send([command for command, _ in commands], descriptors)
            for each in descriptors:
                os.close(each)

    # ---- what it says

    def _read(self, pipe: Pipe) -> None:
        try:
            self._hear(pipe)
        except (EOFError, ConnectionError):
            return
        except OSError as error:
            self._around.log.warning("receiver %d: %s", self.pid, text_of(error))
        finally:
            pipe.close()
            with self._turning:
                self._is_over = True
            self._answers.put(EdgeFailed(f"receiver {self.pid}: the process has ended"))
            self._reactions.ended(self)

    def _hear(self, pipe: Pipe) -> NoReturn:
        said_by_it: Mapping[str, Callable[..., None]] = {
            "answer": self._answers.put,
            "event": self._event,
            "name": self.names.__setitem__,
            "amounts": self._add,
            "audit": self._around.audit,
            "log": lambda level, text: self._around.log.log(level, "%s", text),
            "began": self._reactions.began,
            "excluded": self._excluded,
            "here": lambda: None,
        }
        said, descriptors = pipe.receive()  # that it has begun: `begin` waits for this
        pipe.limit(SILENT_S)
        while True:
            files = iter(descriptors)
            try:
                for what, *given in said:
                    if what == "codeword":
                        self._codeword(next(files), *given)
                    else:
                        said_by_it[what](*given)
            finally:  # what a vector that cannot be mapped has left
                close_all(files)
            said, descriptors = self._next(pipe)

    def _next(self, pipe: Pipe) -> tuple[Any, list[int]]:
        """Return what it says next; where it is silent, ask it once whether it is there.

        A machine may have stood still with all of its processes, so one silence does not count.
        """
        try:
            return pipe.receive()
        except TimeoutError:
            self.tell("here")
        try:
            return pipe.receive()
        except TimeoutError as error:
            raise TimeoutError("it does not answer, and is ended") from error

    def _event(self, event: LinkEvent) -> None:
        self._reactions.heard(self, event)

    def _codeword(self, descriptor: int, event: Codeword, form: Form) -> None:
        self._vectors[event.client, event.round, event.attempt] = mapped(descriptor, *form)
        self._reactions.heard(self, event)

    def _add(self, amounts: Mapping[str, tuple[Any, ...]]) -> None:
        for client, values in amounts.items():
            self._accounts.setdefault(client, Accounts()).take_over(Amounts(*values))

    def _excluded(self, client: str, pause: Pause) -> None:
        self._around.quotas.note(client, pause)
        self._reactions.excluded(self, client, pause)

    # ---- vectors of its clients

    def take(self, client: str, round_: int, attempt: int) -> Numbers:
        """Return an announced codeword, once."""
        vector = self._vectors.pop((client, round_, attempt), None)
        if vector is None:
            raise EdgeFailed(f"codeword of {client}, round {round_}, attempt {attempt}: it is not here")
        return vector

    def forget(self, client: str, round_: int, attempt: int) -> None:
        """Free an announced codeword: another may come in its place."""
        self._vectors.pop((client, round_, attempt), None)
        self.tell("forget", client, round_, attempt)
