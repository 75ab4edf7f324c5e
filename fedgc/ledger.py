"""Who has finished what, and who works on what now: the books of a round's working phase.

A worker w walks a queue of chunks; what it has finished counts as a copy while it is live. The ledger
mirrors each queue, so that it can say in constant time what a finished copy changes: which workers should
skip that chunk, and which chunk its finisher should take next (the least covered one it holds). The mirror
may be a moment behind a device; nothing but the choice of commands hangs on it.

    copies[c]   live workers that have finished chunk c
    reach[c]    live workers that have finished it or still will: those that hear commands can be asked,
                a deaf one (it hears nothing between its messages) does what stands on its queue
    aim         copies wanted of every chunk; capped by what the reachable chunks allow, unless it is fixed

Index w is a worker, c a chunk, as in the plan. May import: codes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedgc.codes import Holders, next_chunk

Bool = NDArray[np.bool_]


class Ledger:
    """Owns the arrays of one round; every method that changes them says what follows from it."""

    def __init__(self, holders: Holders, aim: int) -> None:
        workers, chunks = holders.holds.shape
        self.able_wc: Bool = holders.holds.copy()
        self.done_wc: Bool = np.zeros((workers, chunks), dtype=bool)
        self.live_w: Bool = np.zeros(workers, dtype=bool)
        self.hears_w: Bool = np.zeros(workers, dtype=bool)
        self.copies = [0] * chunks
        self.aim = aim
        self._wanted_aim = aim
        self._aim_is_fixed = False
        self._holders = holders
        self._queue: list[dict[int, None]] = [{} for _ in range(workers)]  # the next one last
        self._current: list[int | None] = [None] * workers
        self._working = [0] * chunks
        self._reach = np.zeros(chunks, dtype=np.int64)
        self._enough = [0] * chunks  # copies of each that are as many as are aimed for and can be had
        self.reachable = False  # whether any live worker has finished anything or can finish anything
        self._lacking = 0
        self._uncovered = 0

    # ---- what stands in the books

    @property
    def covered(self) -> bool:
        """Whether every chunk that can be had has as many copies as are aimed for."""
        return self._lacking == 0 and self.reachable

    @property
    def covered_once(self) -> bool:
        """Whether every chunk that can be had has a copy."""
        return self._uncovered == 0 and self.reachable

    @property
    def counting_wc(self) -> Bool:
        """The finished copies that count: those on live workers."""
        return self.done_wc & self.live_w[:, None]

    def most_copies(self) -> int:
        """Return how many copies of every reachable chunk the live workers could make."""
        reachable = self._reach[self._reach > 0]
        return int(reachable.min()) if reachable.size else 0

    def remaining(self, worker: int) -> tuple[int, ...]:
        """Return what the worker has still to do, what it works on now first."""
        now = self._current[worker]
        return (() if now is None else (now,)) + tuple(reversed(self._queue[worker]))

    @property
    def askable_wc(self) -> Bool:
        """The copies that can be had by asking for them."""
        return self.able_wc & (self.live_w & self.hears_w)[:, None]

    def coming(self) -> frozenset[int]:
        """Return the chunks that workers will finish who cannot be asked."""
        deaf: list[int] = np.flatnonzero(self.live_w & ~self.hears_w).tolist()
        return frozenset(chunk for worker in deaf for chunk in self.remaining(worker))

    def foreseen(self, ends_s: Sequence[float]) -> Bool:
        """Return what is finished at the stop, if worker w reports all of its queue after ends_s[w]."""
        done_wc = self.counting_wc
        copies = done_wc.sum(axis=0).tolist()
        lacking = sum(1 for c, reach in enumerate(self._reach) if reach and copies[c] < self.aim)
        live: list[int] = np.flatnonzero(self.live_w).tolist()
        for worker in sorted(live, key=lambda w: ends_s[w]):
            for chunk in self.remaining(worker):
                if not lacking:
                    return done_wc
                done_wc[worker, chunk] = True
                copies[chunk] += 1
                lacking -= copies[chunk] == self.aim
        return done_wc

    # ---- what changes them

    def joined(self, hears: Mapping[int, bool]) -> None:
        """Put workers on the books; what they had finished counts when they say so again."""
        for worker in hears:
            self._clear(worker)
        workers = list(hears)
        self.live_w[workers] = True
        self.hears_w[workers] = list(hears.values())
        self.done_wc[workers] = False
        self._recount()

    def queue(self, worker: int, order: Sequence[int], kept: Collection[int] = ()) -> tuple[int, ...]:
        """Let a worker begin; return what is worth doing: first what it kept, as that is free.

        Then comes the least covered chunk, so that those who begin together do not begin the same.
        """
        able_c, done_c, copies, aim = self.able_wc[worker], self.done_wc[worker], self.copies, self.aim
        free = [c for c in order if c in kept and able_c[c]] if kept else []
        rest = [c for c in order if copies[c] < aim and able_c[c] and not done_c[c] and c not in kept]
        best = next_chunk(copies, self._working, rest, aim)
        if best is not None:
            rest.remove(best)
            rest.insert(0, best)
        todo = (*free, *rest)
        self._queue[worker] = dict.fromkeys(reversed(todo))
        self._advance(worker)
        if not self.hears_w[worker]:
            self._recount()
        return todo

    def lost(self, worker: int) -> None:
        """A worker's copies stop counting."""
        self._clear(worker)
        self.live_w[worker] = False
        self._recount()

    def failed(self, worker: int, chunks: Iterable[int]) -> bool:
        """A worker cannot give these chunks in this round, finished or not; return whether that is news."""
        lost = [chunk for chunk in chunks if self.able_wc[worker, chunk]]
        if not lost:
            return False
        for chunk in lost:
            self.able_wc[worker, chunk] = False
            self.done_wc[worker, chunk] = False
            self._drop(worker, chunk)
        self._recount()
        return True

    def restored(self, worker: int, chunk: int) -> None:
        """A copy that was left out counts after all: a live worker has it."""
        self.able_wc[worker, chunk] = True
        self.done_wc[worker, chunk] = True
        self._recount()

    def finished(self, worker: int, chunk: int) -> None:
        """One more copy."""
        self.done_wc[worker, chunk] = True
        if not self.hears_w[worker]:  # it may have worked on what is not on its queue
            self._drop(worker, chunk)
            self._recount()
            return
        self.copies[chunk] = copies = self.copies[chunk] + 1
        self._uncovered -= copies == 1
        self._lacking -= copies == self._enough[chunk]
        self._drop(worker, chunk)

    def raise_aim(self, aim: int) -> None:
        """Aim for more copies from now on."""
        self._wanted_aim = aim
        self._recount()

    def fix_aim(self) -> None:
        """Aim for as many copies as now from now on, also where fewer can be had."""
        self._wanted_aim, self._aim_is_fixed = self.aim, True

    def freed(self, worker: int, chunks: Sequence[int]) -> None:
        """A worker has let these copies go; it could make them again."""
        self.done_wc[worker, list(chunks)] = False
        self._recount()

    # ---- what follows from it

    def skips(self, chunk: int) -> list[tuple[int, int | None]]:
        """Return who should leave this chunk if it has enough copies, and note that they do.

        Beside each stands what to take instead, where that is not the head of its queue.
        """
        if self.copies[chunk] < self.aim:
            return []
        current, queue, hears_w = self._current, self._queue, self.hears_w
        holders = self._holders.of_chunk[chunk]
        leave = [w for w in holders if (chunk in queue[w] or current[w] == chunk) and hears_w[w]]
        moved = [(w, self.steer(w) if current[w] == chunk else None) for w in leave]
        for worker in leave:
            self._drop(worker, chunk)
        return moved

    def steer(self, worker: int) -> int | None:
        """Return the chunk to take after the present one, where the worker's queue says another."""
        queue = self._queue[worker]
        if len(queue) < 2 or not self.hears_w[worker]:
            return None
        best = next_chunk(self.copies, self._working, reversed(queue), self.aim)
        return best if self._better(worker, best) else None

    def redirect(self, worker: int) -> tuple[int | None, int] | None:
        """Let a worker that has just begun a chunk do a less covered one first; return (chunk, instead).

        Its queue was ordered when it began the chunk before: by now another may be at this one, and nobody
        at that. Where it may stay at this one, return (None, what it is to take after it), as `steer` does.
        """
        begun, queue = self._current[worker], self._queue[worker]
        if not queue or not self.hears_w[worker]:
            return None
        best = next_chunk(self.copies, self._working, reversed(queue), self.aim)
        if best is None:
            return None
        if begun is None or self._coverage(best) >= self._coverage(begun) - 1:  # which counts this worker
            return (None, best) if self._better(worker, best) else None
        self._to_front(worker, best)
        self._drop(worker, begun)
        self._to_front(worker, begun)
        return begun, best

    def _better(self, worker: int, best: int | None) -> bool:
        """Put the best of a queue in front, if it is less covered than what stands there."""
        head = next(reversed(self._queue[worker]))
        if best is None or best == head or self._coverage(best) >= self._coverage(head):
            return False
        self._to_front(worker, best)
        return True

    def hand_out(self) -> list[tuple[int, int]]:
        """Return (worker, chunk) for every open chunk that a holder can be asked for, and queue it.

        A device puts what it is told to take in front, so the least covered chunk comes last.
        """
        given = []
        reachable: list[int] = np.flatnonzero(self._reach).tolist()
        lacking = sorted((c for c in reachable if self.copies[c] < self.aim), key=self._coverage)
        fit_wc = self.able_wc & ~self.done_wc
        asked: list[bool] = (self.live_w & self.hears_w).tolist()
        for chunk in reversed(lacking):
            for worker in self._holders.of_chunk[chunk]:
                if asked[worker] and not self._has(worker, chunk) and fit_wc[worker, chunk]:
                    self._to_front(worker, chunk)
                    given.append((worker, chunk))
        for worker in {worker for worker, _ in given}:
            if self._current[worker] is None:
                self._advance(worker)
        return given

    @property
    def blocks(self) -> int:
        """The most blocks at which every chunk that has a copy at all is exact."""
        made = [copies for copies in self.copies if copies]
        return min(self.aim, min(made, default=1))

    def wait_s(self, aim: int, chunk_s: Sequence[float]) -> float:
        """Estimate the time until every reachable chunk has `aim` copies; worker w needs chunk_s[w] a chunk.

        The work that is left, shared out by speed, and no less than the slowest single chunk needs.
        """
        lacking_c = np.maximum(0, np.minimum(aim, self._reach) - np.asarray(self.copies))
        speed_w = self.live_w / np.asarray(chunk_s)
        wanted = lacking_c > 0
        if not wanted.any():
            return 0.0
        worker_s, of_s = self._holders.worker_s, self._holders.chunk_s
        left_s = self.able_wc[worker_s, of_s] & self.live_w[worker_s] & ~self.done_wc[worker_s, of_s]
        fastest_c = np.full(len(lacking_c), np.inf)
        np.minimum.at(fastest_c, of_s[left_s], np.asarray(chunk_s)[worker_s[left_s]])
        return max(float(lacking_c.sum() / speed_w.sum()), float(fastest_c[wanted].max()))

    # ---- small print

    def _coverage(self, chunk: int) -> int:
        return self.copies[chunk] + self._working[chunk]

    def _has(self, worker: int, chunk: int) -> bool:
        return self._current[worker] == chunk or chunk in self._queue[worker]

    def _to_front(self, worker: int, chunk: int) -> None:
        queue = self._queue[worker]
        queue.pop(chunk, None)
        queue[chunk] = None

    def _advance(self, worker: int) -> None:
        queue = self._queue[worker]
        self._current[worker] = current = queue.popitem()[0] if queue else None
        if current is not None:
            self._working[current] += 1

    def _drop(self, worker: int, chunk: int) -> None:
        self._queue[worker].pop(chunk, None)
        if self._current[worker] == chunk:
            self._working[chunk] -= 1
            self._advance(worker)

    def _clear(self, worker: int) -> None:
        current = self._current[worker]
        if current is not None:
            self._working[current] -= 1
        self._current[worker] = None
        self._queue[worker] = {}

    def _recount(self) -> None:
        worker_s, chunk_s = self._holders.worker_s, self._holders.chunk_s
        live_s, done_s = self.live_w[worker_s], self.done_wc[worker_s, chunk_s]
        chunks = len(self.copies)
        copies_c = np.bincount(chunk_s[done_s & live_s], minlength=chunks)
        self.copies = copies_c.tolist()
        willing_s = done_s | self.hears_w[worker_s]
        deaf: list[int] = np.flatnonzero(self.live_w & ~self.hears_w).tolist()
        if deaf:
            queued_wc = np.zeros_like(self.done_wc)
            for worker in deaf:
                queued_wc[worker, list(self.remaining(worker))] = True
            willing_s |= queued_wc[worker_s, chunk_s]
        able_s = self.able_wc[worker_s, chunk_s]
        self._reach = np.bincount(chunk_s[able_s & live_s & willing_s], minlength=chunks)
        most = self._wanted_aim if self._aim_is_fixed else self.most_copies()
        self.aim = max(1, min(self._wanted_aim, most))
        reachable = self._reach > 0
        self.reachable = bool(reachable.any())
        self._uncovered = int(np.count_nonzero(reachable & (copies_c == 0)))
        enough_c = np.minimum(self.aim, self._reach)
        self._enough = enough_c.tolist()
        self._lacking = int(np.count_nonzero(copies_c < enough_c))
