"""What a world is made of: the machine it obeys, what its clients are like, and what is seen of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from fedgc.errors import BadSetting
from fedgc.messages import Continue, Event, Work
from fedgc.sim.clock.conditions import NEVER
from fedgc.sim.clock.server_link import UNCONTENDED, Line


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time that a client spent on a chunk; not `finished` where it left it, or died.

    `counted`: the client's copy of this chunk was part of a vector that it sent.
    """

    client: str
    chunk: int
    begin_s: float
    end_s: float
    finished: bool
    counted: bool = False


class Machine(Protocol):
    """What the clock drives."""

    @property
    def next_tick(self) -> float:
        """When it wants to hear the time."""

    def handle(self, event: Event) -> Iterable[Any]:
        """Return commands, and whatever else a driver is told."""


@dataclass(frozen=True, slots=True)
class Failure:
    """When a client dies and returns, in seconds from now; `keeps`: whether it then still has its work."""

    dies_s: float
    returns_s: float = NEVER
    keeps: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.dies_s <= self.returns_s:
            raise BadSetting(f"{self!r}: needed a death, then perhaps a return")


class ClientModel(Protocol):
    """What the clients are like; index w is a client, a share is a part of one chunk's work.

    In local work, where no chunk is worked on by itself, chunk 0 stands for a round's steps.
    """

    def seconds(self, w: int, chunk: int, share: float, worked: float) -> float:
        """Return the time for this share of a chunk, after `worked` seconds of work in this round."""

    def up_s(self, w: int) -> float:
        """Return the seconds for a whole update on this client's own uplink."""

    def down_s(self, w: int) -> float:
        """Return the seconds for a whole model on this client's own downlink."""

    def control_s(self, w: int) -> float:
        """Return how long a command or a progress is under way, in the round that has begun."""

    def begin(self, number: int) -> Iterable[tuple[int, Failure]]:
        """Let the conditions of this round hold; return who dies in it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a client says of a chunk that it has finished, beside the time."""

    samples: int = 1
    squared_norm: float = 1.0
    loss: float = 0.0
    sketch: tuple[float, ...] = ()


NOTHING_FOUND: Final = Finding()


class Observer(Protocol):
    """Who knows what training gives, where more than time is simulated."""

    def begin(self, work: Work) -> None:
        """A client was given this work."""

    def carry_on(self, work: Continue) -> None:
        """A client goes on from a round that was not exchanged."""

    def finding(self, chunk: int, target: int) -> Finding:
        """Return what a client finds that takes this chunk to that many steps."""

    def reached(self, client: str, steps: int) -> Finding:
        """Return what this client finds in local work that has come to so many steps."""

    def lost(self, client: str) -> None:
        """A client has lost its state."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How the world is set up, the same for every client."""

    steps: int = 1  # local steps that `Nature.seconds` is the time of
    update_bytes: int = 0  # of a whole update
    line: Line = UNCONTENDED
    grace_s: float = 0.0  # until a death is heard of
    steered: bool = True  # else clients put what they are told to take last: for comparison
    partial: bool = True  # else one that is stopped before its target has no steps to send: for comparison
    watch: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.grace_s >= 0:
            raise BadSetting(f"{self!r}: needed at least one step and a grace time of 0 or more")
