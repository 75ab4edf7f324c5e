"""The frameworks whose processes the benchmark of kills ends: fedgc, torchft's LocalSGD, Flower's FedAvg.

Each keeps one process of the same work in each of `CLIENTS` slots; another takes the place of one that has
ended.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from benchmarks.departing import Client, Fleet
from benchmarks.killed.work import CLIENTS, Counts
from fedgc.deploy.local_federation import LocalFederation, Node, Wiring
from fedgc.errors import EdgeFailed

ROOT: Final = Path(__file__).parents[1]
GRACE_S: Final = 20.0  # from SIGTERM to SIGKILL, as clouds and containers grant
READY_S: Final = 300.0
POLL_S: Final = 0.05
SETTLE_S: Final = 0.3  # within which all processes have counted an exchange
FLOWER_TIMEOUT_S: Final = 20.0  # of a round; by default Flower waits for an hour
APP: Final = "from benchmarks.killed.flower import {0}\n\napp = {0}\n"


class Stepping(Protocol):
    """One process: its steps that were begun, and those that entered the common model."""

    @property
    def begun(self) -> int:
        """Return the steps that it has begun."""

    @property
    def counted(self) -> int:
        """Return its steps that entered the common model."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that was ended, and its steps in the common model at that moment."""

    process: Stepping
    before: int

    @property
    def at_stake(self) -> int:
        """Return its steps that were not in the common model."""
        return self.process.begun - self.before

    @property
    def kept(self) -> int:
        """Return how many of them entered it afterwards."""
        return self.process.counted - self.before


class Arm(ABC):
    """One framework with a process in each slot."""

    def __init__(self) -> None:
        self._all = list[Stepping]()
        self._slots = dict[int, Stepping]()

    def __enter__(self) -> Self:
        try:
            self.open()
            for slot in range(CLIENTS):
                self._take(slot)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self) -> None:
        """Wait until steps of all processes are in the common model.

        Raises:
            EdgeFailed: They are not within `READY_S`.
        """
        end = time.monotonic() + READY_S
        while not all(each.counted for each in self._slots.values()):
            if time.monotonic() > end:
                raise EdgeFailed(f"{type(self).__name__}: no exchange of all processes within {READY_S:g} s")
            time.sleep(POLL_S)

    def exchange(self) -> None:
        """Wait for the next exchange, after which all have counted their steps.

        Raises:
            EdgeFailed: There is none within `READY_S`.
        """
        before, end = self.counted(), time.monotonic() + READY_S
        while self.counted() == before:
            if time.monotonic() > end:
                raise EdgeFailed(f"{type(self).__name__}: no exchange within {READY_S:g} s")
            time.sleep(POLL_S)
        time.sleep(SETTLE_S)

    def kill(self, slot: int, number: signal.Signals) -> Kill:
        """End the process in a slot by a signal, after `GRACE_S` by SIGKILL; start another one."""
        process = self._slots[slot]
        kill = Kill(process, process.counted)
        self.end(slot, process, number)
        self._take(slot)
        return kill

    def begun(self) -> int:
        """Return the steps of all processes that there were."""
        return sum(each.begun for each in self._all)

    def counted(self) -> int:
        """Return their steps that entered the common model."""
        return sum(each.counted for each in self._all)

    def _take(self, slot: int) -> None:
        self._slots[slot] = process = self.start(slot)
        self._all.append(process)

    @abstractmethod
    def open(self) -> None:
        """Start what the processes need."""

    @abstractmethod
    def start(self, slot: int) -> Stepping:
        """Start a process in a slot."""

    @abstractmethod
    def end(self, slot: int, process: Stepping, number: signal.Signals) -> None:
        """End a process by a signal, after `GRACE_S` by SIGKILL."""

    @abstractmethod
    def close(self) -> None:
        """End all."""


class Fedgc(Arm):
    """fedgc over sessions."""

    def __init__(self) -> None:
        super().__init__()
        self._fleet = Fleet(period=1)

    def open(self) -> None:
        """Start the server."""
        self._fleet.__enter__()

    def start(self, slot: int) -> Stepping:  # noqa: ARG002  the clients are alike
        """Start a client."""
        return self._fleet.start()

    def end(self, slot: int, process: Stepping, number: signal.Signals) -> None:  # noqa: ARG002  as above
        """End a client."""
        assert isinstance(process, Client)  # noqa: S101  `start` returned it
        if (status := process.process.exitcode) is not None:
            raise EdgeFailed(f"fedgc: a client ended by itself, with {status}")
        os.kill(process.process.pid, number)
        process.process.join(GRACE_S)
        process.process.kill()
        process.process.join()

    def close(self) -> None:
        """End the server and its clients."""
        self._fleet.close()


class _Replica(Counts):
    """A process of torchft."""

    def __init__(self, pid: int, path: Path) -> None:
        super().__init__(path)
        self.pid = pid


class Torchft(Arm):
    """torchft's LocalSGD, in an interpreter that has it."""

    def __init__(self, python: str) -> None:
        super().__init__()
        self._python = python
        self._folder = tempfile.TemporaryDirectory(prefix="fedgc-bench-")

    def open(self) -> None:
        """Start the program that starts the lighthouse and replicas."""
        self._host = subprocess.Popen(  # noqa: S603  our own program
            [self._python, "-m", "benchmarks.killed.torchft", self._folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def start(self, slot: int) -> Stepping:  # noqa: ARG002  the replicas are alike
        """Start a replica."""
        assert self._host.stdin is not None  # noqa: S101  it is a pipe
        assert self._host.stdout is not None  # noqa: S101
        self._host.stdin.write("start\n")
        self._host.stdin.flush()
        said = self._answer()
        return _Replica(said["pid"], Path(said["counts"]))

    def _answer(self) -> dict[str, Any]:
        for line in self._host.stdout or ():
            if line.startswith('{"pid"'):  # the library's own log is on the same stream
                return dict(json.loads(line))
        raise EdgeFailed(f"torchft: its program ended with {self._host.wait()}")

    def end(self, slot: int, process: Stepping, number: signal.Signals) -> None:  # noqa: ARG002  as above
        """End a replica."""
        assert isinstance(process, _Replica)  # noqa: S101  `start` returned it
        _end((process.pid,), number)

    def close(self) -> None:
        """End the lighthouse and all replicas, which end with their program's input."""
        assert self._host.stdin is not None  # noqa: S101
        self._host.stdin.close()
        self._host.wait()
        self._folder.cleanup()


class Flower(Arm):
    """Flower's FedAvg; a slot is a SuperNode with its ClientApp."""

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory(prefix="fedgc-bench-")
        self._folder = Path(self._temporary.name)
        self._numbers = dict.fromkeys(range(CLIENTS), 0)
        nodes = [Node(_name(slot), {"slot": str(self._folder / str(slot))}) for slot in range(CLIENTS)]
        around = {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
        self._federation = LocalFederation(nodes, environment=around)

    def open(self) -> None:
        """Start the federation and the run."""
        for slot in range(CLIENTS):
            self._write(slot)
        self._federation.__enter__()
        settings: dict[str, str | int | float] = {
            "folder": str(self._folder),
            "nodes": CLIENTS,
            "timeout-s": FLOWER_TIMEOUT_S,
        }
        self._federation.submit(settings, Wiring(APP.format("server_app"), APP.format("client_app")))

    def start(self, slot: int) -> Stepping:
        """Start the SuperNode of a slot, if it is not its first."""
        if self._numbers[slot]:
            self._write(slot)
            self._federation.restart(_name(slot))
        number = self._numbers[slot]
        self._numbers[slot] += 1
        return Counts(self._folder / f"{slot}-{number}")

    def _write(self, slot: int) -> None:
        (self._folder / str(slot)).write_text(str(self._numbers[slot]))

    def end(self, slot: int, process: Stepping, number: signal.Signals) -> None:  # noqa: ARG002  the slot has it
        """End a SuperNode: by SIGTERM itself, as a container's stop does, by SIGKILL all that it started."""
        if number == signal.SIGTERM:
            _end(self._federation.pids(_name(slot))[:1], number)
        self._federation.kill(_name(slot))

    def close(self) -> None:
        """End all processes."""
        self._federation.close()
        self._temporary.cleanup()


def _name(slot: int) -> str:
    return f"client-{slot}"


def _end(pids: Sequence[int], number: signal.Signals) -> None:
    """End processes by a signal, after `GRACE_S` by SIGKILL, and wait until they have ended."""
    with suppress(ProcessLookupError):
        for pid in pids:
            os.kill(pid, number)
    if not eventually(lambda: not any(map(_lives, pids)), GRACE_S):
        with suppress(ProcessLookupError):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(map(_lives, pids)), GRACE_S)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def eventually(is_so: Callable[[], bool], within_s: float) -> bool:
    """Wait until something is so; return whether it is within that time."""
    end = time.monotonic() + within_s
    while not is_so() and time.monotonic() < end:
        time.sleep(POLL_S)
    return is_so()


def lacks(python: str, package: str) -> str:
    """Return why an interpreter cannot run a framework, or nothing.

    >>> import sys
    >>> lacks(sys.executable, "json")
    ''
    """
    try:
        found = subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode == 0  # noqa: S603
    except OSError:
        found = False
    return "" if found else f"{package} cannot be imported by {python}"
