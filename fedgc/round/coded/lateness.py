"""Late vectors: those that take longer than most did, so that other clients are asked for the same.

Links are uneven, and one that was quick a round ago may be slow now. That is not known beforehand; but
once half of those that were asked have sent theirs, it is known what is usual. Whoever then takes `PATIENCE`
times as long is late (cf. the backup tasks of MapReduce, Dean and Ghemawat 2004). Where clients take turns on
one line the last ones seem late although they are not: what stands in for them queues up behind them, and
the first that is whole counts.

A client sends one vector after the other. So it is its line that is late or not, with all that it owes: from
when the first of that was asked for, or the vector before was there.

What is awaited has a key, (client, attempt). Times are the caller's.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from statistics import median
from typing import Final

Key = tuple[int, int]

PATIENCE: Final = 1.5


class Lateness:
    """Owns when vectors were asked for, and how long those took that came."""

    def __init__(self, least_s: float) -> None:
        """`least_s` is how long anybody may take: a process that pauses is no slow link."""
        self._least_s = least_s
        self.sent_s: dict[int, float] = {}  # how long the last vector of a client took
        self.patience_s = math.inf  # how long anybody may take: known once half of the first have come
        self._asked: set[Key] = set()
        self._since_s: dict[int, float] = {}  # when a client's line began with what it is at
        self._sending: Counter[int] = Counter()  # vectors asked of a client and not come
        self._to_come = 0  # until half of those asked first have come

    def asked(self, keys: Iterable[Key], now: float) -> None:
        """Keep in mind that these are awaited from now on, where they are not already.

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

    def expects(self, known_s: Sequence[float]) -> bool:
        """Whether one of these lines is likely to be late, by how long each was known to need; 0: unknown.

        >>> Lateness(0.5).expects([1.0, 0.0, 1.2, 1.4]), Lateness(0.5).expects([1.0, 0.0, 1.2, 1.9])
        (False, True)
        """
        known = [seconds for seconds in known_s if seconds]
        return bool(known) and max(known) >= max(self._least_s, PATIENCE * median(known))

    def again(self, w: int) -> None:
        """What this client owes counts as asked for when it is told next: it was away."""
        self._asked = {key for key in self._asked if key[0] != w}
        del self._sending[w]

    def came(self, w: int, now: float) -> bool:
        """One vector of this client has come; return whether it is known from now on what is usual."""
        self.sent_s[w] = now - self._since_s[w]
        self._since_s[w] = now
        self._sending[w] -= 1
        self._to_come -= 1
        if self._to_come == 0:
            self.patience_s = max(self._least_s, PATIENCE * self.sent_s[w])
        return self._to_come == 0

    def waited_s(self, w: int, now: float) -> float:
        """Return how long this client has been at what it sends."""
        return now - self._since_s[w]

    def is_sending(self, w: int) -> bool:
        """Whether something was asked of this client that has not come."""
        return self._sending[w] > 0

    def late(self, owed: Collection[Key], now: float) -> tuple[Key, ...]:
        """Return what has taken too long of what is owed."""
        return tuple(key for key in owed if self._due_s(key) <= now)

    def next_s(self, owed: Collection[Key], now: float) -> float:
        """Return when the next one will be late, of those that are not yet."""
        return min((due_s for due_s in map(self._due_s, owed) if due_s > now), default=math.inf)

    def _due_s(self, key: Key) -> float:
        return self._since_s[key[0]] + self.patience_s
