"""How many replicas of every chunk a round should aim for, from measurements of earlier rounds.

One more replica makes codewords shorter and costs a wait. The slowest few clients decide the wait; all links
and the server's decide the gain, and so does the number of repairs. No formula predicts these, but every
round measures them. With W_b the time until all chunks had b replicas, and C_b the time to collect with b
replicas, b is best where W_b + C_b is least. If b was not tried recently, collecting is taken to be
proportional to the size of a codeword, C_b = C_a a / b, and the wait for the next replica to be at least as
long as for the one before, as fewer clients are left to make it. So a round begins with the best known aim,
and tries one more replica only if that was never seen, or seldom and not recently, and still seems to pay.

Raising the aim during a round takes longer than starting with it, as clients stand idle in between. So such a
wait is discounted, until a round has begun with that aim.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from statistics import median
from typing import Final

RECENT_ROUNDS: Final = 5
FORGOTTEN_AFTER: Final = 50  # rounds: a wait measured so long ago is measured again
FEW: Final = 3  # with fewer of them one outlier decides: after RECENT_ROUNDS they are measured again
AT_BEST: Final = 0.6  # of a wait for a raised aim, had the round started with it


@dataclass(frozen=True, slots=True)
class ReplicationCosts:
    """Expected costs of a round: `waits_s[b - 1]` from b replicas to b + 1, `collecting_s[b]` with b."""

    waits_s: tuple[float, ...] = ()
    collecting_s: Mapping[int, float] = field(default_factory=dict)

    @property
    def aim(self) -> int:
        """The first aim: the best number of replicas among those with known waits.

        >>> ReplicationCosts((2.0, 5.0), {1: 12.0}).aim, ReplicationCosts().aim
        (2, 1)
        """
        if not self.collecting_s:
            return 1
        most = len(self.waits_s) + 1
        total_s = [sum(self.waits_s[: b - 1]) + self._collecting(b, 0.0) for b in range(1, most + 1)]
        return total_s.index(min(total_s)) + 1

    def pays(self, aim: int, guessed_s: float, upload_s: float) -> bool:
        """Return whether one replica more than `aim` saves more time than it costs.

        Estimates for what was never seen: `guessed_s` the wait, `upload_s` the time to collect whole updates.

        >>> ReplicationCosts().pays(1, 2.0, 10.0), ReplicationCosts().pays(2, 2.0, 10.0)
        (True, False)
        >>> ReplicationCosts((6.0,)).pays(1, 2.0, 10.0)
        False
        """
        known = aim <= len(self.waits_s)
        wait_s = self.waits_s[aim - 1] if known else max((guessed_s, *self.waits_s[-1:]))
        return self._collecting(aim, upload_s) - self._collecting(aim + 1, upload_s) > wait_s

    def _collecting(self, blocks: int, upload_s: float) -> float:
        if not self.collecting_s:
            return upload_s / blocks
        nearest = min(self.collecting_s, key=lambda each: (abs(each - blocks), each))
        return self.collecting_s[nearest] * nearest / blocks


class ReplicationTarget:
    """Owns the measurements of rounds of one kind: same clients, chunks and largest replication."""

    def __init__(self) -> None:
        self._kind: object = None
        self._round, self._begun = 0, 1  # the highest aim with which a round began
        self._waits: list[deque[tuple[int, float]]] = []  # rounds, and seconds per step of their work
        self._collecting: deque[tuple[int, float]] = deque(maxlen=RECENT_ROUNDS)  # blocks, seconds

    def learn(
        self, covered_s: Sequence[float], steps: int, blocks: int, collecting_s: float, *, began: int
    ) -> None:
        """Enter a round of so many steps: when all chunks had 1, 2, ... replicas, and its collecting.

        It began with an aim of `began` replicas.
        """
        self._round += 1
        self._collecting.append((blocks, collecting_s))
        waits_s = [after - before for before, after in pairwise(covered_s)]
        self._waits += [deque(maxlen=RECENT_ROUNDS) for _ in waits_s[len(self._waits) :]]
        for replicas, (seen, wait_s) in enumerate(zip(self._waits, waits_s, strict=False), start=2):
            if self._begun < replicas <= began:
                seen.clear()  # those were for a raised aim
            seen.append((self._round, wait_s / steps))
        self._begun = max(self._begun, began)

    def replication_costs(self, kind: object, steps: int) -> ReplicationCosts:
        """Return the expected costs of a round of this kind; forget measurements of another kind.

        >>> replication = ReplicationTarget()
        >>> replication.replication_costs("plan a", 1).aim, replication.learn([4.0, 6.0], 1, 2, 5.0, began=2)
        (1, None)
        >>> replication.replication_costs("plan a", 2)
        ReplicationCosts(waits_s=(4.0,), collecting_s={2: 5.0})
        >>> replication.replication_costs("plan b", 2)
        ReplicationCosts(waits_s=(), collecting_s={})
        """
        if kind != self._kind:
            self._kind, self._waits, self._begun = kind, [], 1
            self._collecting.clear()
        while self._waits and self._waits[-1][-1][0] <= self._round - FORGOTTEN_AFTER:
            self._waits.pop()
        sure = takewhile(self._is_sure, self._waits)
        known = [steps * _typical(dict(seen).values()) for seen in sure]
        self._begun = min(self._begun, len(self._waits) + 1)
        waits_s = (*known[: self._begun - 1], *(AT_BEST * wait_s for wait_s in known[self._begun - 1 :]))
        collecting_s: dict[int, list[float]] = {}
        for blocks, seconds in self._collecting:
            collecting_s.setdefault(blocks, []).append(seconds)
        return ReplicationCosts(waits_s, {blocks: _typical(each) for blocks, each in collecting_s.items()})

    def _is_sure(self, seen: Sequence[tuple[int, float]]) -> bool:
        """Whether this was seen often enough, or recently."""
        return len(seen) >= FEW or seen[-1][0] > self._round - RECENT_ROUNDS


def _typical(values: Collection[float]) -> float:
    """Return the typical value; of a few values the least, since an outlier is larger."""
    return float(median(values)) if len(values) >= FEW else min(values)
