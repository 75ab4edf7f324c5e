"""Rounds in a row that gave nothing: a run ends after a few of them, and names the first fault in them."""

from typing import Final

from fedgc.round.machine import Round
from fedgc.run.rows import NOTHING, SPENT, caused, fault_of

GIVE_UP_AFTER: Final = 3


class FruitlessRounds:
    """Counts rounds in a row without any finished work, and set-ups of keys that left none."""

    def __init__(self) -> None:
        self.first_fault = ""  # of a client in the whole run
        self._last = ""  # the reason of the last round
        self._count = 0
        self._fault = ""  # the first one in the counted rounds

    @property
    def are_too_many(self) -> bool:
        """Whether the run has to end."""
        return self._count >= GIVE_UP_AFTER

    def closed(self, over: Round, *, excused: bool, limit: str = "") -> None:
        """Take in a closed round; one without work does not count if it is `excused`.

        It is if it was ended early on request, or if the next one has more time. `limit` says at which limit
        it ended.
        """
        fault = "; ".join(filter(None, (fault_of(over), limit)))
        self.first_fault, self._last = self.first_fault or fault, over.reason
        if over.outcome not in NOTHING:
            self._count, self._fault = 0, ""
        elif not excused:
            self._count += 1
            self._fault = self._fault or fault

    def failed(self) -> None:
        """Count a set-up of keys that left none."""
        self._count += 1

    def reason(self, last: Round) -> str:
        """Return why the run ends after this round."""
        return caused(self._fault or last.reason, f"{GIVE_UP_AFTER} rounds in a row gave nothing")

    def spent(self, round_: int) -> str:
        """Return that no sum of the last model can follow this round, with what happened in it."""
        return caused(self._last, f"round {round_}: {SPENT}")
