"""What is told of clients during a run: their faults, and that they join, leave or are back.

Of the faults of a client, the first ones are told, and their number later.
"""

import re
from collections import Counter
from typing import Final

from fedgc.history import ClientRow
from fedgc.messages import Joined, Leaving, LinkEvent

LOST: Final = "lost"  # the failure of a client that did not come back within its grace time
BACK: Final = "back"
JOINED: Final = "joined"
LEAVES: Final = "is leaving: it hands in what it has, and gets no new work"
AGAIN: Final = 3  # failures of a kind after which it is told again; then at twice as many each time
MOST_KINDS: Final = 8  # that are told apart for a client: it may send any text
NUMBERS: Final = re.compile(r"\d+")  # failures that differ in numbers alone are of one kind


class ClientNotes:
    """Remembers what was told."""

    def __init__(self) -> None:
        self._failures: dict[str, Counter[str]] = {}  # of each client, by kind
        self._gone: set[str] = set()
        self._known: set[str] = set()
        self.left: Final[set[str]] = set()  # clients that are leaving, or have left

    def heard(self, event: LinkEvent, *, begun: bool) -> str:
        """Return what is to be told of a client that joins or leaves; nothing of those that begin the run.

        >>> notes, joined, leaving = ClientNotes(), Joined(0.0, "a", True, ()), Leaving(0.0, "a", 20.0)
        >>> [notes.heard(each, begun=True) for each in (joined, joined, leaving, leaving, joined)]
        ['joined', '', 'is leaving: it hands in what it has, and gets no new work', '', 'back']
        >>> notes.heard(Joined(0.0, "b", True, ()), begun=False)
        ''
        """
        match event:
            case Leaving(client=client) if client not in self.left:
                self.left.add(client)
                return LEAVES
            case Joined(client=client) if client in self.left:
                self.left.discard(client)
                return BACK
            case Joined(client=client) if client not in self._known:
                self._known.add(client)
                return JOINED if begun else ""
        return ""

    def told(self, row: ClientRow) -> str:
        """Return what is to be told of a client after a round; empty if nothing is new.

        >>> notes = ClientNotes()
        >>> [notes.told(ClientRow("a", failure=each)) for each in ("lost", "lost", "", "", "no disk")]
        ['lost', '', 'back', '', 'no disk']
        >>> [notes.told(ClientRow("a", failure="no disk")) for _ in range(3)]
        ['', 'failed again, 3 times by now: no disk', '']
        >>> [notes.told(ClientRow("a", failure=f"step {at}: no memory")) for at in range(2)]
        ['step 0: no memory', '']
        """
        if row.failure:
            self._gone |= {row.client} if row.failure == LOST else set()
            failure = " ".join(row.failure.split())
            kinds = self._failures.setdefault(row.client, Counter())
            kind = NUMBERS.sub("", failure)
            kind = kind if kind in kinds or len(kinds) < MOST_KINDS else ""
            kinds[kind] += 1
            return _words(failure, kinds[kind])
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
