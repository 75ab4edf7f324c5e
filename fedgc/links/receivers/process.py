"""The process of a receiver: the listener of its clients, and a pipe to the server.

What it hears in one turn of its loop goes to the server as one message, as does what the driver tells it. A
vector that is whole, checked and decoded is handed on in shared memory. It ends when the pipe does.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from logging import INFO, Handler, LogRecord
from typing import Any, Final

from fedgc.codecs.model_change import ModelChange
from fedgc.errors import BadVector, EdgeFailed, FedgcError, text_of
from fedgc.links.log import LOG
from fedgc.links.quotas import Quotas
from fedgc.links.receivers.pipe import MOST_FILES, Pipe
from fedgc.links.receivers.shared_arrays import Form, SharedArrays, form_of, mapped
from fedgc.links.receivers.terms import ReceiverTerms
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Announced, Codeword, Joined, LinkEvent
from fedgc.processes.available import available_memory


class Outbox:
    """What the process has to say to the server; what one turn of a loop says goes as one message."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._said: list[tuple[Any, ...]] = []
        self._descriptors: list[int] = []
        self._is_due = False
        self.before: Callable[[], None] = lambda: None  # what is to be said last of all in a message

    def say(self, *what: object, descriptor: int | None = None) -> None:
        """Say something, with a file that is closed here once it was sent."""
        with self._lock:
            self._said.append(what)
            if descriptor is not None:
                self._descriptors.append(descriptor)
            is_full = len(self._descriptors) >= MOST_FILES
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # another thread than the listener's
            self.send()
            return
        if is_full:
            self.send()
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._send_all)

    def _send_all(self) -> None:
        self._is_due = False
        self.before()
        self.send()

    def send(self) -> None:
        """Send what was said."""
        with self._lock:
            said, self._said, descriptors, self._descriptors = self._said, [], self._descriptors, []
            with suppress(OSError):  # the server is gone: so is this process, once it reads
                if said:
                    self._pipe.send(said, descriptors)
        for each in descriptors:
            os.close(each)


class _Lines(Handler):
    """Passes log lines on to the server's log."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def emit(self, record: LogRecord) -> None:
        self._outbox.say("log", record.levelno, self.format(record))


class ReceiverProcess:
    """The listener of a receiver, and what the server may ask of it."""

    def __init__(self, terms: ReceiverTerms, outbox: Outbox) -> None:
        self._outbox = outbox
        self._arrays = SharedArrays(terms.folder, available=available_memory)
        self._active: set[str] = set()  # clients that were heard of in this turn
        self.files: Final[deque[int]] = deque()  # of the models that are to be published, by descriptor
        quotas = Quotas(terms.config.lines_per_s, terms.config.bytes_per_s)
        quotas.told = lambda *excluded: outbox.say("excluded", *excluded)
        around = Surroundings(
            time.monotonic,
            os.urandom,
            time.time,
            LOG,
            lambda *what: outbox.say("audit", *what),
            quotas,
            self._arrays,
            lambda token: outbox.say("began", token),
        )
        self._listener = Listener(terms.config, terms.run, 0, self._hear, around)
        self.commands: Final[dict[str, Callable[..., object]]] = {
            "invite": lambda: outbox.say("answer", self._listener.invite()),
            "cancel": self._listener.cancel,
            "expect": self._listener.expect,
            "publish": self._publish,
            "send": self._listener.send,
            "forget": self._listener.forget,
            "exclude": self._listener.exclude,
            "note": quotas.note,
            "dismiss": self._listener.dismiss,
            "here": lambda: outbox.say("here"),
            "close": self._close,
        }
        outbox.before = self._settle

    def start(self) -> str:
        """Serve; return the address that clients connect to."""
        return self._listener.start()

    def _close(self, reason: str, complete: bool) -> None:
        self._listener.close(reason, complete=complete)
        self._outbox.send()
        raise EOFError("closed")

    def _publish(self, version: int, vector: Form, change: tuple[slice, str, Form] | None) -> None:
        """Make a model in shared memory available, and its change."""
        model = mapped(self.files.popleft(), *vector)
        changed = None
        if change is not None:
            part, codec, form = change
            changed = ModelChange(part, codec, mapped(self.files.popleft(), *form))
        self._listener.publish(version, model, changed)

    # ---- in the listener's thread

    def _hear(self, event: LinkEvent) -> None:
        client = getattr(event, "client", "")
        self._active.add(client)
        if isinstance(event, Codeword):
            self._hand_on(event)
            return
        if isinstance(event, Announced | Joined):
            self._outbox.say("name", client, self._listener.name(client))
        self._outbox.say("event", event)

    def _hand_on(self, event: Codeword) -> None:
        vector = self._listener.take(event.client, event.round, event.attempt)
        try:
            descriptor = self._arrays.descriptor_of(vector)
        except EdgeFailed as error:
            raise BadVector(str(error)) from error
        self._outbox.say("codeword", event, form_of(vector), descriptor=descriptor)

    def _settle(self) -> None:
        """Say the byte amounts of the clients that this message is about."""
        active, self._active = self._active, set()
        if amounts := {client: self._listener.settle(client).values for client in active}:
            self._outbox.say("amounts", amounts)


def serve(pipe: Pipe) -> None:
    """Serve until the server closes the pipe, or asks to close."""
    terms, _ = pipe.receive()
    outbox = Outbox(pipe)
    LOG.handlers, LOG.propagate = [_Lines(outbox)], False
    LOG.setLevel(INFO)
    try:
        process = ReceiverProcess(terms, outbox)
        outbox.say("answer", process.start())
    except FedgcError as error:
        outbox.say("answer", error)
        return
    gc.freeze()
    with suppress(EOFError):
        while True:
            try:
                commands, descriptors = pipe.receive()
                process.files.extend(descriptors)
                for name, *given in commands:
                    process.commands[name](*given)
            except OSError as error:  # as of a model for which there is no memory or no descriptor
                LOG.error("receiver %d: it ends: %s", os.getpid(), text_of(error))
                return


def main() -> None:
    """Run a receiver on the socket that its parent has passed on."""
    for each in (signal.SIGINT, signal.SIGTERM):  # the server says goodbye; without it, the pipe ends
        signal.signal(each, signal.SIG_IGN)
    serve(Pipe(socket.socket(fileno=int(sys.argv[1]))))
    os._exit(0)


if __name__ == "__main__":
    main()
