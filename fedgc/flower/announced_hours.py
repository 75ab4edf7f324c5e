"""Tells the sink in which hours clients may train: those that they announce just before they join."""

from fedgc.flower.sink import Sink
from fedgc.messages import Closing, Joined, LinkEvent


class AnnouncedHours:
    """Hears of all events; a client that joins without an announcement may train at any time."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._announced: set[str] = set()  # clients that are about to join

    def handle(self, event: LinkEvent, round_: int) -> None:
        """Pass on the hours of a client."""
        if isinstance(event, Closing):
            windows = tuple((event.now + opens_s, event.now + ends_s) for opens_s, ends_s in event.windows)
            self._sink.has_hours(round_, event.client, windows)
            self._announced.add(event.client)
        elif isinstance(event, Joined):
            if event.client not in self._announced:
                self._sink.has_hours(round_, event.client, ())
            self._announced.discard(event.client)
