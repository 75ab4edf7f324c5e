"""The ledger against a slow twin that recomputes everything from sets."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedgc.codes import Holders
from fedgc.ledger import Ledger


class Twin:
    """The same books, without a running count: sets and plain lists."""

    def __init__(self, holds: list[set[int]], chunks: int, aim: int) -> None:
        self.holds = holds
        self.chunks = range(chunks)
        self.workers = range(len(holds))
        self.able = [set(held) for held in holds]
        self.done: list[set[int]] = [set() for _ in holds]
        self.live: set[int] = set()
        self.hears: set[int] = set()
        self.wanted = aim
        self.lines: list[list[int]] = [[] for _ in holds]  # what is left to do
        self.busy = [False] * len(holds)  # whether the first of it has begun

    # ---- recomputed each time

    def copies(self, chunk: int) -> int:
        return sum(chunk in self.done[w] for w in self.live)

    def reach(self, chunk: int) -> int:
        """Who hears can be asked; who does not does what stands on its queue."""
        able = [w for w in self.live if chunk in self.able[w]]
        return sum(w in self.hears or chunk in self.done[w] or chunk in self.lines[w] for w in able)

    @property
    def reachable(self) -> list[int]:
        return [c for c in self.chunks if self.reach(c)]

    @property
    def most(self) -> int:
        return min((self.reach(c) for c in self.reachable), default=0)

    @property
    def aim(self) -> int:
        return max(1, min(self.wanted, self.most))

    def covered(self, copies: int) -> bool:
        return bool(self.reachable) and all(self.copies(c) >= copies for c in self.reachable)

    def coverage(self, chunk: int) -> int:
        begun = sum(self.busy[w] and self.lines[w][0] == chunk for w in self.workers)
        return self.copies(chunk) + begun

    def helps(self, worker: int, chunk: int) -> bool:
        mine = worker in self.live and chunk in self.able[worker] - self.done[worker]
        return mine and self.copies(chunk) < self.aim

    def waiting(self, worker: int) -> list[int]:
        return self.lines[worker][1:] if self.busy[worker] else self.lines[worker]

    def better(self, worker: int) -> int | None:
        """The least covered chunk that still lacks copies, where it lies behind one that is better off."""
        waiting = self.waiting(worker)
        lacking = [c for c in waiting if self.copies(c) < self.aim]
        if worker not in self.hears or len(waiting) < 2 or not lacking:
            return None
        best = min(lacking, key=self.coverage)
        return best if self.coverage(best) < self.coverage(waiting[0]) else None

    def begins(self, worker: int, order: list[int], kept: list[int]) -> list[int]:
        """What it kept, the least covered of the rest, and the rest as it stands."""
        free = [c for c in order if c in kept and c in self.able[worker]]
        rest = [c for c in order if c not in kept and self.helps(worker, c)]
        least = min(map(self.coverage, rest), default=0)
        first = next((c for c in rest if self.coverage(c) == least), None)
        return free + sorted(rest, key=lambda c: c != first)

    def exchange(self, worker: int) -> tuple[int, int] | None:
        """What it works on, and the least covered that it could do instead, where that is a gain."""
        lacking = [c for c in self.waiting(worker) if self.copies(c) < self.aim]
        if worker not in self.hears or not self.busy[worker] or not lacking:
            return None
        now, best = self.lines[worker][0], min(lacking, key=self.coverage)
        others = [w for w in self.workers if w != worker and self.busy[w] and self.lines[w][0] == now]
        return (now, best) if self.coverage(best) < self.copies(now) + len(others) else None

    # ---- changed

    def leave(self, worker: int, chunk: int) -> None:
        if self.busy[worker] and self.lines[worker][0] == chunk:
            self.busy[worker] = len(self.lines[worker]) > 1
        self.lines[worker] = [c for c in self.lines[worker] if c != chunk]

    def clear(self, worker: int) -> None:
        self.lines[worker], self.busy[worker] = [], False

    def to_front(self, worker: int, chunk: int) -> None:
        first = self.lines[worker][:1] if self.busy[worker] else []
        self.lines[worker] = [*first, chunk, *(c for c in self.waiting(worker) if c != chunk)]


@st.composite
def holdings(draw: st.DrawFn) -> tuple[list[set[int]], int]:
    """Draw who holds what; a chunk may have no holder, a worker no chunk."""
    chunks = draw(st.integers(1, 5))
    workers = draw(st.integers(1, 5))
    held = st.sets(st.integers(0, chunks - 1)) | st.just(set(range(chunks)))
    return draw(st.lists(held, min_size=workers, max_size=workers)), chunks


def array(holds: list[set[int]], chunks: int) -> np.ndarray:
    return np.array([[c in held for c in range(chunks)] for held in holds])


class Books(RuleBasedStateMachine):
    @initialize(
        holding=holdings(),
        aim=st.integers(1, 4),
        present=st.integers(0, 5),
        deaf=st.sets(st.integers(0, 4)),
    )
    def begin(self, holding: tuple[list[set[int]], int], aim: int, present: int, deaf: set[int]) -> None:
        holds, chunks = holding
        self.given_wc = array(holds, chunks)
        self.ledger, self.twin = Ledger(Holders.of(self.given_wc), aim), Twin(holds, chunks, aim)
        workers = list(self.twin.workers)[:present]
        self.join({worker: worker not in deaf for worker in workers})
        for worker in workers:
            self.queue(worker, list(self.twin.chunks), [])

    def worker(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(self.twin.workers))

    def chunk(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(self.twin.chunks))

    def join(self, hears: dict[int, bool]) -> None:
        self.ledger.joined(hears)
        for worker, listens in hears.items():
            self.twin.live.add(worker)
            self.twin.hears = self.twin.hears - {worker} | ({worker} if listens else set())
            self.twin.done[worker] = set()
            self.twin.clear(worker)

    def queue(self, worker: int, order: list[int], kept: list[int]) -> None:
        todo = self.twin.begins(worker, order, kept)
        assert list(self.ledger.queue(worker, order, kept)) == todo
        self.twin.lines[worker], self.twin.busy[worker] = todo, bool(todo)

    @rule(data=st.data(), together=st.integers(1, 3))
    def workers_join(self, data: st.DataObject, together: int) -> None:
        workers = sorted({self.worker(data) for _ in range(together)})
        self.join({worker: data.draw(st.booleans()) for worker in workers})
        for worker in workers:
            kept = data.draw(st.lists(st.sampled_from(self.twin.chunks), max_size=3))
            self.queue(worker, data.draw(st.permutations(self.twin.chunks)), kept)

    @rule(data=st.data())
    def a_worker_is_lost(self, data: st.DataObject) -> None:
        worker = self.worker(data)
        self.ledger.lost(worker)
        self.twin.live.discard(worker)
        self.twin.clear(worker)

    @rule(data=st.data(), named=st.integers(0, 3))
    def a_worker_fails(self, data: st.DataObject, named: int) -> None:
        worker = self.worker(data)
        chunks = [self.chunk(data) for _ in range(named)]
        self.ledger.failed(worker, chunks)
        for chunk in chunks:
            self.twin.able[worker].discard(chunk)
            self.twin.done[worker].discard(chunk)
            self.twin.leave(worker, chunk)

    def finish(self, worker: int, chunk: int) -> None:
        self.ledger.finished(worker, chunk)
        self.twin.done[worker].add(chunk)
        self.twin.leave(worker, chunk)
        self.skip(chunk)
        self.redirect(worker)
        self.steer(worker)

    @precondition(lambda self: any(self.twin.lines[w] for w in self.twin.workers))
    @rule(data=st.data())
    def a_worker_finishes_its_first(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([w for w in self.twin.workers if self.twin.lines[w]]))
        self.finish(worker, self.twin.lines[worker][0])

    @rule(data=st.data())
    def a_worker_finishes_another(self, data: st.DataObject) -> None:
        worker, chunk = self.worker(data), self.chunk(data)
        likely = worker in self.twin.hears or chunk in self.twin.lines[worker] or not self.twin.reach(chunk)
        able = worker in self.twin.live and chunk in self.twin.able[worker] - self.twin.done[worker]
        if likely and able:
            self.finish(worker, chunk)

    @rule(more=st.integers(0, 2))
    def aim_for_more(self, more: int) -> None:
        self.twin.wanted = self.twin.aim + more
        self.ledger.raise_aim(self.ledger.aim + more)

    def skip(self, chunk: int) -> None:
        twin = self.twin
        enough = twin.copies(chunk) >= twin.aim
        leave = [w for w in twin.workers if enough and w in twin.hears and chunk in twin.lines[w]]
        moved = []
        for worker in leave:
            at_it = twin.busy[worker] and twin.lines[worker][0] == chunk
            instead = twin.better(worker) if at_it else None
            moved.append((worker, instead))
            if instead is not None:
                twin.to_front(worker, instead)
        assert self.ledger.skips(chunk) == moved
        for worker in leave:
            twin.leave(worker, chunk)
        assert self.ledger.skips(chunk) == []

    def redirect(self, worker: int) -> None:
        wanted, best = self.twin.exchange(worker), self.twin.better(worker)
        instead = None if best is None else (None, best)
        assert self.ledger.redirect(worker) == (instead if wanted is None else wanted)
        if wanted is None and best is not None:
            self.twin.to_front(worker, best)
        if wanted is not None:
            begun, best = wanted
            rest = [c for c in self.twin.lines[worker] if c not in wanted]
            self.twin.lines[worker] = [best, begun, *rest]

    def steer(self, worker: int) -> None:
        wanted = self.twin.better(worker)
        assert self.ledger.steer(worker) == wanted
        if wanted is not None:
            self.twin.to_front(worker, wanted)

    @rule()
    def hand_out(self) -> None:
        before = {c: self.twin.coverage(c) for c in self.twin.chunks}
        idle = {
            (w, c)
            for w in self.twin.workers
            for c in self.twin.chunks
            if w in self.twin.hears and self.twin.helps(w, c) and c not in self.twin.lines[w]
        }
        given = self.ledger.hand_out()
        assert set(given) == idle
        assert len(given) == len(idle)
        told = [before[c] for _, c in given]
        assert told == sorted(told, reverse=True), "the least covered comes last, and so to the front"
        for worker, chunk in given:
            self.twin.to_front(worker, chunk)
        for worker, _ in given:
            self.twin.busy[worker] = True
        assert self.ledger.hand_out() == []

    @invariant()
    def books_agree(self) -> None:
        twin, ledger = self.twin, self.ledger
        assert ledger.copies == [twin.copies(c) for c in twin.chunks]
        assert ledger.aim == twin.aim
        assert ledger.most_copies() == twin.most
        assert ledger.reachable == bool(twin.reachable)
        assert ledger.covered == twin.covered(twin.aim)
        assert ledger.covered_once == twin.covered(1)
        made = [twin.copies(c) for c in twin.chunks if twin.copies(c)]
        assert ledger.blocks == (min(twin.aim, *made) if made else 1)
        counting = [twin.done[w] if w in twin.live else set() for w in twin.workers]
        assert ledger.counting_wc.tolist() == array(counting, len(twin.chunks)).tolist()

    @invariant()
    def queues_agree(self) -> None:
        for worker in self.twin.workers:
            assert list(self.ledger.remaining(worker)) == self.twin.lines[worker]
        deaf = self.twin.live - self.twin.hears
        assert self.ledger.coming() == {c for w in deaf for c in self.twin.lines[w]}
        askable = [
            self.twin.able[w] if w in self.twin.live & self.twin.hears else set() for w in self.twin.workers
        ]
        assert self.ledger.askable_wc.tolist() == array(askable, len(self.twin.chunks)).tolist()

    @invariant()
    def the_placement_it_was_given_is_left_alone(self) -> None:
        assert self.given_wc.tolist() == array(self.twin.holds, len(self.twin.chunks)).tolist()


Books.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestBooks = Books.TestCase


def slow_wait_s(twin: Twin, aim: int, chunk_s: list[float]) -> float:
    """Chunks that lack, at the joint speed of those who are there; never below one chunk's fastest maker."""
    lacking = {c: min(aim, twin.reach(c)) - twin.copies(c) for c in twin.chunks}
    lacking = {c: n for c, n in lacking.items() if n > 0}
    if not lacking:
        return 0.0
    joint = sum(1 / chunk_s[w] for w in twin.live)
    makers = {c: [w for w in twin.live if c in twin.able[w] - twin.done[w]] for c in lacking}
    return max(sum(lacking.values()) / joint, *(min(chunk_s[w] for w in makers[c]) for c in lacking))


@given(
    holding=holdings(),
    aim=st.integers(1, 5),
    seconds=st.lists(st.floats(0.01, 100), min_size=5, max_size=5),
    data=st.data(),
)
def test_the_wait_is_the_open_work_shared_out_by_speed(holding, aim, seconds, data):
    holds, chunks = holding
    ledger, twin = Ledger(Holders.of(array(holds, chunks)), 1), Twin(holds, chunks, 1)
    live = data.draw(st.sets(st.sampled_from(twin.workers), min_size=1))
    ledger.joined(dict.fromkeys(live, True))
    twin.live = twin.hears = live
    for worker in sorted(live):
        twin.done[worker] = data.draw(st.sets(st.sampled_from(twin.chunks))) & holds[worker]
        for chunk in twin.done[worker]:
            ledger.finished(worker, chunk)
    chunk_s = seconds[: len(holds)]
    assert ledger.wait_s(aim, chunk_s) == pytest.approx(slow_wait_s(twin, aim, chunk_s))


@given(holding=holdings(), aim=st.integers(1, 4), listens=st.lists(st.booleans(), min_size=5, max_size=5))
def test_walking_every_queue_to_its_end_covers_all_that_is_aimed_for(holding, aim, listens):
    """Nobody is left idle while a copy lacks that somebody could make."""
    holds, chunks = holding
    assume(any(holds))
    ledger = Ledger(Holders.of(array(holds, chunks)), aim)
    ledger.joined({worker: listens[worker] for worker in range(len(holds))})
    for worker in range(len(holds)):
        ledger.queue(worker, range(chunks))
    while not ledger.covered:
        busy = [w for w in range(len(holds)) if ledger.remaining(w)]
        assert busy
        for worker in busy:
            if ledger.remaining(worker):
                chunk = ledger.remaining(worker)[0]
                ledger.finished(worker, chunk)
                ledger.skips(chunk)
                ledger.steer(worker)
    assert all(
        copies >= ledger.aim for chunk, copies in enumerate(ledger.copies) if any(chunk in h for h in holds)
    )


def test_those_who_begin_together_begin_with_different_chunks():
    ledger = Ledger(Holders.of(np.ones((3, 3), dtype=bool)), 1)
    ledger.joined(dict.fromkeys([0, 1, 2], True))
    assert ledger.queue(0, (2, 1, 0)) == (2, 1, 0)
    assert ledger.queue(1, (2, 0, 1)) == (0, 2, 1)
    assert ledger.queue(2, (0, 2, 1)) == (1, 0, 2)


def test_who_begins_what_another_is_at_does_first_what_nobody_does():
    for asked_before in (False, True):
        ledger = Ledger(Holders.of(np.ones((2, 4), dtype=bool)), 1)
        ledger.joined(dict.fromkeys([0, 1], True))
        ledger.queue(0, (0, 1, 2))
        ledger.queue(1, (1, 2, 3))
        if asked_before:
            assert ledger.redirect(0) == (None, 2), "nobody else is at chunk 0, but somebody at chunk 1"
        ledger.finished(0, 0)
        assert ledger.redirect(0) == (None if asked_before else (1, 2))
        assert ledger.remaining(0) == (2, 1)
        assert ledger.redirect(0) is None


def test_a_copy_comes_back_only_when_the_device_says_so_again():
    ledger = Ledger(Holders.of(np.ones((2, 2), dtype=bool)), 1)
    ledger.joined(dict.fromkeys([0, 1], True))
    ledger.finished(0, 1)
    ledger.lost(0)
    assert ledger.copies == [0, 0]
    ledger.joined(dict.fromkeys([0], True))
    assert ledger.copies == [0, 0]
    assert ledger.queue(0, (0, 1), kept=(1,)) == (1, 0), "what was kept is free, and comes first"
    ledger.finished(0, 1)
    assert ledger.copies == [0, 1]


def test_a_kept_copy_is_worth_telling_even_where_there_are_enough():
    ledger = Ledger(Holders.of(np.ones((2, 2), dtype=bool)), 1)
    ledger.joined(dict.fromkeys([0, 1], True))
    ledger.finished(1, 0)
    assert ledger.queue(0, (0, 1), kept=(0,)) == (0, 1)


def test_what_failed_cannot_come_back_in_the_same_round():
    ledger = Ledger(Holders.of(np.ones((1, 2), dtype=bool)), 1)
    ledger.joined(dict.fromkeys([0], True))
    ledger.failed(0, [1])
    ledger.joined(dict.fromkeys([0], True))
    assert ledger.queue(0, (0, 1), kept=(1,)) == (0,)
    ledger.finished(0, 0)
    assert ledger.covered


def test_blocks_are_cut_to_the_copies_that_every_made_chunk_has():
    ledger = Ledger(Holders.of(np.ones((3, 3), dtype=bool)), 3)
    ledger.joined(dict.fromkeys([0, 1, 2], True))
    assert ledger.blocks == 1
    for worker, chunk in ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1)):
        ledger.finished(worker, chunk)
    assert ledger.blocks == 2, "chunk 2 has no copy at any number of blocks"


def test_nobody_there_means_nothing_is_covered():
    ledger = Ledger(Holders.of(np.ones((2, 2), dtype=bool)), 2)
    assert not ledger.reachable
    assert not ledger.covered
    assert not ledger.covered_once
    assert ledger.wait_s(1, [1.0, math.pi]) == 0.0


def test_what_is_handed_out_is_begun_with_what_is_covered_least():
    ledger = Ledger(Holders.of(np.ones((3, 3), dtype=bool)), 2)
    ledger.joined(dict.fromkeys([0, 1, 2], True))
    ledger.finished(0, 0)
    given = ledger.hand_out()
    assert [chunk for worker, chunk in given if worker == 2] == [0, 2, 1]
    assert ledger.remaining(2) == (1, 2, 0)


def test_an_idle_worker_begins_what_it_is_handed_and_others_leave_it_for_last():
    ledger = Ledger(Holders.of(np.array([[True, True, True], [True, False, False]])), 1)
    ledger.joined(dict.fromkeys([0, 1], True))
    ledger.queue(0, (2, 0, 1))
    assert ledger.hand_out() == [(1, 0)]
    assert ledger.steer(0) == 1
    assert ledger.remaining(0) == (2, 1, 0)


def test_a_deaf_worker_is_neither_asked_nor_told_and_does_what_stands_on_its_queue():
    ledger = Ledger(Holders.of(np.ones((2, 2), dtype=bool)), 2)
    ledger.joined({0: True, 1: False})
    ledger.queue(0, (0, 1))
    ledger.queue(1, (0,))
    assert ledger.coming() == {0}
    assert ledger.aim == 1, "of chunk 1 there will be one copy"
    ledger.finished(0, 0)
    assert ledger.skips(0) == []
    assert ledger.remaining(1) == (0,)
    ledger.lost(0)
    assert ledger.hand_out() == []
    assert ledger.reachable
    ledger.finished(1, 0)
    assert ledger.covered, "nobody is left who would do chunk 1"


def test_a_fixed_aim_waits_for_no_more_copies_than_there_can_be():
    ledger = Ledger(Holders.of(np.ones((3, 2), dtype=bool)), 2)
    ledger.joined(dict.fromkeys(range(3), True))
    ledger.fix_aim()
    for worker in (0, 1):
        ledger.failed(worker, [1])
    assert (ledger.aim, ledger.most_copies()) == (2, 1)
    for worker, chunk in ((0, 0), (2, 1), (1, 0)):
        assert not ledger.covered
        ledger.finished(worker, chunk)
    assert ledger.covered


def test_a_copy_that_was_let_go_counts_no_more_and_may_be_made_again():
    ledger = Ledger(Holders.of(np.ones((2, 2), dtype=bool)), 2)
    ledger.joined(dict.fromkeys(range(2), True))
    for worker in range(2):
        for chunk in range(2):
            ledger.finished(worker, chunk)
    assert ledger.covered
    ledger.freed(0, [1])
    assert ledger.copies == [2, 1]
    assert ledger.hand_out() == [(0, 1)]
