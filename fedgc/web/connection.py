"""One connection to the page: how much it may send, how long it may wait, and which one gives way.

A request's head is at most `MOST_HEAD` bytes; a longer one is answered with 400 and closed. A connection on
which nothing is being answered (its request is still on the way, or there is none) is closed after
`REQUEST_S`, whatever trickles in. An answer that is not read for `UNREAD_S` ends its connection. At most
`MOST_WAITING` connections may wait for either: one more closes that whose time is up first. So half-sent
requests and unread answers never keep a whole request out.
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_HEAD: Final = 16_384  # bytes of a request line and its headers
REQUEST_S: Final = 5.0
UNREAD_S: Final = 30.0
MOST_WAITING: Final = 64


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 connection with these bounds."""

    _request: asyncio.TimerHandle | None = None  # runs while nothing is being answered
    _unread: asyncio.TimerHandle | None = None  # runs while the other side reads nothing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request; where too many wait, one of them gives way."""
        super().connection_made(transport)
        self._settle()
        waiting = [each for each in self.connections if isinstance(each, Connection) and each._until()]
        if len(waiting) > MOST_WAITING:
            min(waiting, key=Connection._until).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        super().connection_lost(exc)
        self._stop(self._request, self._unread)
        self._request = self._unread = None

    def handle_events(self) -> None:
        """Take what has come."""
        super().handle_events()
        self._settle()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._settle()

    def pause_writing(self) -> None:
        """Wait until the other side reads, but not for ever."""
        super().pause_writing()
        self._read_soon()

    def resume_writing(self) -> None:
        """Go on: it was read."""
        super().resume_writing()
        self._stop(self._unread)
        self._unread = None
        self._settle()

    def _settle(self) -> None:
        """Count the wait from when it began: what trickles in does not start it again."""
        if self.transport.is_closing():
            self._read_soon()  # it closes when the rest is read
        elif self.cycle is not None and not self.cycle.response_complete:
            self._stop(self._request)
            self._request = None
        elif self._request is None:
            self._request = self.loop.call_later(REQUEST_S, self._overdue)

    def _overdue(self) -> None:
        """Close; what was answered may still be read."""
        self._request = None
        self.transport.close()
        self._settle()

    def _read_soon(self) -> None:
        self._unread = self._unread or self.loop.call_later(UNREAD_S, self.transport.abort)

    def _until(self) -> float:
        """When its time is up; 0 while it is being answered."""
        return min((each.when() for each in (self._request, self._unread) if each), default=0.0)

    @staticmethod
    def _stop(*clocks: asyncio.TimerHandle | None) -> None:
        for each in clocks:
            if each is not None:
                each.cancel()
