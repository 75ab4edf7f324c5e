"""The clients that are leaving a run, and how often an exchange may be forced for them."""

import math
from collections.abc import Collection
from typing import Final

from fedgc.messages import Closing, Event, Joined, Leaving, Lost

SHORTER: Final = 0.5  # by which a client's time must shrink for it to say again that it leaves
A_DAY_S: Final = 86_400.0  # a client whose script has left stays for longer
FORCED_EVERY_S: Final = 10.0  # the least time from a forced exchange to the next, whatever clients say


class Departures:
    """Knows the clients that hand in what they have and get no new work.

    A client says `Leaving` once, and again if its time becomes much shorter: one whose script has left stays
    for days, until it is asked to end. Otherwise it counts again only after it has joined again.
    """

    def __init__(self) -> None:
        self.leaving: Final[dict[str, float]] = {}  # by when each of them has to go
        self.closes: Final[dict[str, float]] = {}  # when the hours end in which a client may train
        self.for_good: Final[set[str]] = set()  # those whose script has left: they wait to be asked to end
        self.forced_from = 0.0  # from when on an exchange may be forced

    def ignores(self, event: Event, present: Collection[str]) -> bool:
        """Note an event; return whether it is the end of hours, or a request to leave that changes nothing.

        >>> departures = Departures()
        >>> [departures.ignores(Leaving(0.0, client, 20.0), ("a", "b")) for client in ("a", "a", "c")]
        [False, True, True]
        >>> departures.ignores(Leaving(0.0, "a", 9.0), ("a", "b"))
        False
        """
        match event:
            case Closing():
                self.closes[event.client] = event.now + event.closes_s
                return True
            case Joined():
                self.leaving.pop(event.client, None)
                self.for_good.discard(event.client)
            case Lost():
                self.leaving.pop(event.client, None)
                self.for_good.discard(event.client)
                self.closes.pop(event.client, None)
            case Leaving():
                left_s = self.leaving.get(event.client, math.inf) - event.now
                if event.client not in present or event.grace_s >= left_s * SHORTER:
                    return True
                self.leaving[event.client] = event.now + event.grace_s
                if event.grace_s > A_DAY_S:
                    self.for_good.add(event.client)
        return False

    def closed(self, at: float, *, forced: bool) -> None:
        """Note the end of a round, and whether its exchange was forced."""
        if forced:
            self.forced_from = at + FORCED_EVERY_S
