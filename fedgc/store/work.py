"""The finished work of a run: what of it is in a sum, and what was discarded, why and in which rounds.

Finished is what clients have reported, counted is what is in a sum, and the rest was discarded. The row of a
client says how much of both a round has settled. A skipped round of coded work settles nothing: its chunks
are those of the next round. Local steps that no row has settled by the end of the run were discarded as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fedgc.history import ClientRow, RoundRow
from fedgc.messages import SUMMED
from fedgc.store.views import Round

LONGEST_REASON: Final = 400  # characters; a client may send anything as its failure
OTHERS: Final = "finished, but not in the sum: others had its chunk, or it came after the round had enough"
NOT_IN_SUM: Final = "its update is not in the sum: it came too late, or the aggregation rule left it out"
AGAIN: Final = "begun anew from the common model: it got other chunks, or its process had not kept the steps"
AT_END: Final = "in no sum by the end of the run"
NO_EXCHANGE: Final = "the run had no exchange that could count it"


@dataclass(slots=True)
class ClientWork:
    """The work of one client; `unsettled` local steps can still be in a later sum."""

    rounds: int = 0
    finished: int = 0
    counted: int = 0
    unsettled: int = 0

    @property
    def discarded(self) -> int:
        """The finished work that is in no sum."""
        return self.finished - self.counted


@dataclass(slots=True)
class Discarded:
    """Work of one client that was discarded for one reason."""

    amount: int = 0
    rounds: list[int] = field(default_factory=list)


class WorkTotals:
    """Adds up the work in the client rows of a run, round by round."""

    def __init__(self, *, local: bool) -> None:
        self.clients: Final[dict[str, ClientWork]] = {}
        self.discarded: Final[dict[tuple[str, str], Discarded]] = {}  # by client and reason
        self.at_end = 0  # local steps that no row has settled
        self._local = local
        self._last, self._summed = 0, False

    def add(self, over: RoundRow, rows: Iterable[ClientRow]) -> None:
        """Add the rows of the clients of a round."""
        self._last, self._summed = over.round, self._summed or over.outcome in SUMMED
        settles = self._local or over.outcome != "skipped"
        for row in rows:
            work = self.clients.setdefault(row.client, ClientWork())
            work.rounds += bool(row.finished or row.steps)
            if settles:
                work.finished += row.finished
                work.counted += row.counted
                work.unsettled = max(0, work.unsettled + row.steps - row.finished) if self._local else 0
            amount = row.finished - row.counted if settles else 0
            if row.failure or amount:
                self._discard(row.client, short(row.failure) or self._why(over, row), over.round, amount)

    def close(self, *, ended: bool) -> None:
        """Discard the local steps that no row has settled, if the run has ended."""
        if not (self._local and ended):
            return
        for client, work in self.clients.items():
            if work.unsettled:
                why = AT_END if self._summed else NO_EXCHANGE
                self._discard(client, why, self._last, work.unsettled)
                self.at_end += work.unsettled
                work.finished += work.unsettled
                work.unsettled = 0

    def _discard(self, client: str, why: str, number: int, amount: int) -> None:
        entry = self.discarded.setdefault((client, why), Discarded())
        entry.amount += amount
        entry.rounds.append(number)

    def _why(self, over: RoundRow, row: ClientRow) -> str:
        if over.is_left_out or over.outcome == "stopped" or not (self._local or over.outcome in SUMMED):
            return short(f"the round was {over.outcome}{f': {over.reason}' if over.reason else ''}")
        if not self._local:
            return OTHERS
        return NOT_IN_SUM if over.outcome in SUMMED and not row.counted else AGAIN


def is_local(settings: Mapping[str, object], task: str) -> bool:
    """Whether the clients of a run do local steps; stock clients and coded work do not."""
    return settings.get("work", "") == "local" and task != "stock"


def settled(rounds: Sequence[Round], *, local: bool) -> tuple[int, int]:
    """Return how much work the rounds of a run have settled: (finished, counted)."""
    settling = [each for each in rounds if local or each.row.outcome != "skipped"]
    return sum(each.finished for each in settling), sum(each.counted for each in settling)


def short(text: str) -> str:
    """Return a reason of limited length."""
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"
