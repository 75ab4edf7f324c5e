"""What is told of the clients' faults during a run: the first of each client, and that a lost one is back."""

from typing import Final

from fedgc.history import ClientRow

LOST: Final = "lost"  # the failure of a client that did not come back within its grace time
BACK: Final = "back"


class ClientFaults:
    """Remembers which faults were told."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._gone: set[str] = set()

    def told(self, row: ClientRow) -> str:
        """Return what is to be told of a client after a round; empty if nothing is new.

        >>> faults = ClientFaults()
        >>> [faults.told(ClientRow("a", failure=each)) for each in ("lost", "lost", "", "", "no disk")]
        ['lost', '', 'back', '', 'no disk']
        """
        if row.failure:
            self._gone |= {row.client} if row.failure == LOST else set()
            new = row.client not in self._told
            self._told.add(row.client)
            return " ".join(row.failure.split()) if new else ""
        if row.client not in self._gone:
            return ""
        self._gone.discard(row.client)
        self._told.discard(row.client)
        return BACK
