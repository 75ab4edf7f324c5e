"""The sites of a masked run that are refused: another descriptor, a wrong clock, or an attack."""

from collections.abc import Callable

from fedgc.errors import printable
from fedgc.messages import Refuse

Warn = Callable[[str, int, str], object]


class RefusedSites:
    """Warns once of each site, and knows why the last one was refused."""

    def __init__(self, warn_once: Warn, *, is_masked: bool) -> None:
        self._warn_once, self._is_masked = warn_once, is_masked
        self.last = ""  # the site that was refused last, and why

    def told(self, refuse: Refuse, name: str) -> None:
        """Note what a site is told; `name` is its name for the log."""
        if self._is_masked:
            reason = printable(refuse.reason)
            self.last = f"{refuse.client} was refused: {reason}"
            self._warn_once(f"refused {refuse.client}", refuse.round, f"{name} is refused: {reason}")
