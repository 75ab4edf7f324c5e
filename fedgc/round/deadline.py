"""The deadline of the working phase, which counts from when clients have the model.

Clients that are present at the start are waited for until their model has come, but only so long
(`Assignment.model_limit_s`). A client that joins later moves no deadline.
"""

from collections.abc import Iterable, Sequence

from fedgc.messages import Command, Work
from fedgc.round.roster import Roster


class WorkingDeadline:
    """Keeps track of models on their way, and of the deadline that follows."""

    def __init__(self, roster: Roster) -> None:
        plan, assignment = roster.plan, roster.assignment
        self.at = 0.0  # the end of the working phase
        self.loading = set(plan.clients) & assignment.loading  # clients whose model may be on its way
        self._roster = roster
        self._awaited: set[str] = set()  # clients for whom the deadline waits
        self._loaded_at = 0.0  # when the last of them had the model

    def start(self, now: float, present: Iterable[str]) -> None:
        """Begin to count."""
        self._loaded_at = now
        self._awaited = self.loading & set(present)
        self._set()

    def sent(self, given: Sequence[Command]) -> None:
        """Take note of the clients that are sent the model."""
        self.loading |= {each.client for each in given if isinstance(each, Work)}

    def loaded(self, client: str, now: float) -> None:
        """A client has the model."""
        if client in self._awaited:
            self._loaded_at = now
        self.gone(client)

    def gone(self, client: str) -> None:
        """No model is on its way to this client any more."""
        self.loading.discard(client)
        self._awaited.discard(client)
        self._set()

    def _set(self) -> None:
        limit_s = self._roster.limit_s
        latest = self._roster.started_at + self._roster.assignment.model_limit_s + limit_s
        self.at = latest if self._awaited else min(latest, self._loaded_at + limit_s)
