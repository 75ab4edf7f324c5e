"""What a link refuses: counted by kind, logged once of each kind, and put on record."""

from collections import Counter
from collections.abc import Callable
from logging import Logger
from typing import Final

from fedgc.links.log import for_people

Audit = Callable[[str, str, str], None]  # what kind of thing, who, what; from any thread


class Refusals:
    """The refusals of one link; `who` is a client, or empty where nobody has proven who it is."""

    def __init__(self, log: Logger, audit: Audit) -> None:
        self._log = log
        self._audit = audit
        self.counts: Final[Counter[str]] = Counter()

    def count(self, error: Exception, who: str = "") -> None:
        """Count what was refused."""
        kind, said = type(error).__name__, for_people(error)
        self.counts[kind] += 1
        self._audit("refused", who, f"{kind}: {said}")
        if self.counts[kind] == 1:
            self._log.warning("refused (the first of its kind is shown): %s: %s", kind, said)


def unheard(kind: str, who: str, what: str) -> None:
    """Put nothing on record."""
