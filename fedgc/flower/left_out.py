"""The update of a round that the server leaves out: the rule refused it, not finite, or the run goes back."""

from dataclasses import replace
from logging import WARNING, Logger

from fedgc.errors import FedgcError
from fedgc.history import LEFT_OUT, RoundRow
from fedgc.messages import SUMMED
from fedgc.run.outputs import Finished


class LeftOut:
    """Remembers why the update of the present round is not used."""

    def __init__(self, log: Logger) -> None:
        self._log, self._why = log, ""
        self._always = ""  # why no update was used so far; empty if one was
        self._is_used = False

    def note(self, round_: int, error: FedgcError) -> None:
        """Leave out the update of this round."""
        self.drop(str(error))
        self._log.log(WARNING, "round %d: %s: %s", round_, LEFT_OUT, error)

    def drop(self, why: str) -> None:
        """Leave out the update of the present round, of which the log tells already."""
        self._why = why

    def row(self, row: RoundRow) -> RoundRow:
        """Return the row of the round as it is kept, and forget the round."""
        why, self._why = self._why, ""
        self._is_used = self._is_used or (row.outcome in SUMMED and not why)
        self._always = "" if self._is_used else why or self._always
        return row.without_update(why) if why else row

    def ended(self, finished: Finished) -> Finished:
        """Return how a new run ended: not complete if no update was ever used."""
        if not (finished.complete and self._always):
            return finished
        reason = f"{self._always}; {finished.reason}, and every update was left out"
        return replace(finished, reason=reason, complete=False)
