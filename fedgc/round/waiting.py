"""What a run waits for: which clients, and how long at most."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """The awaited clients, and when the run goes on without them, or ends.

    `needed` more clients must come before a round can begin; 0 during a round.
    """

    clients: frozenset[str] = frozenset()
    until: float = math.inf
    needed: int = 0
