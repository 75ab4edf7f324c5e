"""A connection to the page, with limits on request size and waiting time.

A request's head is at most `MOST_HEAD` bytes; a longer one is answered with 400 and closed. A connection
without an answer in progress (its request is incomplete, or there is none) is closed after `REQUEST_S`, even
if bytes trickle in. An answer that is not read for `UNREAD_S` ends its connection. At most `MOST_WAITING`
connections may wait for either: one more closes the one nearest to its limit. So half-sent requests and
unread answers never block a complete request.
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_HEAD: Final = 16_384  # bytes of a request line and its headers
REQUEST_S: Final = 5.0
UNREAD_S: Final = 30.0
MOST_WAITING: Final = 64


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 connection with these limits."""

    _request: asyncio.TimerHandle | None = None  # runs while no answer is in progress
    _unread: asyncio.TimerHandle | None = None  # runs while the peer reads nothing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP
        """Wait for a request; if too many connections wait, close one of them."""
        super().connection_made(transport)
        self._settle()
        waiting = [each for each in self.connections if isinstance(each, Connection) and each._until()]
        if len(waiting) > MOST_WAITING:
            min(waiting, key=Connection._until).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        super().connection_lost(exc)
        self._stop(self._request, self._unread)
        self._request = self._unread = None

    def handle_events(self) -> None:
        """Handle received data."""
        super().handle_events()
        self._settle()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._settle()

    def pause_writing(self) -> None:
        """Wait until the peer reads, for a limited time."""
        super().pause_writing()
        self._read_soon()

    def resume_writing(self) -> None:
        """Continue writing."""
        super().resume_writing()
        self._stop(self._unread)
        self._unread = None
        self._settle()

    def _settle(self) -> None:
        """Keep the start of the wait: trickling bytes do not restart it."""
        if self.transport.is_closing():
            self._read_soon()  # it closes when the rest is read
        elif self.cycle is not None and not self.cycle.response_complete:
            self._stop(self._request)
            self._request = None
        elif self._request is None:
            self._request = self.loop.call_later(REQUEST_S, self._overdue)

    def _overdue(self) -> None:
        """Close the connection; a sent answer may still be read."""
        self._request = None
        self.transport.close()
        self._settle()

    def _read_soon(self) -> None:
        self._unread = self._unread or self.loop.call_later(UNREAD_S, self.transport.abort)

    def _until(self) -> float:
        """The end of its time limit; 0 while an answer is in progress."""
        return min((each.when() for each in (self._request, self._unread) if each), default=0.0)

    @staticmethod
    def _stop(*clocks: asyncio.TimerHandle | None) -> None:
        for each in clocks:
            if each is not None:
                each.cancel()
