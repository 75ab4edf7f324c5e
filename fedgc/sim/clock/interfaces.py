"""The interfaces of the virtual clock: the machine, failures, the observer, and spans."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from fedgc.codecs import EXACT, share_of
from fedgc.errors import BadSetting
from fedgc.messages import Continue, Event, Work
from fedgc.sim.clock.conditions import NEVER
from fedgc.sim.clock.server_link import UNCONTENDED, Line

FLOAT_BYTES: Final = 4  # of a number without a codec


@dataclass(frozen=True, slots=True)
class Span:
    """An interval that a client spent on a chunk; not `finished` if it left it or died.

    `counted`: the client's replica of this chunk was part of a vector that it sent.
    """

    client: str
    chunk: int
    begin_s: float
    end_s: float
    finished: bool
    counted: bool = False


class Machine(Protocol):
    """A state machine that the clock drives: a `Round` or a `Run`."""

    @property
    def next_tick(self) -> float:
        """Return the time of its next tick."""

    def handle(self, event: Event) -> Iterable[Any]:
        """Return commands and other outputs for the driver."""


@dataclass(frozen=True, slots=True)
class Failure:
    """When a client dies and returns, in seconds from now; `keeps`: whether it then still has its work.

    Its death is noticed after `noticed_s`, or (None) after the grace time of the terms.
    """

    dies_s: float
    returns_s: float = NEVER
    keeps: bool = False
    noticed_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.dies_s <= self.returns_s:
            raise BadSetting(f"{self!r}: needed a death, then perhaps a return")


@dataclass(frozen=True, slots=True)
class Finding:
    """The content of a client's report on a finished chunk, besides the time."""

    samples: int = 1
    squared_norm: float = 1.0
    loss: float = 0.0
    sketch: tuple[float, ...] = ()


NOTHING_FOUND: Final = Finding()


class Observer(Protocol):
    """Supplies training results where more than time is simulated."""

    def begin(self, work: Work) -> None:
        """A client was given this work."""

    def carry_on(self, work: Continue) -> None:
        """A client continues from a round that was not exchanged."""

    def finding(self, chunk: int, target: int) -> Finding:
        """Return the finding of taking this chunk to that many steps."""

    def reached(self, client: str, steps: int) -> Finding:
        """Return the finding of this client's local work after that many steps."""

    def lost(self, client: str) -> None:
        """A client has lost its state."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings of the virtual clock, the same for every client."""

    steps: int = 1  # local steps that `ClientModel.seconds` is the time of
    update_bytes: int = 0  # of a whole update
    line: Line = UNCONTENDED
    grace_s: float = 0.0  # until a failure is detected
    steered: bool = True  # if not, clients append taken chunks to the end; for comparison
    partial: bool = True  # if not, a client that is stopped before its target sends nothing; for comparison
    watch: bool = False
    download_codec: str = EXACT  # of a model for a client that has the one before
    buffers: int = 0  # the last numbers of an update, which travel in float32

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.grace_s >= 0:
            raise BadSetting(f"{self!r}: needed at least one step and a grace time of 0 or more")

    def share(self, wire: str, blocks: int = 1) -> float:
        """Return the bytes of an update in this codec over those of a whole one in float32.

        A codeword has the numbers of one of so many blocks.
        """
        numbers = self.update_bytes // FLOAT_BYTES
        if not numbers:
            return share_of(wire) / blocks
        size = -(-numbers // blocks)
        return share_of(wire, size, min(self.buffers, size)) * size / numbers
