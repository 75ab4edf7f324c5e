"""Test the coded sum: every term has one sender at any time, through losses and repairs."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchmarks.codewords import encode
from fedgc.codes import FrameCode
from fedgc.config import RunConfig
from fedgc.history import Speeds
from fedgc.messages import Add, Refuse, Repair, Reveal
from fedgc.round.coded.coded_sum import CodedSum, Costs
from fedgc.round.plan import Chunk, Fleet, Plan, make_plan

SIZE = 7  # divisible by no number of blocks but one
ROUND = 3
Term = tuple[int, int]


def planned(clients: int, chunks: int, replicas: int) -> Plan:
    """A plan whose chunks have other numbers than indices."""
    table = tuple(Chunk(number, f"chunk {number}", 10) for number in range(2 * chunks))
    every = frozenset(range(1, 2 * chunks, 2))
    fleet = Fleet({f"client {w}": every for w in range(clients)}, table, SIZE)
    return make_plan(fleet, Speeds(), RunConfig(replicas=replicas, work="coded"), steps=1)


class Sum:
    """The driver's side: real updates, real codewords, a running sum."""

    def __init__(self, plan: Plan, blocks: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.plan = plan
        self.updates = {chunk.number: rng.normal(size=SIZE) for chunk in plan.chunks}
        self.sums = np.zeros((blocks, -(-SIZE // blocks)))
        self.requests: dict[tuple[int, int], Reveal | Repair] = {}

    def asked(self, request: Reveal | Repair) -> tuple[tuple[int, int], set[Term]]:
        """Note a request; return who owes it, and its terms."""
        assert request.round == ROUND
        assert request.mix is not None
        key = (self.plan.clients.index(request.client), request.attempt)
        self.requests[key] = request
        column = request.column if isinstance(request, Repair) else request.client
        index = [chunk.number for chunk in self.plan.chunks].index
        return key, {(self.plan.clients.index(column), index(number)) for number in request.mix.chunks}

    def add(self, key: tuple[int, int], add: Add) -> None:
        mix = self.requests[key].mix
        assert mix is not None
        assert (add.client, add.round, add.attempt) == (self.plan.clients[key[0]], ROUND, key[1])
        self.sums += np.outer(add.weights, encode(mix.chunks, mix.matrix, self.updates))

    @property
    def total(self) -> np.ndarray:
        return self.sums.reshape(-1)[:SIZE]

    @property
    def plain(self) -> np.ndarray:
        return np.sum(list(self.updates.values()), axis=0)


class Places(RuleBasedStateMachine):
    @initialize(
        clients=st.integers(1, 5),
        chunks=st.integers(1, 5),
        replicas=st.integers(1, 4),
        blocks=st.integers(1, 3),
        full=st.booleans(),
        data=st.data(),
    )
    def begin(
        self, clients: int, chunks: int, replicas: int, blocks: int, full: bool, data: st.DataObject
    ) -> None:
        self.plan = planned(clients, chunks, replicas)
        blocks = min(blocks, self.plan.placement.replicas)
        self.holds = self.plan.placement.holds
        self.done = self.holds.copy()
        if not full:
            self.done &= self.some(data, self.done.size).reshape(self.done.shape)
        if not self.done.any():
            self.done = self.holds.copy()
        self.able = self.holds.copy()
        self.solution = FrameCode(self.plan.placement, blocks).solve(self.done)
        self.sum, self.driver = CodedSum(self.plan, self.solution, ROUND), Sum(self.plan, blocks)
        self.terms = {(w, c) for w in self.solution.needed for c in self.solution.coefficients(w).chunks}
        self.owed: dict[tuple[int, int], set[Term]] = {}
        self.open: set[Term] = set()
        self.added: set[Term] = set()
        self.missing: set[Term] = set()
        self.told: set[tuple[int, int]] = set()
        self.taken: list[tuple[int, int]] = []
        self.doubted: dict[int, set[Term]] = {}
        self.overtaken: set[tuple[int, int]] = set()
        for request in self.sum.needed():
            assert isinstance(request, Reveal)
            assert request.attempt == 0
            key, terms = self.driver.asked(request)
            self.owed[key] = terms

    def some(self, data: st.DataObject, size: int) -> np.ndarray:
        return np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))

    def w(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.plan.clients) - 1))

    @precondition(lambda self: self.owed)
    @rule(data=st.data())
    def a_codeword_comes(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.owed)))
        answer = self.sum.accept(*key)
        assert isinstance(answer, Add)
        self.driver.add(key, answer)
        self.added |= self.owed.pop(key)
        self.taken.append(key)

    @rule(data=st.data(), attempt=st.integers(0, 9))
    def a_codeword_comes_that_nobody_waits_for(self, data: st.DataObject, attempt: int) -> None:
        key = data.draw(st.sampled_from([*self.taken, (self.w(data), attempt)]))
        if key not in self.owed and key not in self.overtaken:
            assert f"attempt {key[1]} is not owed" in str(self.sum.accept(*key))

    @precondition(lambda self: self.owed)
    @rule(data=st.data())
    def a_codeword_is_late(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.owed)))
        self.sum.doubt(key)
        if key[1] == 0:
            self.doubted[key[0]] = self.owed[key]
        self.open |= self.owed.pop(key)
        self.overtaken.add(key)

    @precondition(lambda self: self.overtaken)
    @rule(data=st.data())
    def a_late_codeword_comes_after_all(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.overtaken)))
        column = key[0]
        whole = self.doubted.pop(column, None) if key[1] == 0 else None
        answer = self.sum.accept(*key)
        if whole is None or any(j == column for j, _ in self.added | self.missing):
            assert isinstance(answer, Refuse), "something of its column is in the sum, so it is too late"
            return
        assert isinstance(answer, Add)
        self.driver.add(key, answer)
        self.added |= whole
        self.open -= whole
        standing_in = {other for other, terms in self.owed.items() if terms & whole}
        self.overtaken |= standing_in
        self.owed = {other: terms for other, terms in self.owed.items() if other not in standing_in}
        self.overtaken.discard(key)
        self.taken.append(key)

    @rule(data=st.data(), gone=st.booleans())
    def a_worker_is_lost(self, data: st.DataObject, *, gone: bool) -> None:
        w = self.w(data)
        self.sum.lost(w)
        self.doubted.pop(w, None)
        self.overtaken = {key for key in self.overtaken if key[0] != w}
        for key in [key for key in self.owed if key[0] == w]:
            self.open |= self.owed.pop(key)
        self.told = {each for each in self.told if each[0] != w}
        self.done[w] = False
        self.able[w] &= not gone

    @rule(data=st.data())
    def a_worker_comes_back(self, data: st.DataObject) -> None:
        w = self.w(data)
        kept = self.some(data, len(self.plan.chunks))
        self.able[w] = self.holds[w]
        self.done[w] &= kept
        self.told = {each for each in self.told if each[0] != w}
        again = [self.driver.asked(request) for request in self.sum.ask_again(w, kept)]
        if not all(kept[c] for _, c in self.doubted.get(w, ())):
            del self.doubted[w]
        mine = {key: terms for key, terms in self.owed.items() if key[0] == w}
        able = {key: terms for key, terms in mine.items() if all(kept[c] for _, c in terms)}
        assert dict(again) == able
        assert len(again) == len(able)
        for key in mine.keys() - able.keys():
            self.open |= self.owed.pop(key)

    @rule(data=st.data())
    def a_worker_finishes_a_chunk(self, data: st.DataObject) -> None:
        w = self.w(data)
        chunk = data.draw(st.integers(0, len(self.plan.chunks) - 1))
        self.done[w, chunk] |= self.able[w, chunk]

    @rule(data=st.data())
    def mend(self, data: st.DataObject) -> None:
        coming = data.draw(st.frozensets(st.integers(0, len(self.plan.chunks) - 1), max_size=1))
        repairs, takes = self.sum.mend(self.done.copy(), self.able.copy(), coming)
        mended: set[Term] = set()
        for repair in repairs:
            assert isinstance(repair, Repair)
            key, terms = self.driver.asked(repair)
            assert key not in self.owed
            assert key not in self.taken
            assert not terms & mended, "asked of two helpers"
            assert all(self.done[key[0], c] for _, c in terms), "asked of one that has not finished it"
            self.owed[key] = terms
            mended |= terms
        can_now = {(j, c) for j, c in self.open if self.done[:, c].any()}
        can_later = {(j, c) for j, c in self.open - can_now if self.able[:, c].any() or c in coming}
        assert mended == can_now
        self.missing |= self.open - can_now - can_later
        self.open = can_later
        self._check_takes(takes)
        again = self.sum.mend(self.done.copy(), self.able.copy(), coming)
        assert again == ((), ()), "asked twice for the same"

    def _check_takes(self, takes: tuple[tuple[int, int], ...]) -> None:
        lacking = {c for _, c in self.open if self.able[:, c].any()}
        for w, chunk in takes:
            assert chunk in lacking
            assert self.able[w, chunk]
            assert not any(self.able[v, chunk] for v, c in self.told if c == chunk), "somebody is at it"
            self.told.add((w, chunk))
        for chunk in lacking:
            assert any(self.able[v, chunk] for v, c in self.told if c == chunk), "nobody is at it"

    @rule(give=st.integers(0, 4))
    def give_up(self, give: int) -> None:
        if give:  # seldom: nothing is left to be seen afterwards
            return
        self.sum.give_up()
        self.missing |= self.open.union(*self.owed.values())
        self.open, self.owed = set(), {}
        assert self.sum.complete

    @invariant()
    def every_term_is_in_exactly_one_place(self) -> None:
        added = [(part.column, c) for _, part in self.sum.added for c in part.terms.chunks]
        owed = list(itertools.chain(*self.owed.values()))
        everywhere = [*added, *self.sum.missing, *owed, *self.open]
        assert sorted(everywhere) == sorted(self.terms)
        assert set(added) == self.added
        assert set(self.sum.missing) == self.missing

    @invariant()
    def it_is_complete_when_nothing_is_owed_or_open(self) -> None:
        assert self.sum.complete == (not self.owed and not self.open)
        assert set(self.sum.owing) == {w for w, _ in self.owed}
        assert len(set(self.sum.owing)) == len(self.sum.owing)

    @invariant()
    def the_sum_is_plain_where_nothing_is_missing(self) -> None:
        if self.sum.complete and not self.missing and self.solution.exact:
            np.testing.assert_allclose(self.driver.total, self.driver.plain, rtol=1e-7, atol=1e-7)

    @invariant()
    def an_error_is_reported_exactly_where_terms_are_missing(self) -> None:
        error = self.sum.missing_error()
        assert np.isfinite(error)
        assert (error > 0) == bool(self.missing)


Places.TestCase.settings = settings(max_examples=80, stateful_step_count=25)
TestPlaces = Places.TestCase


def exchange(collection: CodedSum, driver: Sum, requests: tuple[Reveal | Repair, ...]) -> None:
    """Let every client send the requested codewords."""
    for request in requests:
        key, _ = driver.asked(request)
        answer = collection.accept(*key)
        assert isinstance(answer, Add)
        driver.add(key, answer)


@given(
    clients=st.integers(1, 6), chunks=st.integers(1, 8), replicas=st.integers(1, 4), blocks=st.integers(1, 4)
)
def test_others_repair_sum_after_any_loss(clients, chunks, replicas, blocks):
    plan = planned(clients, chunks, replicas)
    wanted = plan.placement.replicas
    blocks = min(blocks, wanted)
    solution = FrameCode(plan.placement, blocks).solve(plan.placement.holds)
    for lost in solution.needed:
        collection, driver = CodedSum(plan, solution, ROUND), Sum(plan, blocks)
        left = plan.placement.holds.copy()
        left[lost] = False
        first = tuple(each for each in collection.needed() if each.client != plan.clients[lost])
        exchange(collection, driver, first)
        collection.lost(lost)
        repairs, takes = collection.mend(left, left)
        exchange(collection, driver, repairs)
        assert takes == ()
        assert collection.complete
        if wanted > 1:
            assert not collection.missing
            np.testing.assert_allclose(driver.total, driver.plain, rtol=1e-7, atol=1e-7)
        else:
            assert set(collection.missing) == {(lost, c) for c in plan.placement.orders[lost]}


def test_missing_chunks_weigh_equally_at_one_block():
    plan = planned(4, 8, 1)
    collection = CodedSum(plan, FrameCode(plan.placement, 1).solve(plan.placement.holds), ROUND)
    collection.lost(0)
    nobody = np.zeros_like(plan.placement.holds)
    collection.mend(nobody, nobody)
    assert len(collection.missing) == len(plan.placement.orders[0]) > 0
    assert collection.missing_error() == pytest.approx(np.sqrt(len(collection.missing) / 8))
    assert collection.weight == plan.samples * (1 - len(collection.missing) / 8)


def test_missing_chunks_count_by_their_samples():
    plan = planned(4, 8, 1)
    lost = plan.placement.orders[0][0]
    chunks = [replace(chunk, samples=1000 if c == lost else 10) for c, chunk in enumerate(plan.chunks)]
    plan = replace(plan, chunks=tuple(chunks))
    collection = CodedSum(plan, FrameCode(plan.placement, 1).solve(plan.placement.holds), ROUND)
    collection.lost(0)
    nobody = np.zeros_like(plan.placement.holds)
    collection.mend(nobody, nobody)
    assert collection.missing_error() == pytest.approx(1.0, abs=0.01)
    assert collection.weight == 10 * (8 - len(collection.missing))


def test_reassigned_chunks_are_divided_evenly():
    plan = planned(3, 6, 3)
    done = np.zeros_like(plan.placement.holds)
    done[0] = True
    collection = CodedSum(plan, FrameCode(plan.placement, 1).solve(done), ROUND)
    assert [request.client for request in collection.needed()] == [plan.clients[0]]
    collection.lost(0)
    done[0] = False
    able = plan.placement.holds.copy()
    able[0] = False
    _, takes = collection.mend(done, able)
    assert sorted(chunk for _, chunk in takes) == list(range(6))
    assert sorted(w for w, _ in takes) == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(("slower_s", "helpers"), [(1.5, {2, 3}), (2.5, {2})])
def test_helper_with_pending_repairs_takes_longer(slower_s: float, helpers: set[int]):
    plan = planned(4, 4, 4)
    done = np.zeros_like(plan.placement.holds)
    done[0, :2] = done[1, 2:] = True
    collection = CodedSum(plan, FrameCode(plan.placement, 1).solve(done), ROUND)
    assert collection.owing == (0, 1)
    for w in collection.owing:
        collection.lost(w)
    done[:2], done[2:] = False, True
    nobody = np.zeros_like(done)
    repairs, _ = collection.mend(done, nobody, costs=Costs((0.0,) * 4, (1.0, 1.0, 1.0, slower_s)))
    assert {plan.clients.index(each.client) for each in repairs} == helpers
    sooner = Costs((9.0,) * 4, (1.0, 1.0, 1.0, 0.1))
    key = next(iter(collection.owed))
    assert collection.others_s(key, done & (np.arange(4) == 3)[:, None], nobody, sooner) == pytest.approx(
        0.1 * (1 + (3 in helpers))
    )
    assert collection.others_s(key, nobody, done, sooner) == pytest.approx(9.0 + 0.1 * (1 + (3 in helpers)))
    assert collection.others_s(key, nobody, nobody, sooner) == np.inf


def test_lost_repair_joins_open_repairs_of_same_column():
    plan = planned(3, 2, 3)
    done = np.zeros_like(plan.placement.holds)
    done[0] = True
    collection, driver = CodedSum(plan, FrameCode(plan.placement, 1).solve(done), ROUND), Sum(plan, 1)
    for request in collection.needed():
        driver.asked(request)
    collection.lost(0)
    able = plan.placement.holds.copy()
    done[0], able[0], done[1, 0] = False, False, True
    repairs, takes = collection.mend(done, able)
    assert [repair.client for repair in repairs] == [plan.clients[1]]
    assert [chunk for _, chunk in takes] == [1]
    collection.lost(1)
    done[1], able[1], done[2] = False, False, True
    exchange(collection, driver, collection.mend(done, able)[0])
    assert collection.complete
    assert not collection.missing
    np.testing.assert_allclose(driver.total, driver.plain)
