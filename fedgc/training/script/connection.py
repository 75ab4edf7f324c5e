"""The process of a training script, and its connection over a local socket. Both may end, and come again."""

import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedgc.config import RunConfig
from fedgc.errors import BadMessage, EdgeFailed, FedgcError, printable
from fedgc.processes.temporary_folder import fresh_folder, place_of_sockets
from fedgc.training.loop.environment import ScriptEnvironment
from fedgc.training.loop.protocol import LineSocket
from fedgc.training.loop.shared_vectors import SharedVectors
from fedgc.training.script.place import in_app
from fedgc.training.script.process import ScriptProcess

END_S: Final = 60.0  # that a script has for itself after the run
STOP_S: Final = 2.0  # the same, if the run is not over
LOST_S: Final = 15.0  # that a script has to end once its connection is closed
HELLO_S: Final = 5.0  # for a connected process to prove that it is the script
MOST_UNPROVEN: Final = 16  # connections that have not proved it yet; others wait
LONGEST_WHY: Final = 340  # characters of why a script ended and where its log is, so that no message cuts it
LEAST_WHY: Final = 80  # of them for why it ended
LINES_A_TURN: Final = 1000  # so that a script that sends without end does not stop its client


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """What a client knows of its script."""

    config: RunConfig
    client: str  # the client's identity: its data is one chunk of this name
    settings: Mapping[str, str | int | float]  # the client's own: its node config
    folder: Path  # for the log, and for what outlives the script
    pace_s: float = 0.0  # least time of a step
    pinned: str = ""  # the command that the client's owner runs in place of the run's
    is_site: bool = False  # the command runs the fleet of a site

    @property
    def command(self) -> str:
        """The command that is executed."""
        return self.pinned or self.config.script


class ScriptConnection:
    """Starts the script, and takes its connection."""

    def __init__(self, facts: ScriptFacts) -> None:
        self._facts = facts
        self._folder, self._lock = fresh_folder("fedgc-script-", Path(place_of_sockets()))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._folder / "client"))
        self._listener.listen()
        self._listener.setblocking(False)
        self._secret = ""
        self._process: ScriptProcess | None = None
        self._line: LineSocket | None = None
        # Until when each connection may prove that it is the script.
        self._unproven: list[tuple[float, LineSocket]] = []
        self._lost_at: float | None = None  # when the running script's connection was closed
        self._was_ready = False  # the running script has been, over this connection or one before it
        self.is_ready = False  # the script has announced its model over this connection

    # ---- the process

    @property
    def is_running(self) -> bool:
        """Whether the script was started, and was not seen to end."""
        return self._process is not None

    @property
    def has_ended(self) -> bool:
        """Whether its process is over."""
        return self._process is not None and self._process.ended is not None

    @property
    def overdue(self) -> str:
        """What is wrong if it goes on without its connection; a launcher outlives rank 0 by a moment."""
        if self._lost_at is None or time.monotonic() <= self._lost_at + LOST_S:
            return ""
        return f"the script closed its connection and did not end within {LOST_S:g} s"

    def start(self) -> None:
        """Start the script; raise BadSetting or EdgeFailed if that cannot be."""
        facts, self._secret = self._facts, secrets.token_hex(16)
        environment = ScriptEnvironment(
            str(self._folder / "client"),
            self._secret,
            facts.config.table(),
            facts.settings,
            str(facts.folder),
            facts.pace_s,
        )
        self._lost_at, self._was_ready = None, False
        command = in_app(facts.command, sys.path)
        self._process = ScriptProcess(command, environment.write(), facts.folder / "script.log")

    def reap(self) -> tuple[int, str]:
        """Forget a process that has ended; return its exit status, and why it ended."""
        process, self._process = self._process, None
        if process is None:
            return 0, ""
        why = (process.ended == 0 and self._why_without_step()) or process.why_ended()
        process.end(0.0)
        output = f" (its output: {self._facts.folder / 'script.log'})"
        return process.ended or 0, printable(why, max(LEAST_WHY, LONGEST_WHY - len(output))) + output

    def _why_without_step(self) -> str:
        """Return what a script lacks that has ended without an error or a step; empty if it had one."""
        self.accept_again()  # it may have ended as soon as it had joined
        joined = self._lost_at is not None or self.is_connected
        self.disconnect()
        if self._was_ready:
            return ""
        missing = (
            "it took no batch of fed.steps, nor called fed.step" if joined else "it has not called fedgc.join"
        )
        return f"the script ended without a step: {missing}"

    def end(self) -> None:
        """Close the connection, and end the process at once."""
        self.disconnect()
        process, self._process = self._process, None
        if process is not None:
            process.end(0.0)

    def close(self, wait_s: float) -> None:
        """Give the script `wait_s` to end by itself, and end it; it is not started again."""
        if self._process is not None:
            self._process.end(wait_s)
        self.disconnect()
        for _, line in self._unproven:
            line.close()
        self._unproven.clear()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    # ---- the connection

    @property
    def is_connected(self) -> bool:
        """Whether the script can be told something."""
        return self._line is not None

    def accept_again(self) -> bool:
        """Take a connection that waits; return whether the running script was connected before.

        Anything that does not know the secret is turned away.
        """
        if self._line is not None or (line := self._accepted()) is None:
            return False
        self._line = line
        again, self._lost_at = self._lost_at is not None, None
        return again

    def _accepted(self) -> LineSocket | None:
        """Return a connection that has proved to be the script's; wait for none."""
        with suppress(BlockingIOError):
            while len(self._unproven) < MOST_UNPROVEN:
                connection, _ = self._listener.accept()
                self._unproven.append((time.monotonic() + HELLO_S, LineSocket(connection)))
        for each in tuple(self._unproven):
            end, line = each
            if (known := self._is_script(line)) is None and time.monotonic() < end:
                continue
            self._unproven.remove(each)
            if known:
                return line
            line.close()
        return None

    def _is_script(self, line: LineSocket) -> bool | None:
        """Whether a connection knows the secret; None if it has not said anything yet."""
        try:
            hello = line.receive(0.0)
        except FedgcError:
            return False
        if hello is None:
            return None
        secret = str(hello.get("secret")).encode(errors="replace")
        return hello["kind"] == "hello" and secrets.compare_digest(secret, self._secret.encode())

    def lines(self) -> Iterator[Mapping[str, Any]]:
        """Send what the script had no room for, and yield what it has sent, also before it ended.

        Raises:
            EdgeFailed: The connection is closed.
        """
        gone: EdgeFailed | None = None
        if self._line is not None:
            try:
                self._line.flush()
            except EdgeFailed as error:
                gone = error
        for _ in range(LINES_A_TURN):
            if self._line is None or (message := self._line.receive(0.0)) is None:
                break
            yield message
        if gone is not None:
            raise gone

    def say(self, kind: str, **fields: Any) -> None:  # noqa: ANN401  JSON
        """Tell the script something; a script that has gone hears nothing."""
        if self._line is not None:
            with suppress(EdgeFailed, BadMessage):  # the next turn finds that it has gone, or reads nothing
                self._line.post(kind, **fields)

    def give(self, memory: SharedVectors) -> None:
        """Pass the shared memory to the script.

        Raises:
            EdgeFailed: It has gone.
            BadMessage: It does not read what it is told.
        """
        if self._line is not None:
            self._line.give("memory", memory.descriptor)

    def disconnect(self) -> None:
        """Close the connection."""
        self._was_ready, self.is_ready = self._was_ready or self.is_ready, False
        if self._line is not None:
            self._line.close()
            self._line = None
            self._lost_at = time.monotonic()
