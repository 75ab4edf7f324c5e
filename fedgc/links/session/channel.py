"""Reliable lines: delivered once and in order over any number of broken streams.

Each side numbers its lines from 1 and keeps each until the other side acknowledges it. When a stream is
opened again, both sides send the last number that they received; later lines are sent again, and duplicates
are dropped. So a lost acknowledgement does not make a command run twice.

A state machine without I/O: both ends of a session own one each, under their own lock.
"""

from collections import deque
from typing import Final

from fedgc.errors import BadMessage
from fedgc.links import frames as wire

# What the other side may leave unacknowledged; more means a peer that never answers.
KEPT_LIMIT: Final = 100_000  # lines
KEPT_BYTES: Final = 32 * 2**20  # of all of them: work that names 20,000 chunks takes one of these


class Unacknowledged(BadMessage):
    """The other side has not acknowledged too much of what it was sent."""


class Channel:
    """One end: the lines sent and not acknowledged, and the last line received."""

    def __init__(self) -> None:
        self.heard = 0
        self._sent = 0
        self._numbered = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._next = 0  # index into `kept`: the first that this stream has not carried
        self._due = 0  # the last line that is to be sent now

    def send(self, value: object, *, can_wait: bool = False) -> None:
        """Keep `value` until the other side acknowledges it.

        A line that `can_wait` is sent with the next one that cannot, or at the next ping.
        """
        if len(self._kept) >= KEPT_LIMIT:
            raise Unacknowledged(f"the other side has not acknowledged {KEPT_LIMIT} lines")
        frame = wire.encode(value, self._numbered + 1)
        if self._kept_bytes + len(frame) > KEPT_BYTES:
            raise Unacknowledged(f"the other side has not acknowledged {self._kept_bytes} bytes of lines")
        self._numbered += 1
        self._due = self._due if can_wait else self._numbered
        self._kept.append((self._numbered, frame))
        self._kept_bytes += len(frame)

    @property
    def waits(self) -> bool:
        """Whether a line is to be sent on this stream now."""
        return self._next < len(self._kept) and self._kept[self._next][0] <= self._due

    def hurry(self) -> None:
        """Let no line wait."""
        self._due = self._numbered

    @property
    def unheard(self) -> int:
        """How many received lines are not acknowledged."""
        return self.heard - self._sent

    def next_frame(self, unheard: int = 1) -> bytes | None:
        """Return the next frame that was not sent on this stream, if there is one.

        It is an acknowledgement if no line waits and so many received lines are not acknowledged.
        """
        if self.waits:
            self._next += 1
            return self._kept[self._next - 1][1]
        if self.unheard >= unheard:
            self._sent = self.heard
            return wire.encode(wire.Heard(self.heard))
        return None

    def confirm(self, sequence: int) -> None:
        """The other side has received everything up to `sequence`."""
        if sequence > self._numbered:
            raise BadMessage(f"the other side acknowledged line {sequence}; only {self._numbered} were sent")
        while self._kept and self._kept[0][0] <= sequence:
            self._kept_bytes -= len(self._kept.popleft()[1])
            self._next = max(0, self._next - 1)

    def reopen(self, heard: int) -> None:
        """Start a new stream: send again all lines after `heard`."""
        self.confirm(heard)
        self._next = 0
        self._sent = self.heard
        self.hurry()

    def accept(self, sequence: int) -> bool:
        """Return whether a line with this number is new; a gap raises BadMessage."""
        if sequence > self.heard + 1:
            raise BadMessage(f"saw line {sequence}, needed {self.heard + 1}")
        if sequence <= self.heard:
            return False
        self.heard = sequence
        return True
