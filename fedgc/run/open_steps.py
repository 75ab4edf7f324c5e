"""Local steps that are in no sum yet, of every client: each is counted or discarded in a later row."""

from collections.abc import Container, Mapping
from dataclasses import replace

from fedgc.history import ClientRow, RoundRow
from fedgc.messages import SUMMED
from fedgc.round.machine import Round
from fedgc.run.client_notes import LOST


class OpenSteps:
    """Owns the steps that clients have reported since the last exchange.

    A round settles those of its own clients. Another client keeps its steps until it is gone, or until there
    is another model; then a row of its own says that they were discarded.
    """

    def __init__(self) -> None:
        self.of: Mapping[str, int] = {}

    def closed(self, row: RoundRow, over: Round, present: Container[str]) -> RoundRow:
        """Return the row of a closed round with the clients outside its plan that have lost steps."""
        others = {client: steps for client, steps in self.of.items() if client not in over.roster.w}
        lost = {
            client: steps
            for client, steps in others.items()
            if client not in present or over.outcome in SUMMED
        }
        kept = {client: steps for client, steps in others.items() if client not in lost}
        own = zip(over.plan.clients, over.statistics.open, strict=True)
        self.of = kept | {client: steps for client, steps in own if steps}
        rows = (
            ClientRow(client, finished=steps, failure="" if client in present else LOST)
            for client, steps in lost.items()
        )
        return replace(row, clients=(*row.clients, *rows))
