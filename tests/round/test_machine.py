"""Test the coded round against the plain sum, in every order of events Hypothesis generates."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedgc.config import RunConfig
from fedgc.gates import Decision
from fedgc.history import Speeds
from fedgc.messages import (
    Codeword,
    Command,
    Continue,
    Event,
    Failed,
    Held,
    Joined,
    Kept,
    Leaving,
    Loaded,
    Lost,
    Progress,
    Refuse,
    Repair,
    Report,
    Reveal,
    Skip,
    Stop,
    Take,
    Tick,
    Work,
)
from fedgc.round.coded.lateness import PATIENCE
from fedgc.round.machine import TABLE, Assignment, Round, State
from fedgc.round.plan import Chunk, Fleet, Plan, make_plan
from tests.coded_round import (
    ONE,
    OTHER,
    SIZE,
    TARGET,
    Clients,
    begun,
    finish_working,
    joined,
    planned,
    progress,
    send_all,
    sync,
    tells,
    work,
)

LOOKS = 20  # at one late line, each after half as long again as before: from half a second to half an hour


def held(machine: Round) -> dict[int, int]:
    """Return the number of finished chunks of each client."""
    return {w: each.amount for w, each in machine.scheduler.holds.items()}


class AnyOrder(RuleBasedStateMachine):
    """Joins, reports, deaths, returns, failures, late, duplicate and foreign events, in any order."""

    @initialize(
        clients=st.integers(1, 5),
        chunks=st.integers(1, 6),
        replicas=st.sampled_from([1, 2, 3, 4, "auto"]),
        blocks=st.sampled_from([1, 2, 3, "auto"]),
        uplink=st.sampled_from([None, 1.0, 1e9]),
        lag=st.sampled_from([1.0, 4.0]),
        live=st.booleans(),
        deadline_s=st.sampled_from([100, "auto"]),
        data=st.data(),
    )
    def begin(
        self,
        clients: int,
        chunks: int,
        replicas: int | str,
        blocks: int | str,
        uplink: float | None,
        lag: float,
        deadline_s: int | str,
        data: st.DataObject,
        *,
        live: bool,
    ) -> None:
        if isinstance(blocks, int) and isinstance(replicas, int):
            blocks = min(blocks, replicas)
        held = None
        if data.draw(st.sampled_from([False, True, True]), "some chunks are private"):
            some = st.sets(st.integers(0, 2 * chunks), max_size=chunks)
            held = [data.draw(some) for _ in range(clients)]
            held[0] = held[0] or {chunks}
            chunks = 1 + 2 * chunks
        self.plan = planned(
            clients, chunks, replicas=replicas, blocks=blocks, uplink=uplink, lag=lag, held=held,
            settings={"deadline_s": deadline_s},
        )  # fmt: skip
        self.now = 0.0
        self.round, self.clients = begun(self.plan, live=live)
        self.live = set(self.plan.clients)

    def say(self, event: Event) -> None:
        was_open = self.open()
        self.clients.obey(self.round.handle(event))
        if was_open and not self.open():
            assert {close.client for close in self.clients.closed} == self.live

    def open(self) -> bool:
        return self.round.state is not State.CLOSED

    @precondition(lambda self: any(self.clients.queue[d] for d in self.live))
    @rule(data=st.data())
    def finish_a_chunk(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(d for d in self.live if self.clients.queue[d])))
        if self.open():
            work(self.round, self.clients, client, self.now)

    @rule(data=st.data(), sketch=st.sampled_from([(), (1.0,) * 16, (1.0 + 1e-6,) * 16, (7.0,) * 16]))
    def finish_a_chunk_that_was_skipped(self, data: st.DataObject, sketch: tuple[float, ...]) -> None:
        client = data.draw(st.sampled_from(self.plan.clients))
        chunk = data.draw(st.sampled_from(self.plan.chunks)).number
        if client in self.live:
            if self.clients.at[client].round < 0:
                return  # no work yet
            self.clients.hold(client, chunk)
        self.say(progress(client, chunk, self.now, sketch=sketch))

    @precondition(lambda self: self.clients.unsent)
    @rule(data=st.data())
    def send_a_codeword(self, data: st.DataObject) -> None:
        client, attempt = data.draw(st.sampled_from(self.clients.unsent))
        self.clients.unsent.remove((client, attempt))
        if client in self.live:
            self.say(Codeword(self.now, client, 1, attempt))

    @precondition(lambda self: self.clients.requests)
    @rule(data=st.data())
    def send_a_codeword_again_or_late(self, data: st.DataObject) -> None:
        client, attempt = data.draw(st.sampled_from(sorted(self.clients.requests)))
        if (client, attempt) not in self.clients.unsent:
            self.say(Codeword(self.now, client, 1, attempt))

    @precondition(lambda self: any(self.clients.queue[d] for d in self.live))
    @rule(data=st.data())
    def answer_a_whole_packet(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(d for d in self.live if self.clients.queue[d])))
        while self.open() and self.clients.queue[client]:
            work(self.round, self.clients, client, self.now)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def lose_a_client(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.live)))
        self.live.discard(client)
        self.clients.at[client].restart(keeps=True)
        self.say(Lost(self.now, client))

    @rule(data=st.data(), keeps=st.booleans(), live=st.booleans())
    def join_or_return(self, data: st.DataObject, *, keeps: bool, live: bool) -> None:
        client = data.draw(st.sampled_from(self.plan.clients))
        self.clients.at[client].restart(keeps=keeps)
        if not keeps:
            self.clients.unsent = [each for each in self.clients.unsent if each[0] != client]
        self.live.add(client)
        kept = self.clients.at[client].kept()
        self.say(joined(self.plan, client, self.now, kept, live=live))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), all_of_it=st.booleans())
    def fail(self, data: st.DataObject, *, all_of_it: bool) -> None:
        client = data.draw(st.sampled_from(sorted(self.live)))
        chunk = data.draw(st.sampled_from(self.plan.chunks)).number
        self.say(Failed(self.now, client, 1, "out of memory", () if all_of_it else (chunk,)))

    @rule(kind=st.sampled_from(["stranger", "old", "unknown", "unasked", "report", "early"]))
    def say_what_does_not_belong_here(self, kind: str) -> None:
        client = self.plan.clients[0]
        before = (self.clients.terms[:], self.round.state)
        events: dict[str, Event] = {
            "stranger": progress("nobody", 0, self.now),
            "old": progress(client, self.plan.chunks[0].number, self.now, round=0),
            "unknown": progress(client, 999, self.now),
            "unasked": Codeword(self.now, client, 1, 77),
            "report": Report(self.now, client, 1, 3, 10, 1.0, 1.0, 0.5),
            "early": Tick(self.now),
        }
        self.say(events[kind])
        if self.now < self.round.next_tick:
            assert (self.clients.terms, self.round.state) == before

    @rule(seconds=st.sampled_from([1.0, 60.0, 1000.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        self.say(Tick(self.now))

    @invariant()
    def every_term_enters_the_sum_once(self) -> None:
        terms = self.clients.terms
        assert len(set(terms)) == len(terms)

    @invariant()
    def an_exact_round_is_the_plain_sum(self) -> None:
        if self.round.outcome == "synced":
            np.testing.assert_allclose(self.clients.total, self.clients.plain, rtol=1e-7, atol=1e-7)
            assert not self.round.short
        elif self.round.outcome == "approximate":
            assert self.round.short
            assert self.round.error is not None
            assert 0 <= self.round.error < np.inf
        else:
            assert self.round.outcome in (None, "empty")

    def teardown(self) -> None:
        """Time alone ends the round after any events."""
        if not hasattr(self, "round"):
            return
        ticks = 0
        while self.open():
            ticks += 1
            assert ticks <= (2 + LOOKS) * len(self.plan.clients) + 3, "the round does not end"
            assert np.isfinite(self.round.next_tick)
            self.now = max(self.now, self.round.next_tick)
            self.say(Tick(self.now))
        self.an_exact_round_is_the_plain_sum()


AnyOrder.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = AnyOrder.TestCase


# ---- the table, row by row


def test_sum_is_exact_and_codewords_have_block_length():
    plan = planned(4, 8, replicas=3, blocks=2)
    machine, clients = begun(plan)
    finish_working(machine, clients)
    assert machine.state is State.COLLECTING
    assert all(request.mix.blocks == 2 for request in clients.requests.values() if request.mix)
    send_all(machine, clients)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def test_chunk_with_enough_replicas_is_skipped():
    plan = planned(3, 6, replicas=3, blocks=1)
    machine, clients = begun(plan)
    work(machine, clients, plan.clients[0])
    first = clients.done[plan.clients[0]].copy()
    assert all(not first & set(clients.queue[client]) for client in plan.clients)


@settings(max_examples=60)
@given(
    clients=st.integers(2, 5),
    chunks=st.integers(4, 12),
    turns=st.lists(st.integers(0, 4), min_size=12, max_size=12),
)
def test_unstarted_own_chunk_comes_before_started_chunk(clients, chunks, turns):
    plan = planned(clients, chunks, replicas=clients, blocks=1)
    machine, others = begun(plan)
    for turn in turns:
        name = plan.clients[turn % clients]
        if machine.state is not State.WORKING or not others.queue[name]:
            break
        work(machine, others, name)
        at, *rest = others.queue[name] or [None]
        theirs = {queue[0] for client, queue in others.queue.items() if client != name and queue}
        made = set.union(*others.done.values())
        if at in theirs:
            assert not set(rest) - theirs - made


def test_reassigned_client_is_informed_in_safe_order():
    plan = planned(4, 8, replicas=4, blocks=1)
    machine, clients = begun(plan)
    name, other = plan.clients[:2]
    told: list[Command] = []
    while Skip not in map(type, told):
        work(machine, clients, other)
        chunk, at = clients.queue[name][:2]
        assert clients.finish_next(name).chunk == chunk
        commands = machine.handle(progress(name, chunk))
        told = [command for command in commands if command.client == name]
        clients.obey(commands)
    (best,) = told[0].chunks
    assert told == [Take(name, 1, (best,)), Skip(name, 1, at), Take(name, 1, (at,)), Take(name, 1, (best,))]
    assert clients.queue[name][:2] == [best, at]


def test_lost_client_loses_only_its_unfinished_chunks():
    plan = planned(3, 6, replicas=3, blocks=2)
    machine, clients = begun(plan)
    work(machine, clients, plan.clients[0])
    clients.obey(machine.handle(Lost(1.0, plan.clients[0])))
    finish_working(machine, clients, plan.clients[1:])
    send_all(machine, clients)
    assert machine.outcome == "synced"
    assert machine.statistics.counted[0] == 0
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


@pytest.mark.parametrize("left_out", [False, True])
def test_client_work_ignores_order_of_its_chunk_list(*, left_out: bool):
    plan = planned(3, 6, replicas=3, blocks=1)
    machine, _ = begun(plan)
    client = plan.clients[0]
    (first, *rest) = plan.shares[client]
    lists = [chunk for chunk in reversed(plan.chunks) if not (left_out and chunk.number == first)]
    holds = tuple(Held(chunk.name, chunk.samples) for chunk in lists)
    machine.handle(Lost(1.0, client))
    again = machine.handle(Joined(2.0, client, live=True, holds=holds))
    given = next(each for each in again if isinstance(each, Work))
    assert set(given.order) == set(rest if left_out else (first, *rest))


def test_returning_client_is_asked_first_for_matching_kept_work():
    plan = planned(2, 4, replicas=2, blocks=1)
    for kept, first in (
        (Kept(0, 0, TARGET), True),
        (Kept(5, 0, TARGET), False),
        (Kept(0, 0, 2 * TARGET), False),
    ):
        machine, clients = begun(plan)
        name, other = plan.clients
        clients.obey(machine.handle(progress(other, 0)))
        clients.obey(machine.handle(Lost(1.0, name)))
        clients.obey(machine.handle(joined(plan, name, 2.0, (kept,))))
        assert (clients.queue[name][0] == 0) is first
        assert (0 in clients.queue[name]) is first, "the other client has finished it"


def test_lost_upload_is_repaired_by_other_holders():
    plan = planned(4, 8, replicas=4, blocks=2)
    machine, clients = begun(plan)
    for name in plan.clients[:2]:  # two replicas of every chunk, then a third as a reserve
        clients.take(name, [chunk.number for chunk in plan.chunks])
    while machine.state is State.WORKING:
        for name in plan.clients[:2]:
            if machine.state is State.WORKING and clients.queue[name]:
                work(machine, clients, name)
    spare = plan.clients[2]
    for chunk in plan.chunks:
        clients.hold(spare, chunk.number)
        clients.obey(machine.handle(progress(spare, chunk.number)))
    sender = clients.unsent[0][0]
    clients.unsent = [each for each in clients.unsent if each[0] != sender]
    clients.obey(machine.handle(Lost(3.0, sender)))
    repairs = [request for request in clients.requests.values() if isinstance(request, Repair)]
    assert {repair.column for repair in repairs} == {sender}
    send_all(machine, clients)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)
    late = machine.handle(Codeword(9.0, sender, 1, 0))
    assert [type(command) for command in late] == [Refuse]


def test_chunk_without_holder_is_retried_before_it_is_given_up():
    plan = planned(2, 4, replicas=2, blocks=1)
    machine, clients = begun(plan)
    finish_working(machine, clients, plan.clients[:1])
    clients.unsent.clear()
    clients.obey(machine.handle(Lost(3.0, plan.clients[0])))
    other = plan.clients[1]
    assert set(clients.queue[other]) == {chunk.number for chunk in plan.chunks}
    while clients.queue[other]:
        work(machine, clients, other)
    send_all(machine, clients)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def test_round_without_holder_of_chunk_names_missing_chunks():
    plan = planned(2, 4, replicas=1, blocks=1)
    machine, clients = begun(plan)
    alone = {plan.chunks[c].number for c in plan.placement.orders[0]}
    clients.obey(machine.handle(Lost(1.0, plan.clients[0])))
    finish_working(machine, clients, plan.clients[1:])
    send_all(machine, clients)
    assert machine.outcome == "approximate"
    assert set(machine.short) == alone


def test_deadline_uses_finished_work():
    plan = planned(2, 8, replicas=2, blocks=2)
    machine, clients = begun(plan)
    for name in plan.clients:
        work(machine, clients, name)
    clients.obey(machine.handle(Tick(99.0)))
    assert machine.state is State.WORKING
    clients.obey(machine.handle(Tick(100.0)))
    send_all(machine, clients)
    assert machine.outcome == "approximate"
    assert len(machine.short) >= 6


def loading(plan: Plan, limit_s: float) -> tuple[Round, Clients]:
    """Clients whose model is on its way, for so long at most; there are 100 s to work."""
    this = Assignment(number=1, version=3, target=TARGET, seed=0, model_limit_s=limit_s)
    machine, clients = Round(plan, this, sync), Clients(plan)
    clients.obey(machine.start(0.0, [joined(plan, client) for client in plan.clients]))
    return machine, clients


def test_work_time_begins_when_all_clients_have_model():
    plan = planned(2, 4, replicas=2, blocks=2)
    machine, clients = loading(plan, 1000.0)
    one, other = plan.clients
    assert machine.next_tick == 1100.0
    machine.handle(Loaded(20.0, one, 3))
    machine.handle(Loaded(25.0, other, 2))  # of the round before
    assert machine.next_tick == 1100.0
    work(machine, clients, one)
    work(machine, clients, other, 300.0)
    assert machine.next_tick == 400.0, "who reports has the model"
    clients.obey(machine.handle(Tick(399.0)))
    assert machine.state is State.WORKING
    clients.obey(machine.handle(Tick(400.0)))
    assert machine.state is State.COLLECTING


def test_wait_for_missing_model_has_limit():
    plan = planned(2, 2, replicas=2, blocks=2)
    machine, clients = loading(plan, 50.0)
    one, other = plan.clients
    machine.handle(Loaded(40.0, one, 3))
    work(machine, clients, one)
    assert machine.next_tick == 150.0
    machine.handle(Loaded(60.0, other, 3))
    assert machine.next_tick == 150.0, "its own limit bounds the whole"
    machine, clients = loading(plan, 50.0)
    machine.handle(Loaded(40.0, one, 3))
    clients.obey(machine.handle(Lost(45.0, other)))
    assert machine.next_tick == 140.0, "nobody waits for the model of one that is gone"


def test_model_of_late_client_is_not_awaited():
    plan = planned(2, 2, replicas=2, blocks=2)
    one, other = plan.clients
    left = frozenset({one, other, "of no plan"})
    this = Assignment(1, 3, TARGET, 0, frozenset({one}), loading=left, model_limit_s=1000.0)
    for strikes in ((), (Lost(6.0, other),), (Loaded(6.0, "of no plan", 3),)):
        machine, clients = Round(plan, this, sync), Clients(plan)
        clients.obey([Work(one, 0, 3, TARGET, (), plan.names_w[0], 0, 9.0)])
        clients.obey(machine.start(0.0, [joined(plan, one)]))
        assert machine.next_tick == 1100.0
        for event in (Loaded(5.0, one, 3), *strikes):
            assert machine.handle(event) == ()
            assert machine.next_tick == 105.0


def test_model_arriving_late_or_for_lost_client_is_not_in_flight():
    plan = planned(3, 2, replicas=3, blocks=1)
    machine, clients = loading(plan, 50.0)
    one, other, third = plan.clients
    finish_working(machine, clients, [one])
    assert machine.loading == {other, third}
    machine.handle(Loaded(2.0, other, 2))
    assert machine.loading == {other, third}, "that was another"
    machine.handle(Loaded(2.0, other, 3))
    clients.obey(machine.handle(Lost(2.0, third)))
    assert machine.loading == set()
    clients.obey(machine.handle(joined(plan, third, 3.0)))
    assert machine.loading == {third}
    clients.obey(machine.handle(progress(third, 0, 4.0)))
    assert machine.loading == set()


def test_model_of_client_without_work_is_not_awaited():
    plan = planned(2, 4, replicas=2, blocks=2)
    machine, clients = loading(plan, 1000.0)
    one, other = plan.clients
    machine.handle(Loaded(20.0, one, 3))
    work(machine, clients, one)
    clients.obey(machine.handle(Failed(25.0, other, 0, "it could not get the model of the round before")))
    assert machine.next_tick == 1100.0
    clients.obey(machine.handle(Failed(25.0, other, 1, "it could not get the model")))
    assert machine.next_tick == 120.0


def test_failing_client_counts_as_having_model():
    plan = planned(2, 4, replicas=2, blocks=2)
    machine, clients = loading(plan, 1000.0)
    one, other = plan.clients
    machine.handle(Loaded(20.0, one, 3))
    clients.obey(machine.handle(Failed(25.0, other, 1, "the loss is nan", (0,))))
    assert machine.next_tick == 125.0


@pytest.mark.parametrize("lost", [False, True])
def test_late_joining_client_does_not_move_deadline(lost: bool):
    plan = planned(3, 4, replicas=2, blocks=2)
    this = Assignment(number=1, version=3, target=TARGET, seed=0, model_limit_s=1000.0)
    machine, clients = Round(plan, this, sync), Clients(plan)
    one, other, late = plan.clients
    clients.obey(machine.start(0.0, [joined(plan, one), joined(plan, other)]))
    machine.handle(Loaded(10.0, one, 3))
    clients.obey(machine.handle(joined(plan, late, 11.0)))
    assert machine.next_tick == 1100.0, "one that has been there has no model yet"
    machine.handle(Loaded(20.0, other, 3))
    assert machine.next_tick == 120.0, "though the late one has none"
    if lost:
        clients.obey(machine.handle(Lost(30.0, other)))
    for event in (joined(plan, other, 60.0), Loaded(70.0, late, 3)):
        clients.obey(machine.handle(event))
        assert machine.next_tick == 120.0, f"after {event}"
    work(machine, clients, other)
    assert machine.next_tick == 120.0


def test_unneeded_late_model_is_no_fault():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, clients = loading(plan, 50.0)
    one, other = plan.clients
    while machine.state is State.WORKING:
        work(machine, clients, one)
    assert machine.handle(Loaded(60.0, other, 3)) == ()
    send_all(machine, clients)
    assert machine.outcome == "synced"
    assert machine.handle(Loaded(70.0, other, 3)) == ()
    assert machine.statistics.refused == [0, 0]


def test_round_without_finished_work_is_empty():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, clients = begun(plan)
    clients.obey(machine.handle(Tick(100.0)))
    assert machine.outcome == "empty"
    assert not any(close.frees for close in clients.closed)


def test_gate_decides_once_at_first_replica_of_every_chunk():
    plan = planned(2, 4, replicas=2, blocks=2)
    asked = []

    def skip(reports) -> Decision:
        asked.append(reports)
        return Decision(sync=False, reason="nothing new")

    machine, clients = begun(plan, skip)
    finish_working(machine, clients)
    assert machine.outcome == "skipped"
    assert [sorted(item.source for item in reports.items) for reports in asked] == [[0, 1, 2, 3]]
    assert not clients.requests
    assert not any(close.frees for close in clients.closed)


def test_differing_replica_is_not_counted_and_client_is_named():
    plan = planned(2, 2, replicas=2, blocks=2)
    machine, clients = begun(plan)
    one, other = plan.clients
    tells(machine, clients, one, 0, (1.0,) * 16)
    tells(machine, clients, other, 0, (1.1,) * 16)
    assert not clients.refused, "which of the two is wrong, nobody knows"
    assert machine.statistics.disputed == {0: (0, 1)}
    tells(machine, clients, one, 1, (1.0,) * 16)
    tells(machine, clients, other, 1, (1.0 + 1e-6,) * 16)
    assert machine.statistics.disputed == {0: (0, 1)}
    assert held(machine) == {0: 2, 1: 1}


def test_false_first_sketches_are_blamed_on_their_client_only():
    """The false client and one other hold each chunk: a single chunk does not show which is wrong."""
    holds = {"false": frozenset(range(6)), "one": frozenset({0, 1}), "two": frozenset({2, 3, 4, 5})}
    table = tuple(Chunk(number, f"chunk {number}", 10) for number in range(6))
    plan = make_plan(
        Fleet(holds, table, SIZE), Speeds(), RunConfig(blocks=1, deadline_s=100.0, work="coded"), steps=TARGET
    )
    machine, clients = begun(plan)
    for chunk in range(5):
        tells(machine, clients, "false", chunk, tuple(float(chunk + 2) for _ in ONE))
    for name in ("one", "two"):
        for chunk in sorted(holds[name] - {5}):
            tells(machine, clients, name, chunk, ONE)
    assert {refuse.client for refuse in clients.refused} == {"false"}
    assert machine.statistics.failure[0].startswith("its copies differ from those of several other clients")
    assert held(machine) == {1: 2, 2: 3}
    tells(machine, clients, "two", 5, ONE)
    send_all(machine, clients)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def test_replica_without_sketch_is_refused_if_others_have_one():
    for mute_first in (True, False):
        plan = planned(3, 1, replicas=3, blocks=3)
        machine, clients = begun(plan)
        mute, *others = plan.clients
        for name in (mute, *others) if mute_first else (*others, mute):
            tells(machine, clients, name, 0, () if name == mute else ONE)
        assert {refuse.client for refuse in clients.refused} == {mute}
        assert held(machine) == {1: 1, 2: 1}


def test_block_count_at_stop_depends_on_waiting_cost():
    slow, quick = (
        planned(3, 6, replicas=3, blocks="auto", uplink=0.1),
        planned(3, 6, replicas=3, blocks="auto", uplink=1e9),
    )
    for plan, blocks in ((slow, 3), (quick, 1)):
        machine, clients = begun(plan)
        finish_working(machine, clients)
        assert machine.collecting.aggregator.result(2.0).solution.blocks == blocks
        send_all(machine, clients)
        np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


@pytest.mark.parametrize(
    ("limit", "wires"), [(1e-6, {"float32"}), (5e-3, {"bf16"}), (3e-2, {"int8"}), (0.3, {"int8"})]
)
@pytest.mark.parametrize("lost", [False, True])
def test_number_format_is_shortest_within_error_limit(limit: float, wires: set[str], *, lost: bool):
    plan = planned(4, 8, replicas=3, blocks=2, settings={"wire": "short", "error_limit": limit})
    machine, clients = begun(plan, size=5000)
    finish_working(machine, clients)
    if lost:
        away, _ = clients.unsent.pop(0)
        clients.obey(machine.handle(Lost(2.0, away)))
    send_all(machine, clients)
    assert machine.outcome == "synced"
    assert {request.wire for request in clients.requests.values()} == wires
    assert all(isinstance(each, Reveal) for each in clients.requests.values()) is not lost
    error = np.linalg.norm(clients.total - clients.plain) / np.linalg.norm(clients.plain)
    assert error <= limit


def test_endless_upload_is_replaced_by_others():
    plan = planned(3, 6, replicas=3, blocks=1)
    machine, clients = begun(plan)
    finish_working(machine, clients)
    silent = clients.unsent.pop(0)[0]
    send_all(machine, clients)
    while machine.next_tick < 50.0:
        clients.obey(machine.handle(Tick(machine.next_tick)))
    assert machine.state is State.COLLECTING, "it is late, but nobody finishes what it has"
    clients.obey(machine.handle(Tick(machine.next_tick)))
    for name in plan.clients:
        while clients.queue[name] and name != silent:
            work(machine, clients, name, 60.0)
    send_all(machine, clients, 60.0)
    assert machine.outcome == "synced"
    assert machine.statistics.failure[plan.clients.index(silent)] == "no update by the upload deadline"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def one_is_late(blocks: int = 1, step_s: float = 0.1) -> tuple[Round, Clients, str]:
    """All but the first client have sent their codeword at 2 s, one second after the request."""
    machine, clients = begun(replace(planned(4, 8, replicas=4, blocks=blocks), step_s=(step_s,) * 4))
    finish_working(machine, clients)
    slow = clients.unsent[0][0]
    for name, attempt in clients.unsent[1:]:
        clients.obey(machine.handle(Codeword(2.0, name, 1, attempt)))
    clients.unsent = clients.unsent[:1]
    return machine, clients, slow


def stand_in(machine: Round, clients: Clients, slow: str) -> None:
    """Let time pass until a client is late, and let the others finish their assigned chunks."""
    clients.obey(machine.handle(Tick(machine.next_tick)))
    for name in machine.plan.clients:
        while name != slow and clients.queue[name]:
            work(machine, clients, name, machine.next_tick)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_much_later_upload_is_replaced_by_others(blocks: int):
    machine, clients, slow = one_is_late(blocks)
    assert machine.next_tick == pytest.approx(1.0 + PATIENCE), "asked at 1 s, and half needed a second"
    stand_in(machine, clients, slow)
    repairs = [clients.requests[key] for key in clients.unsent[1:]]
    assert repairs
    assert all(isinstance(each, Repair) and each.column == slow != each.client for each in repairs)
    clients.unsent = clients.unsent[1:]
    send_all(machine, clients, 4.0)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)
    assert machine.statistics.failure == [""] * 4
    assert machine.statistics.refused == [0] * 4


def test_repair_slower_than_late_codeword_is_not_started():
    machine, *_ = one_is_late(step_s=1.0)
    chunk_s, upload_s = TARGET * 1.0, 1.0
    asked = []
    while machine.state is State.COLLECTING and not asked:
        now = machine.next_tick
        asked = machine.handle(Tick(now))
    assert {type(each) for each in asked} == {Take}
    assert chunk_s + upload_s <= now - 1.0 < chunk_s + upload_s + PATIENCE, "it has needed so long already"


def test_dead_repairer_of_late_codeword_is_replaced():
    machine, _, _ = one_is_late()
    first = {
        each.client: each.chunks for each in machine.handle(Tick(machine.next_tick)) if isinstance(each, Take)
    }
    dead = next(iter(first))
    asked = [each for each in machine.handle(Lost(3.0, dead)) if isinstance(each, Take)]
    assert first[dead] in {each.chunks for each in asked}
    assert dead not in {each.client for each in asked}


@pytest.mark.parametrize("comes", [True, False])
def test_duration_of_lost_late_codeword_is_recorded(*, comes: bool):
    machine, clients, slow = one_is_late(blocks=2)
    stand_in(machine, clients, slow)
    _, one, *others = clients.unsent
    clients.obey(machine.handle(Codeword(4.0, one[0], 1, one[1])))
    if comes:
        assert machine.handle(Codeword(4.5, slow, 1, 0)) == (Refuse(slow, 1, "others were quicker"),)
    for name, attempt in others:
        clients.obey(machine.handle(Codeword(5.0, name, 1, attempt)))
    assert machine.outcome == "synced"
    took_s = 2 * (5.0 - 1.0)  # of half a model, asked at 1 s
    assert machine.result.unsent_s == ({} if comes else {machine.plan.clients.index(slow): took_s})


def test_work_of_slow_uplink_is_finished_by_others_and_replaced():
    plan = planned(4, 8, replicas=4, blocks=1, uplink=1.0, lag=4.0)
    machine, clients = begun(plan)
    finish_working(machine, clients)
    slow, *others = plan.clients
    assert machine.next_tick == 51.0, "the deadline is that of the first requests"
    for name in plan.clients:
        lacking = set(range(8)) - clients.done[name]
        assert sorted(clients.queue[name]) == sorted(lacking)
        first = clients.queue[name][: len(clients.done[slow])]
        assert name == slow or set(first) == clients.done[slow], "that comes first"
    for name in others:
        while clients.queue[name]:
            work(machine, clients, name, 1.5)
    assert {key for key in clients.requests if key[1]} == set(), "nobody is late yet"
    for name in others:
        clients.obey(machine.handle(Codeword(2.0, name, 1, 0)))
    clients.unsent = [(slow, 0)]
    asked: list[Command] = []
    while not asked:
        asked = list(machine.handle(Tick(machine.next_tick)))
    assert {type(each) for each in asked} == {Repair}, "what it takes is there"
    clients.obey(asked)
    clients.unsent.remove((slow, 0))
    send_all(machine, clients, machine.next_tick)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


@pytest.mark.parametrize(("uplink", "lag", "least_s"), [(None, 1.0, 0.5), (1.0, 1.4, 0.5), (1.0, 4.0, 113.0)])
def test_clients_stop_training_without_known_slow_uplink(uplink: float | None, lag: float, least_s: float):
    plan = planned(4, 8, replicas=4, blocks=1, uplink=uplink, lag=lag, settings={"late_s": least_s})
    machine, clients = begun(plan)
    finish_working(machine, clients)
    assert not any(clients.queue.values())


def test_round_leaves_no_reference_cycle():
    """Simulations of many clients run without garbage collection to save time."""
    gc.disable()
    try:
        machine, clients = begun(planned(4, 8, replicas=4, blocks=2, uplink=1.0, lag=4.0))
        finish_working(machine, clients)
        clients.obey(machine.handle(Lost(2.0, machine.plan.clients[0])))
        while machine.state is not State.CLOSED:
            for name in machine.plan.clients[1:]:
                while clients.queue[name]:
                    work(machine, clients, name, 2.0)
            send_all(machine, clients, 3.0)
        scheduler, whole = weakref.ref(machine.scheduler), weakref.ref(machine)
        del machine
        assert scheduler() is whole() is None
    finally:
        gc.enable()


def test_late_codeword_counts_if_it_precedes_its_repair():
    machine, clients, slow = one_is_late()
    stand_in(machine, clients, slow)
    late, *repairs = clients.unsent
    assert repairs
    clients.unsent = [late]
    send_all(machine, clients, 4.0)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def test_late_codeword_is_refused_unblamed_after_partial_repair():
    machine, clients, slow = one_is_late()
    stand_in(machine, clients, slow)
    late, one, *others = clients.unsent
    assert others, "what it has was shared out"
    clients.obey(machine.handle(Codeword(4.0, one[0], 1, one[1])))
    clients.obey(machine.handle(Codeword(4.0, late[0], 1, late[1])))
    assert [each.client for each in clients.refused] == [slow]
    assert machine.statistics.refused == [0] * 4
    clients.unsent = others
    send_all(machine, clients, 5.0)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def test_late_codeword_without_helper_gets_no_repair():
    plan = planned(2, 2, replicas=1, blocks=1)
    machine, clients = begun(plan)
    finish_working(machine, clients)
    quick = clients.unsent.pop()
    clients.obey(machine.handle(Codeword(2.0, quick[0], 1, quick[1])))
    while machine.next_tick < 50.0:
        assert machine.handle(Tick(machine.next_tick)) == ()
    send_all(machine, clients, 49.0)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def test_differing_replica_while_collecting_changes_no_request():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, clients = begun(plan)
    one, other = plan.clients
    for chunk in (0, 1):
        clients.hold(one, chunk)
        clients.obey(machine.handle(progress(one, chunk, sketch=(1.0,) * 16)))
    asked = dict(clients.requests)
    assert asked
    clients.obey(machine.handle(progress(other, 0, sketch=(9.0,) * 16)))
    assert clients.requests == asked
    send_all(machine, clients)
    assert machine.outcome == "synced"


def test_continuing_client_that_restarts_gets_full_work():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine = Round(plan, Assignment(2, 0, 2 * TARGET, 0, frozenset(plan.clients)), sync)
    began = machine.start(0.0, [joined(plan, client) for client in plan.clients])
    assert {type(command) for command in began} == {Continue}
    machine.handle(Lost(1.0, plan.clients[0]))
    again = machine.handle(joined(plan, plan.clients[0], 2.0))
    assert Work in {type(command) for command in again}


def test_one_replica_of_every_chunk_is_exact_at_deadline():
    plan = planned(2, 2, replicas=2, blocks=2)
    machine, clients = begun(plan)
    while clients.queue[plan.clients[0]]:
        work(machine, clients, plan.clients[0])
    assert machine.state is State.WORKING
    clients.obey(machine.handle(Tick(100.0)))
    send_all(machine, clients)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def test_returning_client_gets_work_it_enables():
    plan = planned(2, 3, replicas=2, blocks=2)
    machine, clients = begun(plan)
    one, other = plan.clients
    clients.obey(machine.handle(Lost(1.0, other)))
    work(machine, clients, one)
    clients.stop(other)
    clients.obey(machine.handle(joined(plan, other, 2.0)))
    finish_working(machine, clients)
    send_all(machine, clients)
    assert (machine.outcome, machine.result.solution.blocks) == ("synced", 2)


def test_only_holder_of_chunk_may_return_and_send_it():
    plan = planned(1, 2, replicas=1, blocks=1)
    for keeps in (True, False):
        machine, clients = begun(plan)
        name = plan.clients[0]
        finish_working(machine, clients)
        clients.unsent.clear()
        clients.at[name].restart(keeps=keeps)
        clients.obey(machine.handle(joined(plan, name, 3.0, clients.at[name].kept())))
        while clients.queue[name] and machine.state is not State.CLOSED:
            work(machine, clients, name, 4.0)
        send_all(machine, clients, 5.0)
        assert machine.outcome == "synced"


def test_client_without_possible_work_is_not_awaited():
    plan = planned(2, 4, replicas=2, blocks=2)
    machine, clients = begun(plan)
    one, other = plan.clients
    clients.obey(machine.handle(Failed(1.0, other, 1, "out of memory")))
    clients.stop(other)
    finish_working(machine, clients, [one])
    send_all(machine, clients)
    assert machine.outcome == "synced"
    assert machine.statistics.failure[1] == "out of memory"


def test_empty_sum_gives_no_model():
    plan = planned(1, 1, replicas=1, blocks=1)
    machine, clients = begun(plan)
    finish_working(machine, clients)
    clients.obey(machine.handle(Lost(2.0, plan.clients[0])))
    assert machine.outcome == "empty"


def test_repair_has_same_time_limit_as_first_upload():
    plan = planned(2, 1, replicas=2, blocks=1)
    machine, clients = begun(plan)
    work(machine, clients, plan.clients[0], 1.0)
    clients.obey(machine.handle(progress(plan.clients[1], 0, 1.5)))
    clients.hold(plan.clients[1], 0)
    clients.unsent.clear()
    clients.obey(machine.handle(Lost(50.0, plan.clients[0])))
    assert machine.next_tick == 100.0
    send_all(machine, clients, 99.0)
    assert machine.outcome == "synced"


def test_only_listening_clients_get_more_work():
    plan = planned(3, 1, replicas=3, blocks=1)
    machine, clients = begun(plan)
    clients.obey(machine.handle(joined(plan, plan.clients[1], 0.0, live=False)))
    work(machine, clients, plan.clients[0])
    for name in plan.clients:
        clients.stop(name)
    clients.obey(machine.handle(Lost(2.0, plan.clients[0])))
    assert clients.queue[plan.clients[2]] == [0]
    assert clients.queue[plan.clients[1]] == []


def test_counted_work_never_exceeds_finished_work():
    plan = planned(3, 1, replicas=3, blocks=2)
    machine, clients = begun(plan)
    one, two, _ = plan.clients
    work(machine, clients, one)
    work(machine, clients, two)
    clients.obey(machine.handle(Lost(2.0, one)))
    send_all(machine, clients)
    assert machine.outcome == "synced"
    assert all(c <= f for c, f in zip(machine.statistics.counted, machine.statistics.finished, strict=True))


def test_stop_ends_any_phase():
    plan = planned(2, 2, replicas=2, blocks=1)
    for phase in ("working", "collecting"):
        machine, clients = begun(plan)
        if phase == "collecting":
            finish_working(machine, clients)
        clients.obey(machine.handle(Stop(5.0, "somebody asked")))
        assert (machine.outcome, machine.reason) == ("stopped", "somebody asked")
        assert {close.client for close in clients.closed} == set(plan.clients)


def test_every_open_state_handles_loss_time_and_stop():
    for state in set(State) - {State.CLOSED}:
        assert {Joined, Lost, Failed, Progress, Tick, Stop} <= set(TABLE[state])


@settings(max_examples=60)
@given(
    clients=st.integers(1, 5),
    chunks=st.integers(1, 7),
    replicas=st.integers(1, 4),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_round_finishes_like_slow_reference(
    clients: int, chunks: int, replicas: int, seed: int, data
) -> None:
    """Slow reference: recount after each finished chunk; stop when every chunk has enough replicas."""
    replicas = min(replicas, clients)
    blocks = data.draw(st.integers(1, replicas))
    plan = planned(clients, chunks, replicas=replicas, blocks=blocks)
    machine, fleet = begun(plan)
    finished: list[tuple[str, int]] = []
    rng = np.random.default_rng(seed)
    while machine.state is State.WORKING:
        wanted = [sum(c == chunk.number for _, c in finished) for chunk in plan.chunks]
        assert min(wanted) < blocks, "enough wanted, and the round still works"
        name = str(rng.choice([name for name in plan.clients if fleet.queue[name]]))
        finished.append((name, fleet.queue[name][0]))
        work(machine, fleet, name)
    assert min(sum(c == chunk.number for _, c in finished) for chunk in plan.chunks) >= blocks
    send_all(machine, fleet)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(fleet.total, fleet.plain, rtol=1e-8, atol=1e-8)


def test_broken_first_client_is_outvoted():
    plan = planned(3, 2, replicas=3, blocks=2)
    machine, clients = begun(plan)
    broken, one, two = plan.clients
    right, wrong = (1.0,) * 16, (5.0,) * 16
    for chunk in (0, 1):
        for name in (one, two):
            clients.hold(name, chunk)
        clients.obey(machine.handle(progress(broken, chunk, sketch=wrong)))
        clients.obey(machine.handle(progress(one, chunk, sketch=right)))
        clients.obey(machine.handle(progress(two, chunk, sketch=right)))
    send_all(machine, clients)
    assert machine.outcome == "synced"
    assert {client for client, _ in clients.requests} == {one, two}
    assert {refuse.client for refuse in clients.refused} == {broken}


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_changed_verdict_counts_only_held_replicas(*, keeps: bool, fails: bool):
    plan = planned(4, 2, replicas=4, blocks=4)
    machine, clients = begun(plan)
    first, refused, third, _ = plan.clients
    tells(machine, clients, first, 0, ONE)
    tells(machine, clients, refused, 0, OTHER)
    clients.obey(machine.handle(Lost(2.0, refused)))
    kept = (Kept(0, 0, TARGET),) if keeps else ()
    clients.obey(machine.handle(joined(plan, refused, 3.0, kept)))
    if fails:
        clients.obey(machine.handle(Failed(3.0, refused, 1, "it is gone", (0,))))
    tells(machine, clients, third, 0, OTHER)
    assert held(machine) == ({1: 1, 2: 1} if keeps and not fails else {0: 1})


@pytest.mark.parametrize("holds", [True, False])
def test_kept_replica_no_longer_held_does_not_count(*, holds: bool):
    plan = planned(3, 2, replicas=3, blocks=1)
    machine, clients = begun(plan)
    one, other, _ = plan.clients
    tells(machine, clients, one, 0, ONE)
    tells(machine, clients, other, 0, OTHER)
    for name in (other, one):
        clients.obey(machine.handle(Lost(2.0, name)))
    event = joined(plan, other, 3.0, (Kept(0, 0, TARGET),))
    clients.obey(machine.handle(event if holds else replace(event, holds=event.holds[1:])))
    assert held(machine) == ({1: 1} if holds else {})


def test_replica_of_lost_holder_refuses_no_other_while_working():
    plan = planned(2, 2, replicas=2, blocks=1)
    for early in (True, False):
        machine, clients = begun(plan)
        one, other = plan.clients
        tells(machine, clients, one, 0, ONE)
        if early:
            tells(machine, clients, other, 0, OTHER)
            assert held(machine) == {0: 1}
        clients.obey(machine.handle(Lost(2.0, one)))
        tells(machine, clients, other, 1, ONE)
        if not early:
            tells(machine, clients, other, 0, OTHER)
        send_all(machine, clients)
        assert machine.outcome == "synced"
        np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


@pytest.mark.parametrize("early", [True, False])
def test_replica_of_lost_holder_refuses_others_only_if_in_sum(*, early: bool):
    plan = planned(2, 2, replicas=2, blocks=1)
    for summed in (True, False):
        machine, clients = begun(plan)
        one, other = plan.clients
        tells(machine, clients, one, 0, ONE)
        if early:
            tells(machine, clients, other, 0, OTHER)
        tells(machine, clients, other, 1, ONE)
        assert {(client, *each.mix.chunks) for (client, _), each in clients.requests.items()} == {
            (one, 0),
            (other, 1),
        }
        clients.unsent.remove((one, 0))
        if summed:
            clients.obey(machine.handle(Codeword(2.0, one, 1, 0)))
        clients.obey(machine.handle(Lost(2.0, one)))
        if not early:
            tells(machine, clients, other, 0, OTHER)
            assert machine.scheduler._tracker.done_wc[1, 0] == (not summed)
        send_all(machine, clients)
        assert machine.outcome == "synced"
        np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def test_replica_refused_while_collecting_does_not_enter_sum():
    plan = planned(2, 2, replicas=2, blocks=2)
    machine, clients = begun(plan)
    one, other = plan.clients
    for name in (one, other):
        for chunk in (0, 1):
            clients.hold(name, chunk)
            clients.obey(machine.handle(progress(name, chunk, sketch=(1.0,) * 16)))
    kept = tuple(Kept(0, chunk, TARGET) for chunk in (0, 1))
    clients.obey(machine.handle(joined(plan, one, 3.0, kept)))
    clients.obey(machine.handle(progress(one, 0, 3.0, sketch=(9.0,) * 16)))
    late = machine.handle(Codeword(4.0, one, 1, 0))
    assert [type(command) for command in late] == [Refuse]


def test_late_returning_client_has_full_upload_time():
    plan = planned(2, 1, replicas=2, blocks=2)
    machine, clients = begun(plan)
    one, other = plan.clients
    work(machine, clients, one)
    work(machine, clients, other)
    clients.obey(machine.handle(Codeword(2.0, other, 1, 0)))
    clients.obey(machine.handle(joined(plan, one, 50.0, (Kept(0, 0, TARGET),))))
    while machine.next_tick < 100.0:
        assert machine.state is State.COLLECTING
        clients.obey(machine.handle(Tick(machine.next_tick)))
    assert machine.statistics.failure == ["", ""]


def test_message_from_previous_round_is_refused_without_blame():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine = Round(plan, Assignment(2, 1, TARGET, 0), sync)
    machine.start(0.0, [joined(plan, client) for client in plan.clients])
    one, other = plan.clients
    for event in (Codeword(1.0, one, 1, 0), Failed(1.0, one, 1, "broken")):
        assert [type(command) for command in machine.handle(event)] == [Refuse]
    assert machine.handle(progress(one, 0)) == ()
    assert machine.statistics.refused == [0, 0]
    assert [type(command) for command in machine.handle(progress(other, 0, round=3))] == [Refuse]
    assert machine.statistics.refused == [0, 1]


@pytest.mark.parametrize("live", [True, False])
def test_late_returning_client_without_work_has_time_to_train(*, live: bool):
    plan = planned(1, 2, replicas=1, blocks=1)
    machine, clients = begun(plan, live=live)
    name = plan.clients[0]
    finish_working(machine, clients)
    clients.unsent.clear()
    clients.at[name].restart(keeps=False)
    clients.obey(machine.handle(joined(plan, name, 2.0, live=live)))
    while machine.next_tick < 152.0:
        clients.obey(machine.handle(Tick(machine.next_tick)))
        assert machine.state is State.COLLECTING, "50 s to send, and before that 100 s to train"
    while clients.queue[name]:
        work(machine, clients, name, 151.0)
    send_all(machine, clients, 151.0)
    assert machine.outcome == "synced"


def test_repeated_failure_report_changes_nothing():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, clients = begun(plan)
    clients.obey(machine.handle(Failed(1.0, plan.clients[0], 1, "broken", (0,))))
    for _ in range(3):
        said = machine.handle(Failed(1.0, plan.clients[0], 1, "broken", (0,)))
        assert [type(command) for command in said] == [Refuse]


@pytest.mark.parametrize("live", [True, False])
def test_late_return_gets_no_unusable_work_and_keeps_deadline(*, live: bool):
    plan = planned(2, 3, replicas=1, blocks=1)
    machine, clients = begun(plan, live=live)
    one, other = plan.clients
    clients.obey(machine.handle(Lost(0.5, one)))
    finish_working(machine, clients, [other])
    assert (machine.state, machine.next_tick) == (State.COLLECTING, 51.0)
    for now in (2.0, 40.0):
        given = machine.handle(joined(plan, one, now, live=live))
        assert [(type(each), each.order) for each in given] == [(Work, ())] * live, (
            "it may be asked for more yet"
        )
        assert machine.next_tick == 51.0
        clients.obey(machine.handle(Lost(now, one)))
    lacking = 3 - len(clients.done[other])
    send_all(machine, clients)
    assert (machine.outcome, len(machine.short)) == ("approximate", lacking)


@pytest.mark.parametrize("blocks", [1, 2])
def test_late_returning_client_gets_only_missing_chunks(blocks: int):
    plan = planned(3, 6, replicas=2, blocks=blocks)
    machine, clients = begun(plan)
    finish_working(machine, clients)
    one, *others = plan.clients
    alone = clients.done[one] - set.union(*(clients.done[client] for client in others))
    assert bool(alone) == (blocks == 1), "with two blocks each chunk has two copies"
    clients.at[one].restart(keeps=False)
    (given, *asked) = machine.handle(joined(plan, one, 3.0))
    assert set(given.order) == alone
    assert any(isinstance(each, Repair) for each in asked) == (blocks == 2)


def test_returning_client_is_not_asked_for_lost_work():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, clients = begun(plan)
    name = plan.clients[0]
    clients.obey(machine.handle(Joined(1.0, name, live=True, holds=(Held(plan.chunks[1].name, 10),))))
    assert clients.queue[name] == [1]


# ---- clients that leave


def test_others_do_rest_of_leaving_clients_work():
    plan = planned(3, 6, replicas=2, blocks=1)
    machine, clients = begun(plan)
    leaver = plan.clients[0]
    work(machine, clients, leaver)
    clients.obey(machine.handle(Leaving(1.0, leaver, 20.0)))
    assert machine.next_tick == 19.0
    clients.stop(leaver)
    finish_working(machine, clients, plan.clients[1:])
    send_all(machine, clients)
    assert machine.outcome == "synced"
    assert not machine.forced, "it ended by itself, with all chunks"
    assert machine.statistics.finished[0] == 1
    np.testing.assert_allclose(clients.total, clients.plain)


def test_leaving_client_is_not_asked_for_chunks_while_collecting():
    plan = planned(3, 3, replicas=2, blocks=1)
    machine, clients = begun(plan)
    finish_working(machine, clients)
    leaver, other = plan.clients[0], plan.clients[1]
    clients.obey(machine.handle(Leaving(2.0, leaver, 20.0)))
    commands = machine.handle(Lost(2.5, other))
    assert not [each for each in commands if isinstance(each, Take) and each.client == leaver]
    clients.obey(commands)
    send_all(machine, clients)
    assert machine.state is State.CLOSED


def test_chunk_alone_on_leaving_client_is_not_awaited():
    plan = planned(2, 4, replicas=1, blocks=1, held=[(0, 1), (2, 3)])
    machine, clients = begun(plan)
    leaver = plan.clients[0]
    work(machine, clients, leaver)
    clients.obey(machine.handle(Leaving(1.0, leaver, 20.0)))
    clients.stop(leaver)
    finish_working(machine, clients, plan.clients[1:])
    send_all(machine, clients)
    assert machine.outcome == "approximate"
    assert len(machine.short) == 1
    assert machine.statistics.counted == [1, 2]
