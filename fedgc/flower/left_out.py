"""The update of a round that the server leaves out: the rule refused it, or it is not finite."""

from logging import WARNING, Logger

from fedgc.errors import FedgcError
from fedgc.history import RoundRow


class LeftOut:
    """Remembers why the update of the present round is not used."""

    def __init__(self, log: Logger) -> None:
        self._log, self._why = log, ""

    def note(self, round_: int, error: FedgcError) -> None:
        """Leave out the update of this round."""
        self._why = str(error)
        self._log.log(WARNING, "round %d: its update is left out: %s", round_, error)

    def row(self, row: RoundRow) -> RoundRow:
        """Return the row of the round as it is kept, and forget the round."""
        why, self._why = self._why, ""
        return row.without_update(why) if why else row
