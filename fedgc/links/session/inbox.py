"""The commands that have come to a client and that its engine has not taken yet.

A command waits while a step runs, and work waits for its model. So few wait; a server that sends without end
must not fill the memory of its clients. As many may wait as lines that one end leaves unacknowledged.
"""

from collections import deque
from collections.abc import Iterator

from fedgc.errors import BadMessage
from fedgc.links.session.channel import KEPT_BYTES, KEPT_LIMIT
from fedgc.messages import ToClient


class Inbox:
    """Commands in order, each with the bytes of its line."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[ToClient, int]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[ToClient]:
        return (command for command, _ in self._waiting)

    def append(self, command: ToClient, size: int) -> None:
        """Add a command whose line has `size` bytes; raise BadMessage if too many wait."""
        count, total = len(self._waiting) + 1, self._bytes + size
        if count > KEPT_LIMIT or total > KEPT_BYTES:
            seen = f"saw {count} commands of {total} bytes that wait for the client's present step"
            raise BadMessage(f"{seen}, needed at most {KEPT_LIMIT} and {KEPT_BYTES}")
        self._waiting.append((command, size))
        self._bytes = total

    @property
    def first(self) -> ToClient | None:
        """The command that is next, if there is one."""
        return self._waiting[0][0] if self._waiting else None

    def popleft(self) -> ToClient:
        """Take the first command."""
        command, size = self._waiting.popleft()
        self._bytes -= size
        return command
