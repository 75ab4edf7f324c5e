"""The clients of the fleet benchmark: many sessions in each of a few processes, which do not train.

Each answers work at once, with a constant update. One thread serves all clients of a process in turn; each
session has the thread of the product. As one machine stands for many, it opens few sessions at the same time.
"""

import random
import secrets
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from typing import Final

import numpy as np

from benchmarks.fleet_server import NUMBERS, layout_of
from fedgc.config import RunConfig
from fedgc.links.frames import Invitation
from fedgc.links.identity import Identity
from fedgc.links.session.client import Session, Terms
from fedgc.messages import Announced, Close, Continue, Held, Joined, Report, Reveal, ToClient, Work
from fedgc.sim.owned import end_with_the_parent
from fedgc.training import Vector

SAMPLES: Final = (10, 11)  # of clients with even and odd numbers,
SIZES: Final = (9e-4, 1.1e-3)  # and each number of their updates: so close that the server clips none
STEP_S: Final = 0.01  # that a client claims for a step
IDLE_S: Final = 0.01  # between two looks at all sessions,
IDLE_EACH_S: Final = 0.0003  # and this for each of them: a look takes time from their threads
AWAKE_S: Final = 0.003  # between two looks of clients whose own time counts
OPENING: Final = 20  # sessions of all processes that may wait for the server's first answer
GROUP: Final = 100  # sessions of a process,
AWAKE_GROUP: Final = 16  # and of clients whose own time counts: each has a machine of its own
OPENED_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """Clients of one process, and in how many rounds each leaves once and comes again (0: in none)."""

    config: RunConfig
    numbers: range
    leaves_every: int = 0
    opening: int = OPENING
    size: int = NUMBERS  # of a vector
    idle_s: float = 0.0  # between two looks at all sessions


def crowds(
    config: RunConfig, numbers: range, leaves_every: int, size: int = NUMBERS, *, awake: bool = False
) -> tuple[Crowd, ...]:
    """Return the clients of each process; `awake` ones answer sooner, and take more processor time."""
    group = AWAKE_GROUP if awake else GROUP
    first = range(0, len(numbers), group)
    opening = max(1, OPENING // len(first))
    idle_s = AWAKE_S if awake else IDLE_S + IDLE_EACH_S * min(GROUP, len(numbers))
    return tuple(Crowd(config, numbers[n : n + group], leaves_every, opening, size, idle_s) for n in first)


@cache
def update_of(number: int, size: int) -> Vector:
    """Return the update of clients with even (0) or odd (1) numbers."""
    return np.full(size, SIZES[number], np.float32)


def mean_update(numbers: range) -> float:
    """Return each number of the mean by samples of the updates of these clients.

    >>> round(mean_update(range(2)), 6), round(mean_update(range(1)), 6)
    (0.001005, 0.0009)
    """
    samples = [SAMPLES[number % 2] for number in numbers]
    return sum(SIZES[n % 2] * each for n, each in zip(numbers, samples, strict=True)) / sum(samples)


class _Client:
    """One client, with a new session for each invitation."""

    def __init__(self, number: int, crowd: Crowd) -> None:
        self._number, self._crowd = number, crowd
        self._samples, self._update = SAMPLES[number % 2], update_of(number % 2, crowd.size)
        self._who = Identity(secrets.token_bytes(32))
        self._open = ExitStack()
        self._session: Session | None = None
        self._work: Work | None = None

    def come(self, invitation: Invitation) -> None:
        """Open a session and join."""
        config, name = self._crowd.config, f"client-{self._number}"
        piece_bytes, client = config.piece_kb * 1024, self._who.client
        terms = Terms(config.grace_s, piece_bytes, self._crowd.size, time.monotonic, random.random, name)
        self._session = session = self._open.enter_context(Session(invitation, self._who, terms))
        session.send(Announced(0.0, client, layout_of(self._crowd.size)))
        session.send(Joined(0.0, client, True, (Held(f"part-{self._number}", self._samples),)))

    def leave(self) -> None:
        """End the session and wait for its end."""
        self._session = None
        self._open.close()

    @property
    def is_opening(self) -> bool:
        """Whether the server has not answered yet."""
        return self._session is not None and not self._session.reached

    @property
    def is_lost(self) -> bool:
        """Whether its session has ended."""
        return self._session is not None and bool(self._session.ended)

    def follow(self) -> ToClient | None:
        """Carry out the next command, if there is one."""
        session = self._session
        if session is None or session.ended or (command := session.receive(0.0)) is None:
            return None
        match command:
            case Work():
                session.fresh_model(command.version)
                self._work = command
                session.send(self._report(command.round, command.target))
            case Continue():
                session.send(self._report(command.round, command.target))
            case Reveal() if self._work is not None:
                session.send(self._report(command.round, self._work.target))
                session.offer(command.round, command.attempt, self._update, command.wire)
            case _:
                pass
        return command

    def _report(self, round_: int, steps: int) -> Report:
        return Report(0.0, self._who.client, round_, steps, self._samples, STEP_S * steps, 1.0, 1.0)

    def leaves_after(self, command: Close) -> bool:
        """Whether it is its turn to leave after this round."""
        every = self._crowd.leaves_every
        return every > 0 and (command.round + self._number) % every == 0


def serve_all(crowd: Crowd, invitations: Sequence[Invitation], pipe: Connection) -> None:
    """Serve all clients until the benchmark says anything; then tell how many sessions have ended by then."""
    end_with_the_parent()
    waiting = deque(invitations)
    clients = [_Client(number, crowd) for number in crowd.numbers]
    for at, client in enumerate(clients):
        client.come(waiting.popleft())
        _wait_for(clients[max(0, at - crowd.opening)])
    while not pipe.poll(0.0 if _turn(clients, waiting) else crowd.idle_s):
        pass
    pipe.send(sum(client.is_lost for client in clients))
    pipe.recv()


def _wait_for(client: _Client) -> None:
    """Wait until the server has answered a client."""
    end = time.monotonic() + OPENED_S
    while client.is_opening and time.monotonic() < end:
        time.sleep(IDLE_S)


def _turn(clients: Sequence[_Client], waiting: deque[Invitation]) -> bool:
    """Let every client carry out its next command; return whether any had one."""
    acted = False
    for client in clients:
        command = client.follow()
        acted = acted or command is not None
        leaves = isinstance(command, Close) and client.leaves_after(command)
        if (leaves or client.is_lost) and waiting:  # a server invites a lost client again
            client.leave()
            client.come(waiting.popleft())
    return acted
