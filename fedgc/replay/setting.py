"""What a world is made of: the machine it obeys, what its devices are like, and what is seen of them.

May import: messages; conditions, pipe.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from fedgc.errors import BadSetting
from fedgc.messages import Continue, Event, Work
from fedgc.replay.conditions import NEVER
from fedgc.replay.pipe import UNCONTENDED, Line


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time that a device spent on a chunk; not `finished` where it left it, or died.

    `counted`: the device's copy of this chunk was part of a vector that it sent.
    """

    device: str
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
class Fate:
    """When a device dies and returns, in seconds from now; `keeps`: whether it then still has its work."""

    dies_s: float
    returns_s: float = NEVER
    keeps: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.dies_s <= self.returns_s:
            raise BadSetting(f"{self!r}: needed a death, then perhaps a return")


class Nature(Protocol):
    """What the devices are like; index w is a device, a share is a part of one chunk's work.

    In local work, where no chunk is worked on by itself, chunk 0 stands for a round's steps.
    """

    def seconds(self, worker: int, chunk: int, share: float, worked: float) -> float:
        """Return the time for this share of a chunk, after `worked` seconds of work in this round."""

    def up_s(self, worker: int) -> float:
        """Return the seconds for a whole update on this device's own uplink."""

    def down_s(self, worker: int) -> float:
        """Return the seconds for a whole model on this device's own downlink."""

    def control_s(self, worker: int) -> float:
        """Return how long a command or a progress is under way, in the round that has begun."""

    def begin(self, number: int) -> Iterable[tuple[int, Fate]]:
        """Let the conditions of this round hold; return who dies in it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a device says of a chunk that it has finished, beside the time."""

    samples: int = 1
    squared_norm: float = 1.0
    loss: float = 0.0
    sketch: tuple[float, ...] = ()


NOTHING_FOUND: Final = Finding()


class Witness(Protocol):
    """Who knows what training gives, where more than time is simulated."""

    def begin(self, work: Work) -> None:
        """A device was given this work."""

    def carry_on(self, work: Continue) -> None:
        """A device goes on from a round that was not exchanged."""

    def finding(self, chunk: int, target: int) -> Finding:
        """Return what a device finds that takes this chunk to that many steps."""

    def reached(self, device: str, steps: int) -> Finding:
        """Return what this device finds in local work that has come to so many steps."""

    def lost(self, device: str) -> None:
        """A device has lost its state."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How the world is set up, the same for every device."""

    steps: int = 1  # local steps that `Nature.seconds` is the time of
    update_bytes: int = 0  # of a whole update
    line: Line = UNCONTENDED
    grace_s: float = 0.0  # until a death is heard of
    steered: bool = True  # else devices put what they are told to take last: for comparison
    partial: bool = True  # else one that is stopped before its target has no steps to send: for comparison
    watch: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.grace_s >= 0:
            raise BadSetting(f"{self!r}: needed at least one step and a grace time of 0 or more")
