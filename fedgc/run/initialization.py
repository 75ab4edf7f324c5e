"""The beginning of a run whose clients bring the model: the first to announce it sends the first vector.

The server has no code of the model. All other clients must announce the same layout. If the chosen client is
lost before its vector has come, the next one is asked; one that is started again is asked again. No I/O: the
driver passes events and sends commands.
"""

from collections import deque
from typing import Final

from fedgc.messages import (
    Announced,
    Codeword,
    Failed,
    Initialize,
    Layout,
    LinkEvent,
    Lost,
    Refuse,
    ToClient,
)


class Initialization:
    """Settles the layout of the model and the client that sends the first vector."""

    def __init__(self, layout: Layout | None = None) -> None:
        """`layout` is known already if a run is resumed."""
        self.layout = layout
        self.first = ""  # the client that announced it first
        self.source = ""  # the client that was asked for the vector last
        self._asked: set[str] = set()  # it, and those that have not answered in time
        self._waiting: deque[str] = deque()  # others that could be asked
        self.refused: Final[dict[str, str]] = {}  # clients whose model has another layout, and which

    def handle(self, event: LinkEvent) -> tuple[ToClient, ...]:
        """Return what is to be sent after this event."""
        if isinstance(event, Announced):
            return self._announced(event)
        if isinstance(event, Lost | Failed):
            return self.without(event.client)
        return ()

    def refuse(self, client: str, reason: str) -> tuple[ToClient, ...]:
        """Refuse a client, and return what it is told."""
        self.refused.pop(client, None)  # so that the last refusal is the last entry
        self.refused[client] = reason
        return (Refuse(client, 0, reason),)

    @property
    def last_refusal(self) -> str:
        """The client that was refused last, and why; empty if none is refused now."""
        if not self.refused:
            return ""
        client = next(reversed(self.refused))
        return f"{client} was refused: {self.refused[client]}"

    def too_few_left(self, fleet: int | None, wanted: int) -> str:
        """Return why a run cannot begin with what is left of so many clients; empty if it can.

        >>> start = Initialization()
        >>> start.refused["b"] = "another model"
        >>> start.too_few_left(3, 3), start.too_few_left(3, 2), start.too_few_left(None, 3)
        ('2 of 3 clients are left, needed min-clients, 3', '', '')
        """
        left = (fleet or 0) - len(self.refused)
        too_few = fleet is not None and self.refused and left < wanted
        return f"{left} of {fleet} clients are left, needed min-clients, {wanted}" if too_few else ""

    def is_vector(self, event: LinkEvent) -> bool:
        """Whether the event tells that the first vector has come."""
        return isinstance(event, Codeword) and event.round == 0 and event.client in self._asked

    def _announced(self, event: Announced) -> tuple[ToClient, ...]:
        difference = self.layout.difference(event.layout) if self.layout is not None else ""
        if difference:
            whose = f", which {self.first} has" if self.first else ""
            return self.refuse(event.client, f"its model differs from the run's{whose}: {difference}")
        self.refused.pop(event.client, None)
        self.layout, self.first = self.layout or event.layout, self.first or event.client
        if self.source and self.source != event.client:
            if event.client not in self._waiting:
                self._waiting.append(event.client)
            return ()
        return self._ask(event.client)

    def without(self, client: str) -> tuple[ToClient, ...]:
        """Ask another client, if this one was asked and cannot send its vector."""
        self._waiting = deque(each for each in self._waiting if each != client)
        self._asked.discard(client)
        return self.another() if client == self.source else ()

    def another(self) -> tuple[ToClient, ...]:
        """Ask another client too, if there is one."""
        self.source = ""
        return self._ask(self._waiting.popleft()) if self._waiting else ()

    def _ask(self, client: str) -> tuple[ToClient, ...]:
        self.source = client
        self._asked.add(client)
        return (Initialize(client),)
