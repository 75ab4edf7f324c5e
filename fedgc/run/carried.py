"""The clients that continue their work from a round without an exchange."""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from fedgc.round.machine import Round
from fedgc.round.plan import Plan
from fedgc.round.scheduler import WorkSummary


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

    @classmethod
    def left_by(cls, over: Round, summary: WorkSummary, present: AbstractSet[str]) -> "Carried":
        """Return what a round without an exchange leaves: after a skipped one its clients get Continue.

        A client whose late update has just come has no work of this round.
        """
        worked = {client for client, w in over.roster.w.items() if w in over.roster.live}
        left = cls(frozenset(over.plan.held.keys() & present & worked), over.loading, summary.reached)
        return left if over.outcome == "skipped" else left.anew()

    def in_plan(self, before: Plan | None, plan: Plan, *, masked: bool) -> "Carried":
        """Return what is carried into another plan: a client with other chunks starts again."""
        if before is None:
            return Carried()
        own, now = before.shares, plan.shares
        left = self.among({client for client in now if now[client] == own.get(client)})
        same = not masked and plan.pool == before.pool  # only the work command has these
        return left if same else left.anew()


def began_training(fragments: int, over: Round, now: float) -> float:
    """Return since when clients have done what they report after this exchange.

    With fragments they have trained on while theirs travelled, but not from before the round.
    """
    return now if fragments == 1 else over.started_at
