"""Notices clients that announce the same private chunks, as when each of them reads the files of all."""

from collections.abc import Callable
from typing import Final

from fedgc.messages import Event, Joined, Lost

NAMED: Final = 3  # chunks that the warning repeats

Look = frozenset[tuple[str, int]]  # names and sample counts


class AlikeData:
    """What each present client announced as private data."""

    def __init__(self) -> None:
        self._looks: dict[str, Look] = {}
        self._clients: dict[Look, dict[str, None]] = {}  # of each look, the first one first

    def handle(self, event: Event, name_of: Callable[[str], str]) -> str:
        """Take in an event; return a warning if a client announces what another has announced.

        >>> from fedgc.messages import Held
        >>> alike = AlikeData()
        >>> alike.handle(Joined(0.0, "a", True, (Held("ward", 9),)), str.upper)
        ''
        >>> alike.handle(Joined(0.0, "b", True, (Held("ward", 9),)), str.upper)[:61]
        'B and A announce the same private chunks (ward), with as many'
        """
        if isinstance(event, Lost | Joined):
            self._forget(event.client)
        if not isinstance(event, Joined):
            return ""
        look = frozenset((held.name, held.samples) for held in event.holds if not held.digest)
        others = tuple(self._clients.get(look, ()))
        self._looks[event.client] = look
        self._clients.setdefault(look, {})[event.client] = None
        if not look or not others:
            return ""
        chunks = [name for name, _ in sorted(look)]
        shown = ", ".join(chunks[:NAMED]) + (", ..." if len(chunks) > NAMED else "")
        names = " and ".join(name_of(each) or each for each in (event.client, others[0]))
        return (
            f"{names} announce the same private chunks ({shown}), with as many samples: "
            "if they read the same files, give each its own (--client NAME:data=...), or share them with "
            "may_move = True"
        )

    def _forget(self, client: str) -> None:
        """Forget what a client has announced."""
        look = self._looks.pop(client, None)
        if look is not None:
            del self._clients[look][client]
            if not self._clients[look]:
                del self._clients[look]
