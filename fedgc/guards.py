"""Guards at the edges: an unforeseen exception becomes an error of fedgc, and the process lives.

At an edge the program reads what others have made: a peer's message, a file, a request. The code there
refuses bad input with the errors of `fedgc.errors`. If it raises anything else, that is a bug, of fedgc or of
a library, which one input can trigger. `guarded` turns it into an error that the edge already handles, counts
it, and logs the first of each kind. With the environment variable FEDGC_DEBUG (`fedgc --debug`), its
traceback is logged as well.

Only edges use guards. Pure code has none, and the server's own steps (time passing, the optimizer, the end of
a round) have none either: an error there ends the run with its reason.
"""

import os
from collections import Counter
from logging import Logger, getLogger
from types import TracebackType
from typing import Final

from fedgc.errors import LONGEST_TEXT, FedgcError, Unexpected, words_of

DEBUG: Final = "FEDGC_DEBUG"  # in the environment: log tracebacks
LOG: Final[Logger] = getLogger("flwr.fedgc")
COUNTS: Final[Counter[tuple[str, str]]] = Counter()  # by edge and kind of exception, in this process


class Guard:
    """What `guarded` returns: a context manager, as a class, since one is entered for every message."""

    __slots__ = ("_edge", "_error", "_who")

    def __init__(self, edge: str, who: str, error: type[FedgcError]) -> None:
        self._edge, self._who, self._error = edge, who, error

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(
        self, kind: type[BaseException] | None, cause: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Count an unforeseen exception, and raise the guard's error in its place."""
        if cause is None or isinstance(cause, FedgcError) or not isinstance(cause, Exception):
            return
        where = f"{self._edge} ({self._who})" if self._who else self._edge
        COUNTS[self._edge, type(cause).__name__] += 1
        text = f"{where}: saw {words_of(cause, LONGEST_TEXT)}"
        if COUNTS[self._edge, type(cause).__name__] == 1:
            debug = bool(os.environ.get(DEBUG))
            hint = "" if debug else f"; {DEBUG}=1 shows the traceback"
            LOG.warning("unexpected, the first of its kind: %s%s", text, hint, exc_info=debug)
        raise self._error(text) from cause


def guarded(edge: str, who: str = "", error: type[FedgcError] = Unexpected) -> Guard:
    """Raise `error` in place of any exception that is not one of fedgc; `who` names the peer or the file.

    >>> with guarded("a table", "times.csv"):
    ...     {}["seconds"]
    Traceback (most recent call last):
        ...
    fedgc.errors.Unexpected: a table (times.csv): saw KeyError: 'seconds'
    """
    return Guard(edge, who, error)
