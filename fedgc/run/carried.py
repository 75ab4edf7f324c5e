"""The clients that go on from a round without an exchange."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Carried:
    """What a round without an exchange leaves to the next one: clients that go on from where they are.

    A client keeps its steps for as long as it works on the same chunks from the same model, whether it is
    told to carry on (after a skipped round) or given that work anew (where nothing of it could be had).
    """

    clients: frozenset[str] = frozenset()  # those that are told to carry on
    loading: frozenset[str] = frozenset()  # of these, those whose model may be on its way still
    reached: Mapping[str, int] = field(default_factory=dict)  # local work: the steps that they have told

    def without(self, client: str) -> "Carried":
        """Forget a client."""
        reached = {other: steps for other, steps in self.reached.items() if other != client}
        return Carried(self.clients - {client}, self.loading - {client}, reached)

    def among(self, clients: Collection[str]) -> "Carried":
        """Forget all others."""
        reached = {client: steps for client, steps in self.reached.items() if client in clients}
        return Carried(self.clients.intersection(clients), self.loading.intersection(clients), reached)

    def anew(self) -> "Carried":
        """Give all of them work anew; they keep the steps that they have done."""
        return Carried(reached=self.reached)
