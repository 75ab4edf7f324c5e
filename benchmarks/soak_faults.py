"""The faults of a soak, and of the example `plugs`: which ones, when, and how each is made on real processes.

The schedule depends on the seed alone. It consists of cycles: each fault of a client once, and by turns one
of the server or its SuperLink, in random order.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import cycle
from typing import Final

from benchmarks.served import SERVER, SUPERLINK, SUPERNODE, WAIT_S, Served, alive, eventually
from fedgc.errors import EdgeFailed
from fedgc.processes import supervision

APART_S: Final = (5.0, 12.0)  # from a completed round after one fault to the next fault
END_S: Final = 3.0  # for a SuperLink to end by itself
STOPPED_S: Final = (1.0, 12.0)  # shorter and longer than links.grace-s


class Kind(Enum):
    """The kinds of fault."""

    KILL = "client: SIGKILL"
    LEAVE = "client: SIGTERM"
    STOP = "client: SIGSTOP, SIGCONT"
    SERVER = "server: SIGKILL"
    SUPERLINK = "SuperLink: restart"


OF_CLIENT: Final = (Kind.KILL, Kind.LEAVE, Kind.STOP)
OF_SERVER: Final = (Kind.SERVER, Kind.SUPERLINK)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: how long after the last one, and which client."""

    kind: Kind
    after_s: float
    client: str
    stopped_s: float


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault that was made: when, and when the processes that it ended had ended."""

    kind: Kind
    client: str  # empty if it was no client's
    at: float  # seconds since 1970
    ended: float
    recovery_s: float = 0.0  # until the next completed round


def schedule(seed: int, clients: Sequence[str], apart_s: tuple[float, float] = APART_S) -> Iterator[Fault]:
    """Yield faults without end, each so many seconds (least, most) after the last one.

    >>> [fault.kind.name for fault, _ in zip(schedule(1, ["a", "b"]), range(4))]
    ['LEAVE', 'STOP', 'KILL', 'SERVER']
    """
    chance = random.Random(seed)  # noqa: S311  moments, not secrets
    for server in cycle(OF_SERVER):
        for kind in chance.sample((*OF_CLIENT, server), len(OF_CLIENT) + 1):
            yield Fault(kind, chance.uniform(*apart_s), chance.choice(clients), chance.uniform(*STOPPED_S))


def make(fault: Fault, served: Served) -> Happened:
    """Make a fault; return when it happened."""
    of_client = fault.kind in OF_CLIENT
    found = _supervisor(served, fault.client) if of_client else 0
    at = time.time()
    match fault.kind:
        case Kind.KILL:
            supervision.kill_below(found)
        case Kind.LEAVE:
            _end(found, signal.SIGTERM)
        case Kind.STOP:
            stopped = halt(served, fault.client)
            try:
                threading.Event().wait(fault.stopped_s)
            finally:
                go_on(stopped)
        case Kind.SERVER:
            _end(_program(served, SERVER), signal.SIGKILL)
        case Kind.SUPERLINK:
            _restart(_supervisor(served, SUPERLINK))
    return Happened(fault.kind, fault.client if of_client else "", at, time.time())


def halt(served: Served, name: str) -> tuple[int, ...]:
    """Stop the processes of a client, the ServerApp (SERVER) or the SuperLink (SUPERLINK); return them."""
    if name == SERVER:
        stopped: tuple[int, ...] = (_program(served, SERVER),)
    elif name == SUPERLINK:
        stopped = (_program(served, SUPERLINK),)
    else:
        stopped = supervision.descendants(_supervisor(served, name))
    _signal(stopped, signal.SIGSTOP)
    return stopped


def go_on(stopped: Sequence[int]) -> None:
    """Let stopped processes go on."""
    _signal(stopped, signal.SIGCONT)


def _supervisor(served: Served, name: str) -> int:
    """Return a supervisor that has a program, once there is one: `fedgc serve` may be restarting it."""
    found: list[int] = []

    def there() -> bool:
        pid = served.supervisor(name)
        program = SUPERLINK if name == SUPERLINK else SUPERNODE
        found[:] = [pid] if pid is not None and served.programs(program, pid) else []
        return bool(found)

    eventually(there)
    return found[0]


def _program(served: Served, name: str) -> int:
    found: list[int] = []

    def there() -> bool:
        found[:] = served.programs(name)
        return bool(found)

    eventually(there)
    return found[0]


def _end(pid: int, number: signal.Signals) -> None:
    """Send a signal that ends a process, and wait until it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    eventually(lambda: not alive(pid), WAIT_S)


def _restart(supervisor: int) -> None:
    """Ask a SuperLink to end, and kill what is left after a while, as service managers do.

    Flower's SuperLink waits for its open requests, such as that of a run's log.
    """
    with suppress(ProcessLookupError):
        os.kill(supervisor, signal.SIGTERM)
    with suppress(EdgeFailed):
        eventually(lambda: not alive(supervisor), END_S)
    supervision.kill_below(supervisor)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
