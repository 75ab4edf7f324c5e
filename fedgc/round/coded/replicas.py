"""The replica tracker: finished chunks and work queues of all clients in a round's working phase.

A client w works through a queue of chunks; what it has finished counts as a replica while it is live. The
tracker mirrors each queue, so that it can compute in constant time what a finished replica changes: which
clients should skip that chunk, and which chunk its finisher should take next (the least covered one it
holds). The mirror may lag behind a client; only the choice of commands depends on it.

    copies[c]   live clients that have finished chunk c
    reach[c]    live clients that have finished it or still will: those that receive commands can be asked,
                a deaf one (it receives nothing between its messages) does what is on its queue
    aim         replicas wanted of every chunk; capped by what the reachable chunks allow

Index w is a client, c a chunk, as in the plan.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedgc.codes import Holders, next_chunk

Bool = NDArray[np.bool_]


class ReplicaTracker:
    """Owns the arrays of one round; each method that changes them returns what follows from it."""

    def __init__(self, holders: Holders, aim: int) -> None:
        clients_w, chunks = holders.holds.shape
        self.able_wc: Bool = holders.holds.copy()
        self.done_wc: Bool = np.zeros((clients_w, chunks), dtype=bool)
        self.live_w: Bool = np.zeros(clients_w, dtype=bool)
        self.hears_w: Bool = np.zeros(clients_w, dtype=bool)
        self.replicas = [0] * chunks
        self.aim = aim
        self._wanted_aim = aim
        self._holders = holders
        self._queue: list[dict[int, None]] = [{} for _ in range(clients_w)]  # the next one last
        self._current: list[int | None] = [None] * clients_w
        self._working = [0] * chunks
        self._reach = np.zeros(chunks, dtype=np.int64)
        self._enough = [0] * chunks  # by chunk, the replicas that suffice: at most the possible ones
        self.reachable = False  # whether any live client has finished or can finish any chunk
        self._lacking = 0
        self._uncovered = 0

    # ---- queries

    @property
    def covered(self) -> bool:
        """Whether every reachable chunk has as many replicas as aimed for."""
        return self._lacking == 0 and self.reachable

    @property
    def covered_once(self) -> bool:
        """Whether every reachable chunk has a replica."""
        return self._uncovered == 0 and self.reachable

    @property
    def counting_wc(self) -> Bool:
        """The finished replicas that count: those of live clients."""
        return self.done_wc & self.live_w[:, None]

    def most_copies(self) -> int:
        """Return how many replicas of every reachable chunk the live clients could make."""
        reachable = self._reach[self._reach > 0]
        return int(reachable.min()) if reachable.size else 0

    def remaining(self, w: int) -> tuple[int, ...]:
        """Return the remaining chunks of a client, the current one first."""
        now = self._current[w]
        return (() if now is None else (now,)) + tuple(reversed(self._queue[w]))

    @property
    def askable_wc(self) -> Bool:
        """The replicas that can be requested."""
        return self.able_wc & (self.live_w & self.hears_w)[:, None]

    @property
    def possible_wc(self) -> Bool:
        """The replicas that exist or can be requested."""
        return self.counting_wc | self.askable_wc

    def coming(self) -> frozenset[int]:
        """Return the chunks that deaf clients will finish."""
        deaf: list[int] = np.flatnonzero(self.live_w & ~self.hears_w).tolist()
        return frozenset(chunk for w in deaf for chunk in self.remaining(w))

    # ---- changes

    def joined(self, hears: Mapping[int, bool]) -> None:
        """Enter clients; their earlier replicas count once they report them again."""
        for w in hears:
            self._clear(w)
        clients_w = list(hears)
        self.live_w[clients_w] = True
        self.hears_w[clients_w] = list(hears.values())
        self.done_wc[clients_w] = False
        self._recount()

    def queue(self, w: int, order: Sequence[int], kept: Collection[int] = ()) -> tuple[int, ...]:
        """Let a client begin; return its useful chunks: first those it kept, which cost nothing.

        Then comes the least covered chunk, so that clients that begin together do not begin the same.
        """
        able_c, done_c, replicas, aim = self.able_wc[w], self.done_wc[w], self.replicas, self.aim
        free = [c for c in order if c in kept and able_c[c]] if kept else []
        rest = [c for c in order if replicas[c] < aim and able_c[c] and not done_c[c] and c not in kept]
        best = next_chunk(replicas, self._working, rest, aim)
        if best is not None:
            rest.remove(best)
            rest.insert(0, best)
        todo = (*free, *rest)
        self._queue[w] = dict.fromkeys(reversed(todo))
        self._advance(w)
        if not self.hears_w[w]:
            self._recount()
        return todo

    def lost(self, w: int) -> None:
        """Stop counting a client's replicas."""
        self._clear(w)
        self.live_w[w] = False
        self._recount()

    def leaves(self, w: int) -> None:
        """Ask a client for nothing any more; its replicas count while it is there."""
        self._clear(w)
        self.hears_w[w] = False
        self._recount()

    def failed(self, w: int, chunks: Iterable[int]) -> bool:
        """Mark these chunks as unavailable from a client in this round; return whether that is new."""
        lost = [chunk for chunk in chunks if self.able_wc[w, chunk]]
        if not lost:
            return False
        for chunk in lost:
            self.able_wc[w, chunk] = False
            self.done_wc[w, chunk] = False
            self._drop(w, chunk)
        self._recount()
        return True

    def restored(self, w: int, chunk: int) -> None:
        """Count a replica that was left out: a live client has it."""
        self.able_wc[w, chunk] = True
        self.done_wc[w, chunk] = True
        self._recount()

    def finished(self, w: int, chunk: int) -> None:
        """Count one more replica."""
        self.done_wc[w, chunk] = True
        if not self.hears_w[w]:  # it may have worked on a chunk that is not in its queue
            self._drop(w, chunk)
            self._recount()
            return
        self.replicas[chunk] = replicas = self.replicas[chunk] + 1
        self._uncovered -= replicas == 1
        self._lacking -= replicas == self._enough[chunk]
        self._drop(w, chunk)

    def raise_aim(self, aim: int) -> None:
        """Raise the number of replicas aimed for."""
        self._wanted_aim = aim
        self._recount()

    # ---- commands

    def skips(self, chunk: int) -> list[tuple[int, int | None]]:
        """Return the clients that should skip this chunk if it has enough replicas, and note that they do.

        Each comes with the chunk to take instead, if that is not the head of its queue.
        """
        if self.replicas[chunk] < self.aim:
            return []
        current, queue, hears_w = self._current, self._queue, self.hears_w
        holders = self._holders.of_chunk[chunk]
        leave = [v for v in holders if (chunk in queue[v] or current[v] == chunk) and hears_w[v]]
        moved = [(v, self.steer(v) if current[v] == chunk else None) for v in leave]
        for w in leave:
            self._drop(w, chunk)
        return moved

    def steer(self, w: int) -> int | None:
        """Return the chunk to take next, if the client's queue says another."""
        queue = self._queue[w]
        if len(queue) < 2 or not self.hears_w[w]:
            return None
        best = next_chunk(self.replicas, self._working, reversed(queue), self.aim)
        return best if self._better(w, best) else None

    def redirect(self, w: int) -> tuple[int | None, int] | None:
        """Let a client that has just begun a chunk do a less covered one first; return (chunk, instead).

        Its queue was ordered when it began the chunk before: by now another client may be at this one, and
        none at that. If the client may stay at this one, return (None, the chunk to take after it), as
        `steer` does.
        """
        begun, queue = self._current[w], self._queue[w]
        if not queue or not self.hears_w[w]:
            return None
        best = next_chunk(self.replicas, self._working, reversed(queue), self.aim)
        if best is None:
            return None
        if begun is None or self._coverage(best) >= self._coverage(begun) - 1:  # which counts this client
            return (None, best) if self._better(w, best) else None
        self._to_front(w, best)
        self._drop(w, begun)
        self._to_front(w, begun)
        return begun, best

    def _better(self, w: int, best: int | None) -> bool:
        """Move the best chunk of a queue to the front, if it is less covered than the front."""
        head = next(reversed(self._queue[w]))
        if best is None or best == head or self._coverage(best) >= self._coverage(head):
            return False
        self._to_front(w, best)
        return True

    def hand_out(self) -> list[tuple[int, int]]:
        """Return (client, chunk) for every open chunk with an available holder, and queue it.

        A client puts commanded chunks in front, so the least covered one comes last.
        """
        given = []
        reachable: list[int] = np.flatnonzero(self._reach).tolist()
        lacking = sorted((c for c in reachable if self.replicas[c] < self.aim), key=self._coverage)
        fit_wc = self.able_wc & ~self.done_wc
        asked: list[bool] = (self.live_w & self.hears_w).tolist()
        for chunk in reversed(lacking):
            for w in self._holders.of_chunk[chunk]:
                if asked[w] and not self._has(w, chunk) and fit_wc[w, chunk]:
                    self._to_front(w, chunk)
                    given.append((w, chunk))
        for w in {w for w, _ in given}:
            if self._current[w] is None:
                self._advance(w)
        return given

    @property
    def blocks(self) -> int:
        """The largest number of blocks for which every chunk with a replica is exact."""
        made = [replicas for replicas in self.replicas if replicas]
        return min(self.aim, min(made, default=1))

    def wait_s(self, aim: int, chunk_s: Sequence[float]) -> float:
        """Estimate the time until every reachable chunk has `aim` replicas, with chunk_s[w] per client.

        The estimate is the remaining work shared by speed, and at least the time of the slowest single chunk.
        """
        lacking_c = np.maximum(0, np.minimum(aim, self._reach) - np.asarray(self.replicas))
        speed_w = self.live_w / np.asarray(chunk_s)
        wanted = lacking_c > 0
        if not wanted.any():
            return 0.0
        worker_s, of_s = self._holders.client_s, self._holders.chunk_s
        left_s = self.able_wc[worker_s, of_s] & self.live_w[worker_s] & ~self.done_wc[worker_s, of_s]
        fastest_c = np.full(len(lacking_c), np.inf)
        np.minimum.at(fastest_c, of_s[left_s], np.asarray(chunk_s)[worker_s[left_s]])
        return max(float(lacking_c.sum() / speed_w.sum()), float(fastest_c[wanted].max()))

    def _coverage(self, chunk: int) -> int:
        return self.replicas[chunk] + self._working[chunk]

    def _has(self, w: int, chunk: int) -> bool:
        return self._current[w] == chunk or chunk in self._queue[w]

    def _to_front(self, w: int, chunk: int) -> None:
        queue = self._queue[w]
        queue.pop(chunk, None)
        queue[chunk] = None

    def _advance(self, w: int) -> None:
        queue = self._queue[w]
        self._current[w] = current = queue.popitem()[0] if queue else None
        if current is not None:
            self._working[current] += 1

    def _drop(self, w: int, chunk: int) -> None:
        self._queue[w].pop(chunk, None)
        if self._current[w] == chunk:
            self._working[chunk] -= 1
            self._advance(w)

    def _clear(self, w: int) -> None:
        current = self._current[w]
        if current is not None:
            self._working[current] -= 1
        self._current[w] = None
        self._queue[w] = {}

    def _recount(self) -> None:
        worker_s, chunk_s = self._holders.client_s, self._holders.chunk_s
        live_s, done_s = self.live_w[worker_s], self.done_wc[worker_s, chunk_s]
        chunks = len(self.replicas)
        copies_c = np.bincount(chunk_s[done_s & live_s], minlength=chunks)
        self.replicas = copies_c.tolist()
        willing_s = done_s | self.hears_w[worker_s]
        deaf: list[int] = np.flatnonzero(self.live_w & ~self.hears_w).tolist()
        if deaf:
            queued_wc = np.zeros_like(self.done_wc)
            for w in deaf:
                queued_wc[w, list(self.remaining(w))] = True
            willing_s |= queued_wc[worker_s, chunk_s]
        able_s = self.able_wc[worker_s, chunk_s]
        self._reach = np.bincount(chunk_s[able_s & live_s & willing_s], minlength=chunks)
        self.aim = max(1, min(self._wanted_aim, self.most_copies()))
        reachable = self._reach > 0
        self.reachable = bool(reachable.any())
        self._uncovered = int(np.count_nonzero(reachable & (copies_c == 0)))
        enough_c = np.minimum(self.aim, self._reach)
        self._enough = enough_c.tolist()
        self._lacking = int(np.count_nonzero(copies_c < enough_c))
