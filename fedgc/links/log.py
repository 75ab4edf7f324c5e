"""The log at this edge: lines go where Flower's do, a refused setting is one line, as is what a client says.

Flower logs what an app raises with its whole traceback; where the caller only mistyped a setting, the one
line that names it is what helps.
"""

from logging import Filter, Logger, LogRecord, getLogger
from typing import Final

from fedgc.errors import FedgcError

LOG: Final[Logger] = getLogger("flwr.fedgc")  # below Flower's logger: its lines are the run's log
LONGEST_SAID: Final = 200  # characters of what came from outside that a line repeats
LONGEST_NAME: Final = 64  # of what a client calls itself


def for_people(said: object, longest: int = LONGEST_SAID) -> str:
    r"""Return what came from outside as it may stand in a log or on a terminal: short, and one line of text.

    >>> for_people("left\nERROR  the disk is full \x1b[31m")
    'left ERROR the disk is full [31m'
    """
    return "".join(each for each in " ".join(str(said).split()) if each.isprintable())[:longest]


class _OneLine(Filter):
    """Keeps a traceback out of the log where the sentence says it all."""

    def filter(self, record: LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, FedgcError):
            record.msg, record.args, record.exc_info = "%s: %s", (type(error).__name__, error), None
        return True


def keep_to_the_point() -> None:
    """Let Flower's logger show our own errors as one line."""
    getLogger("flwr").addFilter(_OneLine())
