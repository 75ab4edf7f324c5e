"""The numbers of samples that the operator fixes for clients (`aggregation.samples`)."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final

from fedgc.errors import nearest
from fedgc.messages import Event, Joined

NONE: Final[Mapping[str, int]] = MappingProxyType({})


class SamplePins:
    """Which client is meant by each name.

    A client chooses its name itself, and proves its identity. So a name belongs to the first client that
    comes under it; a pin with an identity in place of the name cannot be taken.
    """

    def __init__(self, pins: Mapping[str, int] = NONE) -> None:
        """`pins` maps names or identities to samples."""
        self._pins = pins
        self._owners: dict[str, str] = {}

    @property
    def is_empty(self) -> bool:
        """Whether every client counts for what it announces."""
        return not self._pins

    def of(self, client: str) -> int | None:
        """Return the samples that a client counts for; None: those that it announces."""
        mine = (pin for name, pin in self._pins.items() if self._owners.get(name) == client)
        return self._pins.get(client, next(mine, None))

    def handle(self, event: Event, name_of: Callable[[str], str]) -> str:
        """Take in an event; return a warning if a client does not count for what it announces, or should not.

        >>> from fedgc.messages import Held
        >>> pins, holds = SamplePins({"north": 500}), (Held("x", 900),)
        >>> pins.handle(Joined(0.0, "a", True, holds), {"a": "north"}.get)
        'north can load 900 samples: its work counts as 500 (aggregation.samples)'
        >>> pins.handle(Joined(0.0, "b", True, holds), {"b": "north"}.get)
        'clients a and b call themselves north: only a, the first, is pinned (aggregation.samples)'
        >>> pins.of("a"), pins.of("b")
        (500, None)
        """
        if not isinstance(event, Joined) or not self._pins:
            return ""
        client, name = event.client, name_of(event.client) or event.client
        owner = self._owners.setdefault(name, client)
        if owner != client and name in self._pins:
            called = f"clients {owner} and {client} call themselves {name}"
            return f"{called}: only {owner}, the first, is pinned (aggregation.samples)"
        pin, announced = self.of(client), sum(held.samples for held in event.holds)
        if pin in (None, announced):
            return ""
        return f"{name} can load {announced} samples: its work counts as {pin} (aggregation.samples)"

    def unused(self, clients: Collection[str]) -> str:
        """Return a warning if no client has come under a pinned name; `clients` are the identities of all.

        >>> pins = SamplePins({"nroth": 500})
        >>> _ = pins.handle(Joined(0.0, "a", True, ()), {"a": "north"}.get)
        >>> pins.unused(["a"])
        "aggregation.samples: saw 'nroth', needed a client's name or identity; did you mean north?"
        """
        known = self._owners.keys() | set(clients)
        for name in self._pins:
            if name not in known:
                hint = nearest(name, known)
                return f"aggregation.samples: saw {name!r}, needed a client's name or identity{hint}"
        return ""
