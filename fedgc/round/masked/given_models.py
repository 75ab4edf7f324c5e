"""The models that each client has been given: with shared momentum, a step needs the one before as well."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class GivenModels:
    """The versions that were sent to each client: the last one, and the one before if it was sent too.

    >>> given = GivenModels()
    >>> [given.sent("north", version) for version in (1, 2)], given.sent("south", 2)
    ([None, None], None)
    >>> given.having(1, ["north", "south"])
    ['north']
    """

    versions: dict[str, Collection[int]] = field(default_factory=dict)

    def sent(self, client: str, version: int) -> None:
        """Note a model that is sent to a client."""
        older = self.versions.get(client, ())
        self.versions[client] = {version, *(each for each in older if each >= version - 1)}

    def lost(self, client: str) -> None:
        """Forget what a client had."""
        self.versions.pop(client, None)

    def having(self, version: int, clients: Iterable[str]) -> list[str]:
        """Return the clients that were sent this version."""
        return [client for client in clients if version in self.versions.get(client, ())]
