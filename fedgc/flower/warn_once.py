"""A warning of a run, logged once for each thing that it is about."""

from logging import WARNING, Logger


class WarnOnce:
    """Logs the first warning about each thing."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._warned: set[str] = set()

    def __call__(self, about: str, round_: int, text: str) -> None:
        """Log a warning, unless there was one about this before."""
        if about not in self._warned:
            self._warned.add(about)
            self._log.log(WARNING, "round %d: %s", round_, text)
