"""The clients that continue their work from a round without an exchange."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Carried:
    """What a round without an exchange leaves to the next one: clients that continue from where they are.

    A client keeps its steps as long as it works on the same chunks from the same model: after a skipped round
    it gets Continue, after an empty round it gets the same work again.
    """

    clients: frozenset[str] = frozenset()  # those that get Continue
    loading: frozenset[str] = frozenset()  # those of them whose model may still be in transit
    reached: Mapping[str, int] = field(default_factory=dict)  # local work: their reported steps

    def without(self, client: str) -> "Carried":
        """Forget a client."""
        reached = {other: steps for other, steps in self.reached.items() if other != client}
        return Carried(self.clients - {client}, self.loading - {client}, reached)

    def among(self, clients: Collection[str]) -> "Carried":
        """Forget all others."""
        reached = {client: steps for client, steps in self.reached.items() if client in clients}
        return Carried(self.clients.intersection(clients), self.loading.intersection(clients), reached)

    def anew(self) -> "Carried":
        """Give all of them their work again; they keep the steps that they have done."""
        return Carried(reached=self.reached)
