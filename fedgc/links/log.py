"""Logging of fedgc: through Flower's logger, with one line for each error of fedgc.

Flower logs what an app raises with its whole traceback. For a mistyped setting, the one line that names it is
enough.
"""

from logging import Filter, Logger, LogRecord, getLogger
from typing import Final

from fedgc.errors import FedgcError

LOG: Final[Logger] = getLogger("flwr.fedgc")  # below Flower's logger, so its lines are in the run's log
LONGEST_NAME: Final = 64  # characters of a client's display name


class _OneLine(Filter):
    """Removes the traceback of an error whose message is complete."""

    def filter(self, record: LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, FedgcError):
            record.msg, record.args, record.exc_info = "%s", (error,), None
        return True


def log_errors_in_one_line() -> None:
    """Make Flower's logger show errors of fedgc as one line."""
    getLogger("flwr").addFilter(_OneLine())
