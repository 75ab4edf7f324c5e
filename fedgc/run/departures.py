"""The clients that are leaving a run, and how often an exchange may be forced for them."""

from collections.abc import Collection
from typing import Final

from fedgc.messages import Closing, Event, Joined, Leaving, Lost

FORCED_EVERY_S: Final = 10.0  # the least time from a forced exchange to the next, whatever clients say


class Departures:
    """Knows the clients that hand in what they have and get no new work.

    A client says `Leaving` once; it counts again only after it has joined again.
    """

    def __init__(self) -> None:
        self.leaving: Final[set[str]] = set()
        self.closes: Final[dict[str, float]] = {}  # when the hours end in which a client may train
        self.forced_from = 0.0  # from when on an exchange may be forced

    def ignores(self, event: Event, present: Collection[str]) -> bool:
        """Note an event; return whether it is the end of hours, or a request to leave that changes nothing.

        >>> departures = Departures()
        >>> [departures.ignores(Leaving(0.0, client, 20.0), ("a", "b")) for client in ("a", "a", "c")]
        [False, True, True]
        """
        if isinstance(event, Closing):
            self.closes[event.client] = event.now + event.closes_s
            return True
        if isinstance(event, Joined | Lost):
            self.leaving.discard(event.client)
        if isinstance(event, Lost):
            self.closes.pop(event.client, None)
        if not isinstance(event, Leaving):
            return False
        is_new = event.client in present and event.client not in self.leaving
        self.leaving.update({event.client} if is_new else ())
        return not is_new

    def closed(self, at: float, *, forced: bool) -> None:
        """Note the end of a round, and whether its exchange was forced."""
        if forced:
            self.forced_from = at + FORCED_EVERY_S
