"""Refused messages of a link: counted by kind, the first of each kind logged, all audited."""

from collections import Counter
from collections.abc import Callable
from logging import Logger
from typing import Final

from fedgc.errors import LONGEST_TEXT, Unexpected, words_of

Audit = Callable[[str, str, str], None]  # kind of event, client, text; called from any thread


class Refusals:
    """The refusals of one link; `who` is a client, or empty where no identity is proven."""

    def __init__(self, log: Logger, audit: Audit) -> None:
        self._log = log
        self._audit = audit
        self.counts: Final[Counter[str]] = Counter()

    def count(self, error: Exception, who: str = "") -> None:
        """Count one refusal."""
        kind, text = kind_of(error), words_of(error, LONGEST_TEXT)
        self.counts[kind] += 1
        self._audit("refused", who, text)
        if self.counts[kind] == 1 and not isinstance(error, Unexpected):  # the guard has logged it
            self._log.warning("refused (the first of its kind is shown): %s", text)


def kind_of(error: Exception) -> str:
    """Return the kind by which a refusal is counted; of an unexpected exception that of its cause.

    >>> kind_of(Unexpected("a frame: saw KeyError: 1"))
    'Unexpected'
    """
    cause = error.__cause__
    of_cause = isinstance(error, Unexpected) and cause is not None
    return f"Unexpected {type(cause).__name__}" if of_cause else type(error).__name__


def no_audit(kind: str, who: str, what: str) -> None:
    """An audit that records nothing."""
