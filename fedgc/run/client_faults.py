"""What is told of the faults of clients during a run: the first ones, their number later, and who is back."""

from collections import Counter
from typing import Final

from fedgc.history import ClientRow

LOST: Final = "lost"  # the failure of a client that did not come back within its grace time
BACK: Final = "back"
AGAIN: Final = 3  # failures of a client after which it is told again; then at twice as many each time


class ClientFaults:
    """Remembers which faults were told."""

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()  # of each client
        self._gone: set[str] = set()

    def told(self, row: ClientRow) -> str:
        """Return what is to be told of a client after a round; empty if nothing is new.

        >>> faults = ClientFaults()
        >>> [faults.told(ClientRow("a", failure=each)) for each in ("lost", "lost", "", "", "no disk")]
        ['lost', '', 'back', '', 'no disk']
        >>> [faults.told(ClientRow("a", failure="no disk")) for _ in range(3)]
        ['', 'failed again, 3 times by now: no disk', '']
        """
        if row.failure:
            self._gone |= {row.client} if row.failure == LOST else set()
            self._failures[row.client] += 1
            return _words(" ".join(row.failure.split()), self._failures[row.client])
        if row.client not in self._gone:
            return ""
        self._gone.discard(row.client)
        del self._failures[row.client]
        return BACK


def _words(failure: str, count: int) -> str:
    if count == 1:
        return failure
    times, rest = divmod(count, AGAIN)
    is_due = rest == 0 and times.bit_count() == 1 and failure != LOST
    return f"failed again, {count} times by now: {failure}" if is_due else ""
