"""The clients that a resumed run waits for before its first round."""

import math
from collections.abc import Iterable
from typing import Final

RETURN_S: Final = 10.0  # a client gives up its session to the server that ended, and starts a process


class Returns:
    """Knows the clients of the last exchange that are not back yet.

    They went on training after the server had ended, and would lose these steps if a round was exchanged
    without them. The wait for them begins when enough clients for a round are back.
    """

    def __init__(self, clients: Iterable[str] = ()) -> None:
        self.missing: Final = set(clients)
        self.until = math.inf

    def awaited(self, now: float, end: float, *, enough: bool) -> bool:
        """Whether a round has to wait, until `end` at the latest; `enough` clients could begin it.

        >>> returns = Returns({"a"})
        >>> [returns.awaited(now, 60.0, enough=True) for now in (5.0, 14.0, 15.0)]
        [True, True, False]
        """
        if enough:
            self.until = min(self.until, now + RETURN_S, end)
        if now >= self.until or not self.missing:
            self.missing.clear()
            self.until = math.inf
        return bool(self.missing)
