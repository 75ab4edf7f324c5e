"""Refused messages of a link: counted by kind, the first of each kind logged, all audited."""

from collections import Counter
from collections.abc import Callable
from logging import Logger
from typing import Final

from fedgc.links.log import printable

Audit = Callable[[str, str, str], None]  # kind of event, client, text; called from any thread


class Refusals:
    """The refusals of one link; `who` is a client, or empty where no identity is proven."""

    def __init__(self, log: Logger, audit: Audit) -> None:
        self._log = log
        self._audit = audit
        self.counts: Final[Counter[str]] = Counter()

    def count(self, error: Exception, who: str = "") -> None:
        """Count one refusal."""
        kind, text = type(error).__name__, printable(error)
        self.counts[kind] += 1
        self._audit("refused", who, f"{kind}: {text}")
        if self.counts[kind] == 1:
            self._log.warning("refused (the first of its kind is shown): %s: %s", kind, text)


def no_audit(kind: str, who: str, what: str) -> None:
    """An audit that records nothing."""
