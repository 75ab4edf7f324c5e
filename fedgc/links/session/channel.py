"""Lines that arrive once and in order, however often the stream below them breaks.

Each side numbers what it says from 1 and keeps it until the other has heard it. When a stream is opened
anew, both tell the last number that they heard; the rest is sent again, and what comes twice is dropped.
So a lost acknowledgement costs nothing, and a command is never carried out twice.

A pure value machine: both ends of a session own one each and lock it themselves.
"""

from collections import deque
from typing import Final

from fedgc.errors import BadMessage
from fedgc.links import frames as wire

# What the other side may leave unheard; more is a peer that never answers.
KEPT_LIMIT: Final = 100_000  # lines
KEPT_BYTES: Final = 32 * 2**20  # of all of them: work that names 20,000 chunks takes one of these


class Channel:
    """One end: what was said and not yet heard, and how far the other was heard."""

    def __init__(self) -> None:
        self.heard = 0
        self._told = 0
        self._said = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._next = 0  # of `kept`: the first that this stream has not carried

    def say(self, value: object) -> None:
        """Keep `value` for the other side."""
        if len(self._kept) >= KEPT_LIMIT:
            raise BadMessage(f"the other side has left {KEPT_LIMIT} lines unheard")
        frame = wire.encode(value, self._said + 1)
        if self._kept_bytes + len(frame) > KEPT_BYTES:
            raise BadMessage(f"the other side has left {self._kept_bytes} bytes of lines unheard")
        self._said += 1
        self._kept.append((self._said, frame))
        self._kept_bytes += len(frame)

    @property
    def waits(self) -> bool:
        """Whether there is a line that this stream has not carried."""
        return self._next < len(self._kept)

    def next_frame(self) -> bytes | None:
        """Return the next frame that this stream has not carried, if there is one."""
        if self.waits:
            self._next += 1
            return self._kept[self._next - 1][1]
        if self._told < self.heard:
            self._told = self.heard
            return wire.encode(wire.Heard(self.heard))
        return None

    def confirm(self, sequence: int) -> None:
        """The other side has heard everything up to `sequence`."""
        if sequence > self._said:
            raise BadMessage(f"the other side heard line {sequence}; only {self._said} were said")
        while self._kept and self._kept[0][0] <= sequence:
            self._kept_bytes -= len(self._kept.popleft()[1])
            self._next = max(0, self._next - 1)

    def reopen(self, heard: int) -> None:
        """A new stream: the other side has heard up to `heard`, all after it is sent again."""
        self.confirm(heard)
        self._next = 0
        self._told = self.heard

    def accept(self, sequence: int) -> bool:
        """Return whether a line with this number is new; a gap raises BadMessage."""
        if sequence > self.heard + 1:
            raise BadMessage(f"saw line {sequence}, needed {self.heard + 1}")
        if sequence <= self.heard:
            return False
        self.heard = sequence
        return True
