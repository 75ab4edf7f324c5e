"""What the server of the message link knows of one node: the client behind it, and what it is asked to do."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from fedgc.errors import NotAdmitted
from fedgc.links.frames import StreamId
from fedgc.links.message.packets import Answer, Packet
from fedgc.links.pieces import Form, Vector
from fedgc.messages import Failed, Joined, Progress, Repair, Report, Reveal, ToMember, Work

FIRST_LEASE_S: Final = 30.0  # of a client of unknown speed
LEAST_LEASE_S: Final = 2.0
LEASE_RATIO: Final = 1.5  # of the expected time of the work
FIRST_PAUSE_S: Final = 1.0
PACES_KEPT: Final = 32

Model = tuple[int, Vector, str]  # version, vector, digest


@dataclass(slots=True)
class Outbox:
    """One node: the client behind it, what it holds, and what it is asked to do."""

    client: str = ""  # empty until it has introduced itself
    cache: dict[int, str] = field(default_factory=dict)
    work: Work | None = None  # of the last round that it took part in
    left: tuple[int, ...] = ()  # of its order: not reported yet
    asks: list[Reveal | Repair] = field(default_factory=list)
    packets: list[ToMember] = field(default_factory=list)  # of a masked exchange
    leaves: bool = False  # it hands in what it has, and gets no more work
    keyed: int = 0  # the round for which keys were asked for last
    expected: dict[StreamId, Form] = field(default_factory=dict)
    out: Packet | None = None
    owed: tuple[Reveal | Repair, ...] = ()  # what the packet in flight asks for
    pace_s: deque[float] = field(default_factory=lambda: deque(maxlen=PACES_KEPT))
    again: float = 0.0  # when undone work is asked for again
    next: float = 0.0
    pause_s: float = FIRST_PAUSE_S

    def begin(self, work: Work) -> None:
        """Give the client this work."""
        self.work, self.left = work, work.order
        self.asks, self.expected, self.again = [], {}, 0.0

    def clear(self) -> None:
        """Ask for nothing any more."""
        self.left, self.asks, self.owed, self.expected, self.packets = (), [], (), {}, []

    def lacking(self, work: Work, model: Model | None) -> tuple[int, Vector] | None:
        """Return the model that the work starts from, if it is not in the client's cache."""
        if model is None or model[0] != work.version:
            return None
        version, vector, digest = model
        return None if self.cache.get(version) == digest else (version, vector)

    def lease_s(self, work: Work) -> float:
        """Return how long the client may take for the work that is left."""
        if not self.pace_s:
            return min(work.lease_s, FIRST_LEASE_S)
        ways = 1 if work.kind == "local" else len(self.left)
        should_take_s = median(self.pace_s) * work.target * ways
        return min(work.lease_s, max(LEAST_LEASE_S, LEASE_RATIO * should_take_s))

    def settle(self, line: Progress | Report | Failed) -> None:
        """Ask no more for the chunks that this line settles."""
        if isinstance(line, Progress):
            done = frozenset({line.chunk})
        elif isinstance(line, Report):
            reached = self.work is not None and line.steps >= self.work.target
            done = frozenset(self.left if reached else ())
        else:
            done = frozenset(line.chunks or self.left)
        self.left = tuple(chunk for chunk in self.left if chunk not in done)

    def joined_in(self, answer: Answer) -> Joined | None:
        """Return what an answer says of the client's data; raise NotAdmitted if the answer is not its own."""
        joined = next((line for line in answer.lines if isinstance(line, Joined)), None)
        if self.client and answer.client != self.client:
            raise NotAdmitted(f"answer: saw client {answer.client}, needed {self.client}, which was asked")
        if not self.client and joined is None:
            raise NotAdmitted(
                f"answer of {answer.client}: needed what it can load, as it was asked who it is"
            )
        return joined
