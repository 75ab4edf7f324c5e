"""Test the replica tracker against a slow reference that recomputes everything from sets."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedgc.codes import Holders
from fedgc.round.coded.replicas import ReplicaTracker


class Twin:
    """Slow reference: the same state as sets and plain lists."""

    def __init__(self, holds: list[set[int]], chunks: int, aim: int) -> None:
        self.holds = holds
        self.chunks = range(chunks)
        self.clients_w = range(len(holds))
        self.able = [set(held) for held in holds]
        self.done: list[set[int]] = [set() for _ in holds]
        self.live: set[int] = set()
        self.hears: set[int] = set()
        self.wanted = aim
        self.lines: list[list[int]] = [[] for _ in holds]  # what is left to do
        self.busy = [False] * len(holds)  # whether the first of it has begun

    # ---- recomputed each time

    def replicas(self, chunk: int) -> int:
        return sum(chunk in self.done[w] for w in self.live)

    def reach(self, chunk: int) -> int:
        """A listening client takes commands; a deaf one works through its queue."""
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

    def covered(self, replicas: int) -> bool:
        return bool(self.reachable) and all(self.replicas(c) >= replicas for c in self.reachable)

    def coverage(self, chunk: int) -> int:
        begun = sum(self.busy[w] and self.lines[w][0] == chunk for w in self.clients_w)
        return self.replicas(chunk) + begun

    def helps(self, w: int, chunk: int) -> bool:
        mine = w in self.live and chunk in self.able[w] - self.done[w]
        return mine and self.replicas(chunk) < self.aim

    def waiting(self, w: int) -> list[int]:
        return self.lines[w][1:] if self.busy[w] else self.lines[w]

    def better(self, w: int) -> int | None:
        """The least covered chunk that still lacks replicas and is queued behind a better covered one."""
        waiting = self.waiting(w)
        lacking = [c for c in waiting if self.replicas(c) < self.aim]
        if w not in self.hears or len(waiting) < 2 or not lacking:
            return None
        best = min(lacking, key=self.coverage)
        return best if self.coverage(best) < self.coverage(waiting[0]) else None

    def begins(self, w: int, order: list[int], kept: list[int]) -> list[int]:
        """The kept chunks, the least covered of the rest, and the rest in order."""
        free = [c for c in order if c in kept and c in self.able[w]]
        rest = [c for c in order if c not in kept and self.helps(w, c)]
        least = min(map(self.coverage, rest), default=0)
        first = next((c for c in rest if self.coverage(c) == least), None)
        return free + sorted(rest, key=lambda c: c != first)

    def exchange(self, w: int) -> tuple[int, int] | None:
        """The current chunk, and the least covered alternative if it is better."""
        lacking = [c for c in self.waiting(w) if self.replicas(c) < self.aim]
        if w not in self.hears or not self.busy[w] or not lacking:
            return None
        now, best = self.lines[w][0], min(lacking, key=self.coverage)
        others = [v for v in self.clients_w if v != w and self.busy[v] and self.lines[v][0] == now]
        return (now, best) if self.coverage(best) < self.replicas(now) + len(others) else None

    # ---- changed

    def leave(self, w: int, chunk: int) -> None:
        if self.busy[w] and self.lines[w][0] == chunk:
            self.busy[w] = len(self.lines[w]) > 1
        self.lines[w] = [c for c in self.lines[w] if c != chunk]

    def clear(self, w: int) -> None:
        self.lines[w], self.busy[w] = [], False

    def to_front(self, w: int, chunk: int) -> None:
        first = self.lines[w][:1] if self.busy[w] else []
        self.lines[w] = [*first, chunk, *(c for c in self.waiting(w) if c != chunk)]


@st.composite
def holdings(draw: st.DrawFn) -> tuple[list[set[int]], int]:
    """Draw the chunks of each client; a chunk may have no holder, a client no chunk."""
    chunks = draw(st.integers(1, 5))
    clients_w = draw(st.integers(1, 5))
    held = st.sets(st.integers(0, chunks - 1)) | st.just(set(range(chunks)))
    return draw(st.lists(held, min_size=clients_w, max_size=clients_w)), chunks


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
        self.tracker, self.twin = ReplicaTracker(Holders.of(self.given_wc), aim), Twin(holds, chunks, aim)
        clients_w = list(self.twin.clients_w)[:present]
        self.join({w: w not in deaf for w in clients_w})
        for w in clients_w:
            self.queue(w, list(self.twin.chunks), [])

    def w(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(self.twin.clients_w))

    def chunk(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(self.twin.chunks))

    def join(self, hears: dict[int, bool]) -> None:
        self.tracker.joined(hears)
        for w, listens in hears.items():
            self.twin.live.add(w)
            self.twin.hears = self.twin.hears - {w} | ({w} if listens else set())
            self.twin.done[w] = set()
            self.twin.clear(w)

    def queue(self, w: int, order: list[int], kept: list[int]) -> None:
        todo = self.twin.begins(w, order, kept)
        assert list(self.tracker.queue(w, order, kept)) == todo
        self.twin.lines[w], self.twin.busy[w] = todo, bool(todo)

    @rule(data=st.data(), together=st.integers(1, 3))
    def workers_join(self, data: st.DataObject, together: int) -> None:
        clients_w = sorted({self.w(data) for _ in range(together)})
        self.join({w: data.draw(st.booleans()) for w in clients_w})
        for w in clients_w:
            kept = data.draw(st.lists(st.sampled_from(self.twin.chunks), max_size=3))
            self.queue(w, data.draw(st.permutations(self.twin.chunks)), kept)

    @rule(data=st.data())
    def a_worker_is_lost(self, data: st.DataObject) -> None:
        w = self.w(data)
        self.tracker.lost(w)
        self.twin.live.discard(w)
        self.twin.clear(w)

    @rule(data=st.data(), named=st.integers(0, 3))
    def a_worker_fails(self, data: st.DataObject, named: int) -> None:
        w = self.w(data)
        chunks = [self.chunk(data) for _ in range(named)]
        self.tracker.failed(w, chunks)
        for chunk in chunks:
            self.twin.able[w].discard(chunk)
            self.twin.done[w].discard(chunk)
            self.twin.leave(w, chunk)

    def finish(self, w: int, chunk: int) -> None:
        self.tracker.finished(w, chunk)
        self.twin.done[w].add(chunk)
        self.twin.leave(w, chunk)
        self.skip(chunk)
        self.redirect(w)
        self.steer(w)

    @precondition(lambda self: any(self.twin.lines[w] for w in self.twin.clients_w))
    @rule(data=st.data())
    def a_worker_finishes_its_first(self, data: st.DataObject) -> None:
        w = data.draw(st.sampled_from([v for v in self.twin.clients_w if self.twin.lines[v]]))
        self.finish(w, self.twin.lines[w][0])

    @rule(data=st.data())
    def a_worker_finishes_another(self, data: st.DataObject) -> None:
        w, chunk = self.w(data), self.chunk(data)
        likely = w in self.twin.hears or chunk in self.twin.lines[w] or not self.twin.reach(chunk)
        able = w in self.twin.live and chunk in self.twin.able[w] - self.twin.done[w]
        if likely and able:
            self.finish(w, chunk)

    @rule(more=st.integers(0, 2))
    def aim_for_more(self, more: int) -> None:
        self.twin.wanted = self.twin.aim + more
        self.tracker.raise_aim(self.tracker.aim + more)

    def skip(self, chunk: int) -> None:
        twin = self.twin
        enough = twin.replicas(chunk) >= twin.aim
        leave = [w for w in twin.clients_w if enough and w in twin.hears and chunk in twin.lines[w]]
        moved = []
        for w in leave:
            at_it = twin.busy[w] and twin.lines[w][0] == chunk
            instead = twin.better(w) if at_it else None
            moved.append((w, instead))
            if instead is not None:
                twin.to_front(w, instead)
        assert self.tracker.skips(chunk) == moved
        for w in leave:
            twin.leave(w, chunk)
        assert self.tracker.skips(chunk) == []

    def redirect(self, w: int) -> None:
        wanted, best = self.twin.exchange(w), self.twin.better(w)
        instead = None if best is None else (None, best)
        assert self.tracker.redirect(w) == (instead if wanted is None else wanted)
        if wanted is None and best is not None:
            self.twin.to_front(w, best)
        if wanted is not None:
            begun, best = wanted
            rest = [c for c in self.twin.lines[w] if c not in wanted]
            self.twin.lines[w] = [best, begun, *rest]

    def steer(self, w: int) -> None:
        wanted = self.twin.better(w)
        assert self.tracker.steer(w) == wanted
        if wanted is not None:
            self.twin.to_front(w, wanted)

    @rule()
    def hand_out(self) -> None:
        before = {c: self.twin.coverage(c) for c in self.twin.chunks}
        idle = {
            (w, c)
            for w in self.twin.clients_w
            for c in self.twin.chunks
            if w in self.twin.hears and self.twin.helps(w, c) and c not in self.twin.lines[w]
        }
        given = self.tracker.hand_out()
        assert set(given) == idle
        assert len(given) == len(idle)
        told = [before[c] for _, c in given]
        assert told == sorted(told, reverse=True), "the least covered comes last, and so to the front"
        for w, chunk in given:
            self.twin.to_front(w, chunk)
        for w, _ in given:
            self.twin.busy[w] = True
        assert self.tracker.hand_out() == []

    @invariant()
    def books_agree(self) -> None:
        twin, tracker = self.twin, self.tracker
        assert tracker.replicas == [twin.replicas(c) for c in twin.chunks]
        assert tracker.aim == twin.aim
        assert tracker.most_copies() == twin.most
        assert tracker.reachable == bool(twin.reachable)
        assert tracker.covered == twin.covered(twin.aim)
        assert tracker.covered_once == twin.covered(1)
        made = [twin.replicas(c) for c in twin.chunks if twin.replicas(c)]
        assert tracker.blocks == (min(twin.aim, *made) if made else 1)
        counting = [twin.done[w] if w in twin.live else set() for w in twin.clients_w]
        assert tracker.counting_wc.tolist() == array(counting, len(twin.chunks)).tolist()

    @invariant()
    def queues_agree(self) -> None:
        for w in self.twin.clients_w:
            assert list(self.tracker.remaining(w)) == self.twin.lines[w]
        deaf = self.twin.live - self.twin.hears
        assert self.tracker.coming() == {c for w in deaf for c in self.twin.lines[w]}
        askable = [
            self.twin.able[w] if w in self.twin.live & self.twin.hears else set() for w in self.twin.clients_w
        ]
        assert self.tracker.askable_wc.tolist() == array(askable, len(self.twin.chunks)).tolist()

    @invariant()
    def the_placement_it_was_given_is_left_alone(self) -> None:
        assert self.given_wc.tolist() == array(self.twin.holds, len(self.twin.chunks)).tolist()


Books.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestBooks = Books.TestCase


def slow_wait_s(twin: Twin, aim: int, chunk_s: list[float]) -> float:
    """Chunks that lack, at the joint speed of those who are there; never below one chunk's fastest maker."""
    lacking = {c: min(aim, twin.reach(c)) - twin.replicas(c) for c in twin.chunks}
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
def test_wait_is_open_work_divided_by_speed(holding, aim, seconds, data):
    holds, chunks = holding
    tracker, twin = ReplicaTracker(Holders.of(array(holds, chunks)), 1), Twin(holds, chunks, 1)
    live = data.draw(st.sets(st.sampled_from(twin.clients_w), min_size=1))
    tracker.joined(dict.fromkeys(live, True))
    twin.live = twin.hears = live
    for w in sorted(live):
        twin.done[w] = data.draw(st.sets(st.sampled_from(twin.chunks))) & holds[w]
        for chunk in twin.done[w]:
            tracker.finished(w, chunk)
    chunk_s = seconds[: len(holds)]
    assert tracker.wait_s(aim, chunk_s) == pytest.approx(slow_wait_s(twin, aim, chunk_s))


@given(holding=holdings(), aim=st.integers(1, 4), listens=st.lists(st.booleans(), min_size=5, max_size=5))
def test_complete_queues_cover_target(holding, aim, listens):
    """No worker is idle while it could make a missing replica."""
    holds, chunks = holding
    assume(any(holds))
    tracker = ReplicaTracker(Holders.of(array(holds, chunks)), aim)
    tracker.joined({w: listens[w] for w in range(len(holds))})
    for w in range(len(holds)):
        tracker.queue(w, range(chunks))
    while not tracker.covered:
        busy = [v for v in range(len(holds)) if tracker.remaining(v)]
        assert busy
        for w in busy:
            if tracker.remaining(w):
                chunk = tracker.remaining(w)[0]
                tracker.finished(w, chunk)
                tracker.skips(chunk)
                tracker.steer(w)
    assert all(
        replicas >= tracker.aim
        for chunk, replicas in enumerate(tracker.replicas)
        if any(chunk in h for h in holds)
    )


def test_simultaneous_clients_begin_with_different_chunks():
    tracker = ReplicaTracker(Holders.of(np.ones((3, 3), dtype=bool)), 1)
    tracker.joined(dict.fromkeys([0, 1, 2], True))
    assert tracker.queue(0, (2, 1, 0)) == (2, 1, 0)
    assert tracker.queue(1, (2, 0, 1)) == (0, 2, 1)
    assert tracker.queue(2, (0, 2, 1)) == (1, 0, 2)


def test_client_begins_with_chunks_that_have_no_client():
    for asked_before in (False, True):
        tracker = ReplicaTracker(Holders.of(np.ones((2, 4), dtype=bool)), 1)
        tracker.joined(dict.fromkeys([0, 1], True))
        tracker.queue(0, (0, 1, 2))
        tracker.queue(1, (1, 2, 3))
        if asked_before:
            assert tracker.redirect(0) == (None, 2), "nobody else is at chunk 0, but somebody at chunk 1"
        tracker.finished(0, 0)
        assert tracker.redirect(0) == (None if asked_before else (1, 2))
        assert tracker.remaining(0) == (2, 1)
        assert tracker.redirect(0) is None


def test_replica_counts_again_only_when_client_reports_it_again():
    tracker = ReplicaTracker(Holders.of(np.ones((2, 2), dtype=bool)), 1)
    tracker.joined(dict.fromkeys([0, 1], True))
    tracker.finished(0, 1)
    tracker.lost(0)
    assert tracker.replicas == [0, 0]
    tracker.joined(dict.fromkeys([0], True))
    assert tracker.replicas == [0, 0]
    assert tracker.queue(0, (0, 1), kept=(1,)) == (1, 0), "what was kept is free, and comes first"
    tracker.finished(0, 1)
    assert tracker.replicas == [0, 1]


def test_kept_replica_is_reported_despite_enough_replicas():
    tracker = ReplicaTracker(Holders.of(np.ones((2, 2), dtype=bool)), 1)
    tracker.joined(dict.fromkeys([0, 1], True))
    tracker.finished(1, 0)
    assert tracker.queue(0, (0, 1), kept=(0,)) == (0, 1)


def test_failed_chunk_cannot_return_in_same_round():
    tracker = ReplicaTracker(Holders.of(np.ones((1, 2), dtype=bool)), 1)
    tracker.joined(dict.fromkeys([0], True))
    tracker.failed(0, [1])
    tracker.joined(dict.fromkeys([0], True))
    assert tracker.queue(0, (0, 1), kept=(1,)) == (0,)
    tracker.finished(0, 0)
    assert tracker.covered


def test_blocks_are_limited_by_replicas_of_finished_chunks():
    tracker = ReplicaTracker(Holders.of(np.ones((3, 3), dtype=bool)), 3)
    tracker.joined(dict.fromkeys([0, 1, 2], True))
    assert tracker.blocks == 1
    for w, chunk in ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1)):
        tracker.finished(w, chunk)
    assert tracker.blocks == 2, "chunk 2 has no copy at any number of blocks"


def test_no_client_covers_nothing():
    tracker = ReplicaTracker(Holders.of(np.ones((2, 2), dtype=bool)), 2)
    assert not tracker.reachable
    assert not tracker.covered
    assert not tracker.covered_once
    assert tracker.wait_s(1, [1.0, math.pi]) == 0.0


def test_assigned_chunks_begin_with_least_covered():
    tracker = ReplicaTracker(Holders.of(np.ones((3, 3), dtype=bool)), 2)
    tracker.joined(dict.fromkeys([0, 1, 2], True))
    tracker.finished(0, 0)
    given = tracker.hand_out()
    assert [chunk for w, chunk in given if w == 2] == [0, 2, 1]
    assert tracker.remaining(2) == (1, 2, 0)


def test_idle_client_begins_assigned_chunk_others_do_last():
    tracker = ReplicaTracker(Holders.of(np.array([[True, True, True], [True, False, False]])), 1)
    tracker.joined(dict.fromkeys([0, 1], True))
    tracker.queue(0, (2, 0, 1))
    assert tracker.hand_out() == [(1, 0)]
    assert tracker.steer(0) == 1
    assert tracker.remaining(0) == (2, 1, 0)


def test_deaf_client_gets_no_commands_and_follows_own_queue():
    tracker = ReplicaTracker(Holders.of(np.ones((2, 2), dtype=bool)), 2)
    tracker.joined({0: True, 1: False})
    tracker.queue(0, (0, 1))
    tracker.queue(1, (0,))
    assert tracker.coming() == {0}
    assert tracker.aim == 1, "of chunk 1 there will be one copy"
    tracker.finished(0, 0)
    assert tracker.skips(0) == []
    assert tracker.remaining(1) == (0,)
    tracker.lost(0)
    assert tracker.hand_out() == []
    assert tracker.reachable
    tracker.finished(1, 0)
    assert tracker.covered, "nobody is left who would do chunk 1"
