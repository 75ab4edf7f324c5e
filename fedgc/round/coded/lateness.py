"""Late vectors: backup requests for uploads much slower than most (backup tasks, Dean and Ghemawat 2004).

Uplinks are uneven, and one that was fast a round ago may be slow now. Once half of the first requested
vectors have come, the usual time is known, and a client that takes `PATIENCE` times as long is late. If
clients take turns on a shared uplink the last ones seem late although they are not: their replacements queue
behind them, and the first complete vector counts.

A client sends one vector after the other. So lateness belongs to its uplink, with all that it owes: it counts
from the first request, or from the arrival of the vector before.

An awaited vector has a key, (client, attempt). Times are the caller's.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from statistics import median
from typing import Final

Key = tuple[int, int]

PATIENCE: Final = 1.5


def expects_late(known_s: Sequence[float], least_s: float) -> bool:
    """Return whether an uplink is likely to be late, by the known times for a codeword; 0: unknown.

    >>> expects_late([1.0, 0.0, 1.2, 1.4], 0.5), expects_late([1.0, 0.0, 1.2, 1.9], 0.5)
    (False, True)
    """
    known = [seconds for seconds in known_s if seconds]
    return bool(known) and max(known) >= max(least_s, PATIENCE * median(known))


class Lateness:
    """Tracks when vectors were requested, and how long those that arrived took."""

    def __init__(self, least_s: float) -> None:
        """`least_s` is the minimum before a client is late: a process that pauses is no slow link."""
        self._least_s = least_s
        self.sent_s: dict[int, float] = {}  # time of each client's last vector
        self.patience_s = math.inf  # the limit; known once half of the first have come
        self._asked: set[Key] = set()
        self._since_s: dict[int, float] = {}  # when a client's uplink began its current vector
        self._sending: Counter[int] = Counter()  # vectors requested from a client and not arrived
        self._to_come = 0  # until half of the first requested have come

    def asked(self, keys: Iterable[Key], now: float) -> None:
        """Note that these vectors are awaited from now on, unless they are already.

        >>> lateness = Lateness(0.5)
        >>> lateness.asked([(0, 0), (1, 0), (2, 0)], 0.0)
        >>> lateness.came(1, 3.0), lateness.came(0, 4.0), lateness.patience_s
        (False, True, 6.0)
        >>> lateness.late([(2, 0)], 5.9), lateness.next_s([(2, 0)], 5.9), lateness.late([(2, 0)], 6.0)
        ((), 6.0, ((2, 0),))
        """
        first = not self._since_s
        for key in keys:
            if key not in self._asked:
                self._asked.add(key)
                self._sending[key[0]] += 1
                if self._sending[key[0]] == 1:
                    self._since_s[key[0]] = now
        if first:
            self._to_come = -(-len(self._asked) // 2)

    def again(self, w: int) -> None:
        """Restart the time of what this client owes at its next request: it was away."""
        self._asked = {key for key in self._asked if key[0] != w}
        del self._sending[w]

    def came(self, w: int, now: float) -> bool:
        """Note that a vector of this client has come; return whether the usual time is now known."""
        self.sent_s[w] = now - self._since_s[w]
        self._since_s[w] = now
        self._sending[w] -= 1
        self._to_come -= 1
        if self._to_come == 0:
            self.patience_s = max(self._least_s, PATIENCE * self.sent_s[w])
        return self._to_come == 0

    def waited_s(self, w: int, now: float) -> float:
        """Return how long this client has been sending its current vector."""
        return now - self._since_s[w]

    def is_sending(self, w: int) -> bool:
        """Whether a vector of this client is awaited."""
        return self._sending[w] > 0

    def late(self, owed: Collection[Key], now: float) -> tuple[Key, ...]:
        """Return the late vectors among those owed."""
        return tuple(key for key in owed if self._due_s(key) <= now)

    def next_s(self, owed: Collection[Key], now: float) -> float:
        """Return when the next vector becomes late."""
        return min((due_s for due_s in map(self._due_s, owed) if due_s > now), default=math.inf)

    def _due_s(self, key: Key) -> float:
        return self._since_s[key[0]] + self.patience_s
