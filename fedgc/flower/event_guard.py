"""The driver's guard: what a client's event or vector breaks costs that client, and not the run.

An event of a client that raises an unexpected error is refused: the client is told, and the refusal is
counted in its row of the round. A vector that cannot be added is refused as well, and the round's update is
left out, because its sum is incomplete. The server's own events (time passing, a stop, a published model)
have no guard: an error there ends the run, with its reason.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from logging import Logger
from typing import Final, TypeVar

from fedgc.errors import FedgcError, Refused
from fedgc.guards import guarded
from fedgc.links.refusals import Refusals, no_audit
from fedgc.messages import Add, LinkEvent, Refuse
from fedgc.training.round_sum import lacking

T = TypeVar("T")


class EventGuard:
    """Counts the refusals by client until the round's end."""

    def __init__(self, log: Logger, round_: Callable[[], int]) -> None:
        """`round_` returns the number of the present round."""
        self._round = round_
        self._by_client: Counter[str] = Counter()
        self._lacking = ""  # why the sum of this round lacks a vector
        self.refusals: Final = Refusals(log, no_audit)  # the driver audits each Refuse

    def outputs(self, event: LinkEvent, handle: Callable[[], Sequence[T]]) -> Sequence[T | Refuse]:
        """Return what follows from an event by `handle`, or its refusal."""
        client: str = getattr(event, "client", "")
        if not client:
            return handle()
        try:
            with guarded(f"an event {type(event).__name__}", client):
                return handle()
        except Refused as error:
            return self._refused(client, error)

    def added(self, add: Add, act: Callable[[], None]) -> Sequence[Refuse]:
        """Add a vector by `act`; return its refusal if that fails."""
        try:
            with guarded("a vector", add.client):
                act()
        except FedgcError as error:
            self._lacking = lacking(add.client, error)
            return self._refused(add.client, Refused(self._lacking))
        return ()

    def must_be_whole(self) -> None:
        """Raise Refused if the sum of this round lacks a vector."""
        if self._lacking:
            raise Refused(self._lacking)

    def settle(self) -> Counter[str]:
        """Return the number of refusals of each client in the round that is over."""
        counts, self._by_client, self._lacking = self._by_client, Counter(), ""
        return counts

    def _refused(self, client: str, error: Refused) -> Sequence[Refuse]:
        self.refusals.count(error, client)
        self._by_client[client] += 1
        return (Refuse(client, max(1, self._round()), str(error)),)
