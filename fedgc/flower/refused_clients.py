"""The clients that a run has refused: another model, another descriptor, a wrong clock, or an attack."""

from collections.abc import Callable

from fedgc.errors import printable
from fedgc.flower.job import Job
from fedgc.flower.validation import Ending
from fedgc.messages import Refuse
from fedgc.run.initialization import Initialization

Warn = Callable[[str, int, str], object]


class RefusedClients:
    """Enters each refusal into the history, and warns once of each client that cannot take part."""

    def __init__(self, job: Job, warn_once: Warn) -> None:
        self._job, self._warn_once = job, warn_once
        self.last = ""  # the client that was warned of last, and why

    def refused(self, refuse: Refuse, round_: int, name: str) -> None:
        """Enter a refusal; `name` is the client's name for the log. Open runs refuse late vectors too."""
        self._job.sink.audited("refused", refuse.client, f"round {refuse.round}: {refuse.reason}")
        if self._job.federation is not None:
            self.warn(refuse, round_, name)

    def ending(self, announcements: Initialization) -> Ending | None:
        """Return why no round can begin: too many clients of a fleet of known size were refused."""
        too_few = announcements.too_few_left(self._job.fleet, self._job.config.min_clients)
        return Ending(f"{self.last}; {too_few}", complete=False) if too_few else None

    def warn(self, refuse: Refuse, round_: int, name: str) -> None:
        """Warn of a client that cannot take part."""
        reason = printable(refuse.reason)
        self.last = f"{name} was refused: {reason}"
        self._warn_once(f"refused {refuse.client}", round_, f"{name} is refused: {reason}")
