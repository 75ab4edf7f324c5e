"""Choosing the clients of a round: a random sample without replacement, turn by turn.

In a turn each client is asked once, in random order; the next turn begins when all were asked. So with
`count` of n clients a round, each takes part in every n / count exchanges on average, and waits for less than
two turns. A client that joins is asked in the turn in which it comes. The order follows from the run's seed
and the number of the round: a resumed run chooses as it would have without the pause.

Clients that continue from a skipped round are asked again; others take the places of those that are lost.
"""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

STREAM: Final = 8  # of the seed


class Choice:
    """Knows which clients were asked in this turn.

    >>> choice = Choice(2, seed=0)
    >>> turn = [*choice.among("abcd", 1, ()), *choice.among("abcd", 2, ())]
    >>> sorted(turn), len(choice.among("abcd", 3, ()))
    (['a', 'b', 'c', 'd'], 2)
    """

    def __init__(self, count: int, seed: int) -> None:
        """`count` clients take part in a round (0: all)."""
        self.asked: Final[set[str]] = set()
        self._count, self._seed = count, seed

    def among(self, able: Sequence[str], round_: int, carried: Collection[str]) -> Collection[str] | None:
        """Return the clients to ask in this round, those that are `carried` among them; None: all."""
        if not self._count or self._count >= len(able):
            return None
        chosen = {client for client in able if client in carried}
        free = max(0, self._count - len(chosen))
        order = np.random.default_rng([self._seed, STREAM, round_]).permutation(len(able))
        rest = [able[at] for at in order if able[at] not in chosen]
        unasked = [client for client in rest if client not in self.asked][:free]
        more = [client for client in rest if client not in unasked][: free - len(unasked)]
        if more:  # the next turn begins
            self.asked.clear()
        self.asked.update(more or unasked)
        return chosen.union(unasked, more)
