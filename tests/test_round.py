"""The round, driven by every order of events that hypothesis can think of, against the plain sum."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedgc.config import RunConfig
from fedgc.gate import Decision
from fedgc.history import Speeds
from fedgc.lateness import PATIENCE
from fedgc.messages import (
    Codeword,
    Command,
    Continue,
    Event,
    Failed,
    Held,
    Joined,
    Kept,
    Loaded,
    Lost,
    Pressed,
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
from fedgc.plan import Chunk, Fleet, Plan, make_plan
from fedgc.round import COLLECTING, WORKING, Assignment, Round, State
from tests.coded_round import (
    ONE,
    OTHER,
    SIZE,
    TARGET,
    Devices,
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


class AnyOrder(RuleBasedStateMachine):
    """Joins, reports, deaths, returns, failures, late, duplicate and foreign events, in any order."""

    @initialize(
        devices=st.integers(1, 5),
        chunks=st.integers(1, 6),
        replicas=st.sampled_from([1, 2, 3, 4, "auto"]),
        blocks=st.sampled_from([1, 2, 3, "auto"]),
        uplink=st.sampled_from([None, 1.0, 1e9]),
        lag=st.sampled_from([1.0, 4.0]),
        live=st.booleans(),
        data=st.data(),
    )
    def begin(
        self,
        devices: int,
        chunks: int,
        replicas: int | str,
        blocks: int | str,
        uplink: float | None,
        lag: float,
        data: st.DataObject,
        *,
        live: bool,
    ) -> None:
        if isinstance(blocks, int) and isinstance(replicas, int):
            blocks = min(blocks, replicas)
        held = None
        if data.draw(st.sampled_from([False, True, True]), "some chunks are private"):
            some = st.sets(st.integers(0, 2 * chunks), max_size=chunks)
            held = [data.draw(some) for _ in range(devices)]
            held[0] = held[0] or {chunks}
            chunks = 1 + 2 * chunks
        self.plan = planned(
            devices, chunks, replicas=replicas, blocks=blocks, uplink=uplink, lag=lag, held=held
        )
        self.now = 0.0
        self.round, self.devices = begun(self.plan, live=live)
        self.live = set(self.plan.devices)

    def say(self, event: Event) -> None:
        was_open = self.open()
        self.devices.obey(self.round.handle(event))
        if was_open and not self.open():
            assert {close.device for close in self.devices.closed} == self.live

    def open(self) -> bool:
        return self.round.state is not State.CLOSED

    @precondition(lambda self: any(self.devices.queue[d] for d in self.live))
    @rule(data=st.data())
    def finish_a_chunk(self, data: st.DataObject) -> None:
        device = data.draw(st.sampled_from(sorted(d for d in self.live if self.devices.queue[d])))
        if self.open():
            work(self.round, self.devices, device, self.now)

    @rule(data=st.data(), sketch=st.sampled_from([(), (1.0,) * 16, (1.0 + 1e-6,) * 16, (7.0,) * 16]))
    def finish_a_chunk_that_was_skipped(self, data: st.DataObject, sketch: tuple[float, ...]) -> None:
        device = data.draw(st.sampled_from(self.plan.devices))
        chunk = data.draw(st.sampled_from(self.plan.chunks)).number
        if device in self.live:
            self.devices.done[device].add(chunk)
        self.say(progress(device, chunk, self.now, sketch=sketch))

    @precondition(lambda self: self.devices.unsent)
    @rule(data=st.data())
    def send_a_codeword(self, data: st.DataObject) -> None:
        device, attempt = data.draw(st.sampled_from(self.devices.unsent))
        self.devices.unsent.remove((device, attempt))
        if device in self.live:
            self.arrives(device, attempt)
            self.say(Codeword(self.now, device, 1, attempt))

    @precondition(lambda self: self.devices.requests)
    @rule(data=st.data())
    def send_a_codeword_again_or_late(self, data: st.DataObject) -> None:
        device, attempt = data.draw(st.sampled_from(sorted(self.devices.requests)))
        if (device, attempt) not in self.devices.unsent:
            self.arrives(device, attempt)
            self.say(Codeword(self.now, device, 1, attempt))

    def arrives(self, device: str, attempt: int) -> None:
        """A codeword that was asked for takes the place of one that was sent along."""
        if attempt == 0:
            self.devices.ahead.pop(device, None)

    @precondition(lambda self: any(device in self.live for device in self.devices.can_send_along()))
    @rule(data=st.data())
    def send_along_what_was_foreseen(self, data: st.DataObject) -> None:
        able = [device for device in self.devices.can_send_along() if device in self.live]
        self.say(self.devices.sends_along(data.draw(st.sampled_from(able)), self.now))

    @precondition(lambda self: any(self.devices.queue[d] for d in self.live))
    @rule(data=st.data())
    def answer_a_whole_letter(self, data: st.DataObject) -> None:
        """First what is sent along, then the reports: so nothing is asked for that is there."""
        device = data.draw(st.sampled_from(sorted(d for d in self.live if self.devices.queue[d])))
        self.devices.done[device] |= set(self.devices.queue[device])
        if device in self.devices.can_send_along():
            self.say(self.devices.sends_along(device, self.now))
        while self.open() and self.devices.queue[device]:
            work(self.round, self.devices, device, self.now)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def lose_a_device(self, data: st.DataObject) -> None:
        device = data.draw(st.sampled_from(sorted(self.live)))
        self.live.discard(device)
        self.devices.queue[device] = []
        self.say(Lost(self.now, device))

    @rule(data=st.data(), keeps=st.booleans(), live=st.booleans())
    def join_or_return(self, data: st.DataObject, *, keeps: bool, live: bool) -> None:
        device = data.draw(st.sampled_from(self.plan.devices))
        if not keeps:
            self.devices.done[device] = set()
            self.devices.unsent = [each for each in self.devices.unsent if each[0] != device]
        kept = tuple(Kept(0, chunk, TARGET) for chunk in sorted(self.devices.done[device]))
        self.devices.queue[device] = []
        self.live.add(device)
        self.say(joined(self.plan, device, self.now, kept, live=live))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), all_of_it=st.booleans())
    def fail(self, data: st.DataObject, *, all_of_it: bool) -> None:
        device = data.draw(st.sampled_from(sorted(self.live)))
        chunk = data.draw(st.sampled_from(self.plan.chunks)).number
        self.say(Failed(self.now, device, 1, "out of memory", () if all_of_it else (chunk,)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def have_no_room_left(self, data: st.DataObject) -> None:
        """A device that nothing is freed of gives up what it has finished first."""
        device = data.draw(st.sampled_from(sorted(self.live)))
        before = self.devices.freed[device]
        self.say(Pressed(self.now, device, 1))
        if self.open() and self.devices.freed[device] == before and self.devices.done[device]:
            lost = min(self.devices.done[device])
            self.devices.done[device].discard(lost)
            self.say(Failed(self.now, device, 1, "no room", (lost,)))

    @rule(kind=st.sampled_from(["stranger", "old", "unknown", "unasked", "report", "early"]))
    def say_what_does_not_belong_here(self, kind: str) -> None:
        device = self.plan.devices[0]
        before = (self.devices.terms[:], self.round.state)
        events: dict[str, Event] = {
            "stranger": progress("nobody", 0, self.now),
            "old": progress(device, self.plan.chunks[0].number, self.now, round=0),
            "unknown": progress(device, 999, self.now),
            "unasked": Codeword(self.now, device, 1, 77),
            "report": Report(self.now, device, 1, 3, 10, 1.0, 1.0, 0.5),
            "early": Tick(self.now),
        }
        self.say(events[kind])
        if self.now < self.round.next_tick:
            assert (self.devices.terms, self.round.state) == before

    @rule(seconds=st.sampled_from([1.0, 60.0, 1000.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        self.say(Tick(self.now))

    @invariant()
    def every_term_enters_the_sum_once(self) -> None:
        terms = self.devices.terms
        assert len(set(terms)) == len(terms)

    @invariant()
    def an_exact_round_is_the_plain_sum(self) -> None:
        if self.round.outcome == "synced":
            np.testing.assert_allclose(self.devices.total, self.devices.plain, rtol=1e-7, atol=1e-7)
            assert not self.round.short
        elif self.round.outcome == "approximate":
            assert self.round.short
            assert self.round.error is not None
            assert 0 <= self.round.error < np.inf
        else:
            assert self.round.outcome in (None, "empty")

    def teardown(self) -> None:
        """Whatever happened, time alone brings the round to its end."""
        if not hasattr(self, "round"):
            return
        ticks = 0
        while self.open():
            ticks += 1
            assert ticks <= (2 + LOOKS) * len(self.plan.devices) + 3, "the round does not end"
            assert np.isfinite(self.round.next_tick)
            self.now = max(self.now, self.round.next_tick)
            self.say(Tick(self.now))
        self.an_exact_round_is_the_plain_sum()


AnyOrder.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = AnyOrder.TestCase


# ---- the table, row by row


def test_the_sum_is_exact_and_each_codeword_is_a_block_long():
    plan = planned(4, 8, replicas=3, blocks=2)
    machine, devices = begun(plan)
    finish_working(machine, devices)
    assert machine.state is State.COLLECTING
    assert all(request.mix.blocks == 2 for request in devices.requests.values() if request.mix)
    send_all(machine, devices)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def answer(machine: Round, devices: Devices, name: str) -> None:
    """Answer a whole letter: what is sent along, then the reports."""
    devices.done[name] |= set(devices.queue[name])
    if name in devices.can_send_along():
        devices.obey(machine.handle(devices.sends_along(name)))
    while devices.queue[name] and machine.state is not State.CLOSED:
        work(machine, devices, name)


@pytest.mark.parametrize(("replicas", "blocks"), [(1, 1), (3, 1), (3, 2), (2, 2)])
def test_a_round_that_is_foreseen_asks_nobody(replicas: int, blocks: int):
    plan = planned(3, 7, replicas=replicas, blocks=blocks)
    machine, devices = begun(plan, live=False)
    loads = plan.placement.loads
    for w in sorted(range(3), key=lambda w: loads[w]):  # all are as quick, so who has least is first
        if machine.state is not State.CLOSED:
            answer(machine, devices, plan.devices[w])
    assert machine.outcome == "synced"
    assert not devices.requests
    assert not devices.refused
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_nobody_is_late_because_others_sent_theirs_ahead():
    plan = planned(4, 4, replicas=2, blocks=2)
    machine, devices = begun(plan, live=False)
    quiet = sorted(devices.foreseen)[-1]
    while machine.state is State.WORKING:
        for name in plan.devices:
            if machine.state is State.WORKING and devices.queue[name]:
                devices.done[name].add(devices.queue[name][0])
                if name in devices.can_send_along() and name != quiet:
                    devices.obey(machine.handle(devices.sends_along(name)))
                work(machine, devices, name)
    assert {name for name, _ in devices.requests} == {quiet}, "the others' lie there"
    assert machine.next_tick == 51.0, "nothing is known of how long it takes"
    send_all(machine, devices, 40.0)
    assert machine.outcome == "synced"
    assert machine.tally.repairs == 0
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_what_comes_otherwise_than_foreseen_is_asked_for_and_what_was_sent_along_forgotten():
    plan = planned(3, 7, replicas=3, blocks=2)
    machine, devices = begun(plan, live=False)
    foreseen = dict(devices.foreseen)
    first = next(iter(foreseen))
    devices.done[first] |= {chunk.number for chunk in plan.chunks}
    devices.obey(machine.handle(devices.sends_along(first)))
    devices.obey(machine.handle(Lost(1.0, first)))
    for name in plan.devices:
        if name != first:
            answer(machine, devices, name)
    assert machine.state is State.COLLECTING
    assert {device for device, _ in devices.requests} == set(plan.devices) - {first}
    devices.ahead.clear()
    send_all(machine, devices)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_what_is_sent_along_is_never_taken_for_what_was_asked_for():
    plan = planned(3, 7, replicas=3, blocks=2)
    machine, devices = begun(plan, live=False)
    late = next(name for name in plan.devices if name not in devices.foreseen)
    for name in (late, next(iter(devices.foreseen))):  # the one that was not foreseen is there first
        while devices.queue[name]:
            work(machine, devices, name)
    assert machine.state is State.COLLECTING
    both = {device for device, _ in devices.requests} & set(devices.can_send_along())
    assert both, "what it mixes is finished, and something else was asked for"
    for name in both:
        assert machine.handle(devices.sends_along(name)) == ()
    devices.ahead.clear()
    send_all(machine, devices)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_a_codeword_that_was_sent_along_and_is_not_wanted_is_not_held_against_its_device():
    plan = planned(2, 4, replicas=2, blocks=1)
    machine, devices = begun(plan, live=False)
    one, other = plan.devices
    answer(machine, devices, one)
    assert machine.outcome == "synced"
    assert machine.handle(Codeword(2.0, other, 1, 0, ahead=True)) == ()
    assert machine.tally.refused == [0, 0]


def test_nothing_is_foreseen_where_somebody_can_be_steered_or_the_gate_may_skip():
    plan = planned(2, 4, replicas=2, blocks=1)
    assert not begun(plan)[1].foreseen
    assignment = Assignment(number=1, version=0, target=TARGET, seed=0, certain=False)
    given = Round(plan, assignment, sync).start(0.0, [joined(plan, d, live=False) for d in plan.devices])
    assert all(each.coefficients is None for each in given if isinstance(each, Work))


def test_what_has_enough_copies_is_skipped_and_never_started_elsewhere():
    plan = planned(3, 6, replicas=3, blocks=1)
    machine, devices = begun(plan)
    work(machine, devices, plan.devices[0])
    first = devices.done[plan.devices[0]].copy()
    assert all(not first & set(devices.queue[device]) for device in plan.devices)


@settings(max_examples=60)
@given(
    devices=st.integers(2, 5),
    chunks=st.integers(4, 12),
    turns=st.lists(st.integers(0, 4), min_size=12, max_size=12),
)
def test_nobody_begins_what_another_is_at_while_a_chunk_of_its_own_has_nobody(devices, chunks, turns):
    plan = planned(devices, chunks, replicas=devices, blocks=1)
    machine, others = begun(plan)
    for turn in turns:
        name = plan.devices[turn % devices]
        if machine.state is not State.WORKING or not others.queue[name]:
            break
        work(machine, others, name)
        at, *rest = others.queue[name] or [None]
        theirs = {queue[0] for device, queue in others.queue.items() if device != name and queue}
        made = set.union(*others.done.values())
        if at in theirs:
            assert not set(rest) - theirs - made


def test_who_is_moved_hears_it_so_that_it_does_right_wherever_it_stops_listening():
    plan = planned(4, 8, replicas=4, blocks=1)
    machine, devices = begun(plan)
    name, other = plan.devices[:2]
    told: list[Command] = []
    while Skip not in map(type, told):
        work(machine, devices, other)
        chunk, at = devices.queue[name][:2]
        devices.queue[name].remove(chunk)
        commands = machine.handle(progress(name, chunk))
        told = [command for command in commands if command.device == name]
        devices.obey(commands)
    (best,) = told[0].chunks
    assert told == [Take(name, 1, (best,)), Skip(name, 1, at), Take(name, 1, (at,)), Take(name, 1, (best,))]
    assert devices.queue[name][:2] == [best, at]


def test_a_lost_device_costs_only_its_unfinished_chunks():
    plan = planned(3, 6, replicas=3, blocks=2)
    machine, devices = begun(plan)
    work(machine, devices, plan.devices[0])
    devices.obey(machine.handle(Lost(1.0, plan.devices[0])))
    finish_working(machine, devices, plan.devices[1:])
    send_all(machine, devices)
    assert machine.outcome == "synced"
    assert machine.tally.counted[0] == 0
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


@pytest.mark.parametrize("left_out", [False, True])
def test_a_device_is_given_what_it_lists_in_whatever_order(*, left_out: bool):
    plan = planned(3, 6, replicas=3, blocks=1)
    machine, _ = begun(plan)
    device = plan.devices[0]
    (first, *rest) = plan.shares[device]
    lists = [chunk for chunk in reversed(plan.chunks) if not (left_out and chunk.number == first)]
    holds = tuple(Held(chunk.name, chunk.samples) for chunk in lists)
    machine.handle(Lost(1.0, device))
    again = machine.handle(Joined(2.0, device, live=True, holds=holds))
    given = next(each for each in again if isinstance(each, Work))
    assert set(given.order) == set(rest if left_out else (first, *rest))


def test_a_returning_device_is_asked_first_for_what_it_kept_of_this_version_and_target():
    plan = planned(2, 4, replicas=2, blocks=1)
    for kept, first in (
        (Kept(0, 0, TARGET), True),
        (Kept(5, 0, TARGET), False),
        (Kept(0, 0, 2 * TARGET), False),
    ):
        machine, devices = begun(plan)
        name, other = plan.devices
        devices.obey(machine.handle(progress(other, 0)))
        devices.obey(machine.handle(Lost(1.0, name)))
        devices.obey(machine.handle(joined(plan, name, 2.0, (kept,))))
        assert (devices.queue[name][0] == 0) is first
        assert (0 in devices.queue[name]) is first, "the other device has finished it"


def test_a_lost_upload_is_repaired_by_other_holders():
    plan = planned(4, 8, replicas=4, blocks=2)
    machine, devices = begun(plan)
    for name in plan.devices[:2]:  # two copies of everything, then a third as a reserve
        devices.queue[name] = [chunk.number for chunk in plan.chunks]
    while machine.state is State.WORKING:
        for name in plan.devices[:2]:
            if machine.state is State.WORKING and devices.queue[name]:
                work(machine, devices, name)
    spare = plan.devices[2]
    for chunk in plan.chunks:
        devices.done[spare].add(chunk.number)
        devices.obey(machine.handle(progress(spare, chunk.number)))
    sender = devices.unsent[0][0]
    devices.unsent = [each for each in devices.unsent if each[0] != sender]
    devices.obey(machine.handle(Lost(3.0, sender)))
    repairs = [request for request in devices.requests.values() if isinstance(request, Repair)]
    assert {repair.column for repair in repairs} == {sender}
    send_all(machine, devices)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)
    late = machine.handle(Codeword(9.0, sender, 1, 0))
    assert [type(command) for command in late] == [Refuse]


def test_a_chunk_that_nobody_else_finished_is_worked_on_again_before_it_is_given_up():
    plan = planned(2, 4, replicas=2, blocks=1)
    machine, devices = begun(plan)
    finish_working(machine, devices, plan.devices[:1])
    devices.unsent.clear()
    devices.obey(machine.handle(Lost(3.0, plan.devices[0])))
    other = plan.devices[1]
    assert set(devices.queue[other]) == {chunk.number for chunk in plan.chunks}
    while devices.queue[other]:
        work(machine, devices, other)
    send_all(machine, devices)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_a_round_without_any_holder_of_a_chunk_says_which_it_lacks():
    plan = planned(2, 4, replicas=1, blocks=1)
    machine, devices = begun(plan)
    alone = {plan.chunks[c].number for c in plan.placement.orders[0]}
    devices.obey(machine.handle(Lost(1.0, plan.devices[0])))
    finish_working(machine, devices, plan.devices[1:])
    send_all(machine, devices)
    assert machine.outcome == "approximate"
    assert set(machine.short) == alone


def test_the_deadline_takes_what_there_is():
    plan = planned(2, 8, replicas=2, blocks=2)
    machine, devices = begun(plan)
    for name in plan.devices:
        work(machine, devices, name)
    devices.obey(machine.handle(Tick(99.0)))
    assert machine.state is State.WORKING
    devices.obey(machine.handle(Tick(100.0)))
    send_all(machine, devices)
    assert machine.outcome == "approximate"
    assert len(machine.short) >= 6


def loading(plan: Plan, limit_s: float) -> tuple[Round, Devices]:
    """Devices whose model is on its way, for so long at most; there are 100 s to work."""
    this = Assignment(number=1, version=3, target=TARGET, seed=0, model_limit_s=limit_s)
    machine, devices = Round(plan, this, sync), Devices(plan)
    devices.obey(machine.start(0.0, [joined(plan, device) for device in plan.devices]))
    return machine, devices


def test_the_time_to_work_begins_when_all_have_the_model():
    plan = planned(2, 4, replicas=2, blocks=2)
    machine, devices = loading(plan, 1000.0)
    one, other = plan.devices
    assert machine.next_tick == 1100.0
    machine.handle(Loaded(20.0, one, 3))
    machine.handle(Loaded(25.0, other, 2))  # of the round before
    assert machine.next_tick == 1100.0
    work(machine, devices, one)
    work(machine, devices, other, 300.0)
    assert machine.next_tick == 400.0, "who reports has the model"
    devices.obey(machine.handle(Tick(399.0)))
    assert machine.state is State.WORKING
    devices.obey(machine.handle(Tick(400.0)))
    assert machine.state is State.COLLECTING


def test_a_model_that_does_not_come_is_waited_for_no_longer_than_its_limit_allows():
    plan = planned(2, 2, replicas=2, blocks=2)
    machine, devices = loading(plan, 50.0)
    one, other = plan.devices
    machine.handle(Loaded(40.0, one, 3))
    work(machine, devices, one)
    assert machine.next_tick == 150.0
    machine.handle(Loaded(60.0, other, 3))
    assert machine.next_tick == 150.0, "its own limit bounds the whole"
    machine, devices = loading(plan, 50.0)
    machine.handle(Loaded(40.0, one, 3))
    devices.obey(machine.handle(Lost(45.0, other)))
    assert machine.next_tick == 140.0, "nobody waits for the model of one that is gone"


def test_nobody_waits_for_the_model_of_a_device_that_was_not_there_at_the_start():
    plan = planned(2, 2, replicas=2, blocks=2)
    one, other = plan.devices
    left = frozenset({one, other, "of no plan"})
    this = Assignment(1, 3, TARGET, 0, frozenset({one}), loading=left, model_limit_s=1000.0)
    for strikes in ((), (Lost(6.0, other),), (Loaded(6.0, "of no plan", 3),)):
        machine, devices = Round(plan, this, sync), Devices(plan)
        devices.obey(machine.start(0.0, [joined(plan, one)]))
        assert machine.next_tick == 1100.0
        for event in (Loaded(5.0, one, 3), *strikes):
            assert machine.handle(event) == ()
            assert machine.next_tick == 105.0


def test_a_model_that_came_while_collecting_or_whose_device_is_gone_is_on_its_way_no_more():
    plan = planned(3, 2, replicas=3, blocks=1)
    machine, devices = loading(plan, 50.0)
    one, other, third = plan.devices
    finish_working(machine, devices, [one])
    assert machine.loading == {other, third}
    machine.handle(Loaded(2.0, other, 2))
    assert machine.loading == {other, third}, "that was another"
    machine.handle(Loaded(2.0, other, 3))
    devices.obey(machine.handle(Lost(2.0, third)))
    assert machine.loading == set()
    devices.obey(machine.handle(joined(plan, third, 3.0)))
    assert machine.loading == {third}
    devices.obey(machine.handle(progress(third, 0, 4.0)))
    assert machine.loading == set()


def test_nobody_waits_for_the_model_of_a_device_that_can_give_nothing():
    plan = planned(2, 4, replicas=2, blocks=2)
    machine, devices = loading(plan, 1000.0)
    one, other = plan.devices
    machine.handle(Loaded(20.0, one, 3))
    work(machine, devices, one)
    devices.obey(machine.handle(Failed(25.0, other, 0, "it could not get the model of the round before")))
    assert machine.next_tick == 1100.0
    devices.obey(machine.handle(Failed(25.0, other, 1, "it could not get the model")))
    assert machine.next_tick == 120.0


def test_a_device_that_could_not_train_on_a_chunk_has_the_model():
    plan = planned(2, 4, replicas=2, blocks=2)
    machine, devices = loading(plan, 1000.0)
    one, other = plan.devices
    machine.handle(Loaded(20.0, one, 3))
    devices.obey(machine.handle(Failed(25.0, other, 1, "the loss is nan", (0,))))
    assert machine.next_tick == 125.0


@pytest.mark.parametrize("lost", [False, True])
def test_whoever_joins_in_mid_round_does_not_move_the_deadline(lost: bool):
    plan = planned(3, 4, replicas=2, blocks=2)
    this = Assignment(number=1, version=3, target=TARGET, seed=0, model_limit_s=1000.0)
    machine, devices = Round(plan, this, sync), Devices(plan)
    one, other, late = plan.devices
    devices.obey(machine.start(0.0, [joined(plan, one), joined(plan, other)]))
    machine.handle(Loaded(10.0, one, 3))
    devices.obey(machine.handle(joined(plan, late, 11.0)))
    assert machine.next_tick == 1100.0, "one that has been there has no model yet"
    machine.handle(Loaded(20.0, other, 3))
    assert machine.next_tick == 120.0, "though the late one has none"
    if lost:
        devices.obey(machine.handle(Lost(30.0, other)))
    for event in (joined(plan, other, 60.0), Loaded(70.0, late, 3)):
        devices.obey(machine.handle(event))
        assert machine.next_tick == 120.0, f"after {event}"
    work(machine, devices, other)
    assert machine.next_tick == 120.0


def test_a_model_that_comes_when_nobody_needs_it_any_more_is_no_fault():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, devices = loading(plan, 50.0)
    one, other = plan.devices
    while machine.state is State.WORKING:
        work(machine, devices, one)
    assert machine.handle(Loaded(60.0, other, 3)) == ()
    send_all(machine, devices)
    assert machine.outcome == "synced"
    assert machine.handle(Loaded(70.0, other, 3)) == ()
    assert machine.tally.refused == [0, 0]


def test_nothing_finished_is_an_empty_round():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, devices = begun(plan)
    devices.obey(machine.handle(Tick(100.0)))
    assert machine.outcome == "empty"
    assert not any(close.frees for close in devices.closed)


def test_the_gate_is_asked_once_at_the_first_copy_of_everything():
    plan = planned(2, 4, replicas=2, blocks=2)
    asked = []

    def skip(reports) -> Decision:
        asked.append(reports)
        return Decision(sync=False, reason="nothing new")

    machine, devices = begun(plan, skip)
    finish_working(machine, devices)
    assert machine.outcome == "skipped"
    assert [sorted(item.source for item in reports.items) for reports in asked] == [[0, 1, 2, 3]]
    assert not devices.requests
    assert not any(close.frees for close in devices.closed)


def test_a_copy_that_differs_from_the_first_is_not_counted_and_named():
    plan = planned(2, 2, replicas=2, blocks=2)
    machine, devices = begun(plan)
    one, other = plan.devices
    tells(machine, devices, one, 0, (1.0,) * 16)
    tells(machine, devices, other, 0, (1.1,) * 16)
    assert not devices.refused, "which of the two is wrong, nobody knows"
    assert machine.tally.disputed == {0: (0, 1)}
    tells(machine, devices, one, 1, (1.0,) * 16)
    tells(machine, devices, other, 1, (1.0 + 1e-6,) * 16)
    assert machine.tally.disputed == {0: (0, 1)}
    assert machine.effort.holds == {0: 2, 1: 1}


def test_false_sketches_that_come_first_are_blamed_on_their_device_alone():
    """Each chunk lies with the false device and one other: no chunk by itself tells who is wrong."""
    holds = {"false": frozenset(range(6)), "one": frozenset({0, 1}), "two": frozenset({2, 3, 4, 5})}
    table = tuple(Chunk(number, f"chunk {number}", 10) for number in range(6))
    plan = make_plan(Fleet(holds, table, SIZE), Speeds(), RunConfig(blocks=1, deadline_s=100.0), steps=TARGET)
    machine, devices = begun(plan)
    for chunk in range(5):
        tells(machine, devices, "false", chunk, tuple(float(chunk + 2) for _ in ONE))
    for name in ("one", "two"):
        for chunk in sorted(holds[name] - {5}):
            tells(machine, devices, name, chunk, ONE)
    assert {refuse.device for refuse in devices.refused} == {"false"}
    assert machine.tally.failure[0].startswith("its copies differ from those of several other devices")
    assert machine.effort.holds == {1: 2, 2: 3}
    tells(machine, devices, "two", 5, ONE)
    send_all(machine, devices)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_a_copy_without_a_sketch_is_refused_where_another_has_one():
    for mute_first in (True, False):
        plan = planned(3, 1, replicas=3, blocks=3)
        machine, devices = begun(plan)
        mute, *others = plan.devices
        for name in (mute, *others) if mute_first else (*others, mute):
            tells(machine, devices, name, 0, () if name == mute else ONE)
        assert {refuse.device for refuse in devices.refused} == {mute}
        assert machine.effort.holds == {1: 1, 2: 1}


def test_blocks_are_chosen_at_the_stop_by_what_waiting_costs():
    slow, quick = (
        planned(3, 6, replicas=3, blocks="auto", uplink=0.1),
        planned(3, 6, replicas=3, blocks="auto", uplink=1e9),
    )
    for plan, blocks in ((slow, 3), (quick, 1)):
        machine, devices = begun(plan)
        finish_working(machine, devices)
        assert machine.solution is not None
        assert machine.solution.blocks == blocks
        send_all(machine, devices)
        np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


@pytest.mark.parametrize(
    ("limit", "wires"), [(1e-6, {"float32"}), (5e-3, {"bf16"}), (3e-2, {"int8"}), (0.3, {"int8"})]
)
@pytest.mark.parametrize("lost", [False, True])
def test_numbers_are_as_short_as_the_error_limit_allows(limit: float, wires: set[str], *, lost: bool):
    plan = planned(4, 8, replicas=3, blocks=2, settings={"wire": "short", "error-limit": limit})
    machine, devices = begun(plan, size=5000)
    finish_working(machine, devices)
    if lost:
        away, _ = devices.unsent.pop(0)
        devices.obey(machine.handle(Lost(2.0, away)))
    send_all(machine, devices)
    assert machine.outcome == "synced"
    assert {request.wire for request in devices.requests.values()} == wires
    assert all(isinstance(each, Reveal) for each in devices.requests.values()) is not lost
    error = np.linalg.norm(devices.total - devices.plain) / np.linalg.norm(devices.plain)
    assert error <= limit


def test_an_upload_that_never_ends_is_made_good_by_others():
    plan = planned(3, 6, replicas=3, blocks=1)
    machine, devices = begun(plan)
    finish_working(machine, devices)
    silent = devices.unsent.pop(0)[0]
    send_all(machine, devices)
    while machine.next_tick < 50.0:
        devices.obey(machine.handle(Tick(machine.next_tick)))
    assert machine.state is State.COLLECTING, "it is late, but nobody finishes what it has"
    devices.obey(machine.handle(Tick(machine.next_tick)))
    for name in plan.devices:
        while devices.queue[name] and name != silent:
            work(machine, devices, name, 60.0)
    send_all(machine, devices, 60.0)
    assert machine.outcome == "synced"
    assert machine.tally.failure[plan.devices.index(silent)] == "upload too slow"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def one_is_late(blocks: int = 1, step_s: float = 0.1) -> tuple[Round, Devices, str]:
    """All but the first have sent theirs at 2 s, one second after they were asked."""
    machine, devices = begun(replace(planned(4, 8, replicas=4, blocks=blocks), step_s=(step_s,) * 4))
    finish_working(machine, devices)
    slow = devices.unsent[0][0]
    for name, attempt in devices.unsent[1:]:
        devices.obey(machine.handle(Codeword(2.0, name, 1, attempt)))
    devices.unsent = devices.unsent[:1]
    return machine, devices, slow


def stand_in(machine: Round, devices: Devices, slow: str) -> None:
    """Let time pass until somebody is late, and the others finish what they are told to take."""
    devices.obey(machine.handle(Tick(machine.next_tick)))
    for name in machine.plan.devices:
        while name != slow and devices.queue[name]:
            work(machine, devices, name, machine.next_tick)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_others_stand_in_for_an_upload_that_takes_much_longer_than_most_did(blocks: int):
    machine, devices, slow = one_is_late(blocks)
    assert machine.next_tick == pytest.approx(1.0 + PATIENCE), "asked at 1 s, and half needed a second"
    stand_in(machine, devices, slow)
    repairs = [devices.requests[key] for key in devices.unsent[1:]]
    assert repairs
    assert all(isinstance(each, Repair) and each.column == slow != each.device for each in repairs)
    devices.unsent = devices.unsent[1:]
    send_all(machine, devices, 4.0)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)
    assert machine.tally.failure == [""] * 4
    assert machine.tally.refused == [0] * 4


def test_nobody_stands_in_who_would_take_longer_than_what_is_late():
    machine, *_ = one_is_late(step_s=1.0)
    chunk_s, upload_s = TARGET * 1.0, 1.0
    asked = []
    while machine.state is State.COLLECTING and not asked:
        now = machine.next_tick
        asked = machine.handle(Tick(now))
    assert {type(each) for each in asked} == {Take}
    assert chunk_s + upload_s <= now - 1.0 < chunk_s + upload_s + PATIENCE, "it has needed so long already"


def test_where_the_one_who_finishes_it_for_a_late_codeword_dies_another_is_asked():
    machine, _, _ = one_is_late()
    first = {
        each.device: each.chunks for each in machine.handle(Tick(machine.next_tick)) if isinstance(each, Take)
    }
    dead = next(iter(first))
    asked = [each for each in machine.handle(Lost(3.0, dead)) if isinstance(each, Take)]
    assert first[dead] in {each.chunks for each in asked}
    assert dead not in {each.device for each in asked}


@pytest.mark.parametrize("comes", [True, False])
def test_it_is_told_how_long_a_late_codeword_took_that_never_came(*, comes: bool):
    machine, devices, slow = one_is_late(blocks=2)
    stand_in(machine, devices, slow)
    _, one, *others = devices.unsent
    devices.obey(machine.handle(Codeword(4.0, one[0], 1, one[1])))
    if comes:
        assert machine.handle(Codeword(4.5, slow, 1, 0)) == (Refuse(slow, 1, "others were quicker"),)
    for name, attempt in others:
        devices.obey(machine.handle(Codeword(5.0, name, 1, attempt)))
    assert machine.outcome == "synced"
    took_s = 2 * (5.0 - 1.0)  # of half a model, asked at 1 s
    assert machine.effort.unsent_s(5.0) == ({} if comes else {machine.plan.devices.index(slow): took_s})


def test_what_a_slow_line_is_to_send_others_finish_meanwhile_and_stand_in_with_at_once():
    plan = planned(4, 8, replicas=4, blocks=1, uplink=1.0, lag=4.0)
    machine, devices = begun(plan)
    finish_working(machine, devices)
    slow, *others = plan.devices
    assert machine.next_tick == 51.0, "the deadline is that of the first requests"
    for name in plan.devices:
        lacking = set(range(8)) - devices.done[name]
        assert sorted(devices.queue[name]) == sorted(lacking)
        first = devices.queue[name][: len(devices.done[slow])]
        assert name == slow or set(first) == devices.done[slow], "that comes first"
    for name in others:
        while devices.queue[name]:
            work(machine, devices, name, 1.5)
    assert {key for key in devices.requests if key[1]} == set(), "nobody is late yet"
    for name in others:
        devices.obey(machine.handle(Codeword(2.0, name, 1, 0)))
    devices.unsent = [(slow, 0)]
    asked: list[Command] = []
    while not asked:
        asked = list(machine.handle(Tick(machine.next_tick)))
    assert {type(each) for each in asked} == {Repair}, "what it takes is there"
    devices.obey(asked)
    devices.unsent.remove((slow, 0))
    send_all(machine, devices, machine.next_tick)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


@pytest.mark.parametrize(("uplink", "lag", "least_s"), [(None, 1.0, 0.5), (1.0, 1.4, 0.5), (1.0, 4.0, 113.0)])
def test_nobody_goes_on_where_no_line_is_known_to_be_late(uplink: float | None, lag: float, least_s: float):
    plan = planned(4, 8, replicas=4, blocks=1, uplink=uplink, lag=lag, settings={"late-s": least_s})
    machine, devices = begun(plan)
    finish_working(machine, devices)
    assert not any(devices.queue.values())


def test_a_round_leaves_no_cycle_behind():
    """Runs of many devices are simulated without the collector of garbage, for the sake of their time."""
    gc.disable()
    try:
        machine, devices = begun(planned(4, 8, replicas=4, blocks=2, uplink=1.0, lag=4.0))
        finish_working(machine, devices)
        devices.obey(machine.handle(Lost(2.0, machine.plan.devices[0])))
        while machine.state is not State.CLOSED:
            for name in machine.plan.devices[1:]:
                while devices.queue[name]:
                    work(machine, devices, name, 2.0)
            send_all(machine, devices, 3.0)
        effort, whole = weakref.ref(machine.effort), weakref.ref(machine)
        del machine
        assert effort() is whole() is None
    finally:
        gc.enable()


def test_a_late_codeword_counts_if_it_is_there_before_what_stands_in_for_it():
    machine, devices, slow = one_is_late()
    stand_in(machine, devices, slow)
    late, *repairs = devices.unsent
    assert repairs
    devices.unsent = [late]
    send_all(machine, devices, 4.0)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_a_late_codeword_is_refused_without_blame_once_a_part_of_what_stands_in_is_added():
    machine, devices, slow = one_is_late()
    stand_in(machine, devices, slow)
    late, one, *others = devices.unsent
    assert others, "what it has was shared out"
    devices.obey(machine.handle(Codeword(4.0, one[0], 1, one[1])))
    devices.obey(machine.handle(Codeword(4.0, late[0], 1, late[1])))
    assert [each.device for each in devices.refused] == [slow]
    assert machine.tally.refused == [0] * 4
    devices.unsent = others
    send_all(machine, devices, 5.0)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_nobody_stands_in_where_nobody_else_can():
    plan = planned(2, 2, replicas=1, blocks=1)
    machine, devices = begun(plan)
    finish_working(machine, devices)
    quick = devices.unsent.pop()
    devices.obey(machine.handle(Codeword(2.0, quick[0], 1, quick[1])))
    while machine.next_tick < 50.0:
        assert machine.handle(Tick(machine.next_tick)) == ()
    send_all(machine, devices, 49.0)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_a_differing_copy_while_collecting_changes_nothing_that_was_asked():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, devices = begun(plan)
    one, other = plan.devices
    for chunk in (0, 1):
        devices.done[one].add(chunk)
        devices.obey(machine.handle(progress(one, chunk, sketch=(1.0,) * 16)))
    asked = dict(devices.requests)
    assert asked
    devices.obey(machine.handle(progress(other, 0, sketch=(9.0,) * 16)))
    assert devices.requests == asked
    send_all(machine, devices)
    assert machine.outcome == "synced"


def test_a_carried_device_that_starts_anew_in_mid_round_gets_whole_orders():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine = Round(plan, Assignment(2, 0, 2 * TARGET, 0, frozenset(plan.devices)), sync)
    began = machine.start(0.0, [joined(plan, device) for device in plan.devices])
    assert {type(command) for command in began} == {Continue}
    machine.handle(Lost(1.0, plan.devices[0]))
    again = machine.handle(joined(plan, plan.devices[0], 2.0))
    assert Work in {type(command) for command in again}


def test_at_the_deadline_one_copy_of_everything_is_exact():
    plan = planned(2, 2, replicas=2, blocks=2)
    machine, devices = begun(plan)
    while devices.queue[plan.devices[0]]:
        work(machine, devices, plan.devices[0])
    assert machine.state is State.WORKING
    devices.obey(machine.handle(Tick(100.0)))
    send_all(machine, devices)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_a_returning_device_is_given_what_its_return_makes_possible():
    plan = planned(2, 3, replicas=2, blocks=2)
    machine, devices = begun(plan)
    one, other = plan.devices
    devices.obey(machine.handle(Lost(1.0, other)))
    work(machine, devices, one)
    devices.queue[other] = []
    devices.obey(machine.handle(joined(plan, other, 2.0)))
    finish_working(machine, devices)
    send_all(machine, devices)
    assert (machine.outcome, machine.solution and machine.solution.blocks) == ("synced", 2)


def test_the_only_holder_of_a_chunk_may_come_back_and_send_it():
    plan = planned(1, 2, replicas=1, blocks=1)
    for keeps in (True, False):
        machine, devices = begun(plan)
        name = plan.devices[0]
        finish_working(machine, devices)
        devices.unsent.clear()
        kept = tuple(Kept(0, chunk, TARGET) for chunk in devices.done[name]) if keeps else ()
        devices.obey(machine.handle(joined(plan, name, 3.0, kept)))
        while devices.queue[name] and machine.state is not State.CLOSED:
            work(machine, devices, name, 4.0)
        send_all(machine, devices, 5.0)
        assert machine.outcome == "synced"


def test_a_device_that_can_do_nothing_is_not_waited_for():
    plan = planned(2, 4, replicas=2, blocks=2)
    machine, devices = begun(plan)
    one, other = plan.devices
    devices.obey(machine.handle(Failed(1.0, other, 1, "out of memory")))
    devices.queue[other] = []
    finish_working(machine, devices, [one])
    send_all(machine, devices)
    assert machine.outcome == "synced"
    assert machine.tally.failure[1] == "out of memory"


def test_nothing_in_the_sum_is_no_model():
    plan = planned(1, 1, replicas=1, blocks=1)
    machine, devices = begun(plan)
    finish_working(machine, devices)
    devices.obey(machine.handle(Lost(2.0, plan.devices[0])))
    assert machine.outcome == "empty"


def test_a_repair_has_as_long_as_the_first_upload_had():
    plan = planned(2, 1, replicas=2, blocks=1)
    machine, devices = begun(plan)
    work(machine, devices, plan.devices[0], 1.0)
    devices.obey(machine.handle(progress(plan.devices[1], 0, 1.5)))
    devices.done[plan.devices[1]].add(0)
    devices.unsent.clear()
    devices.obey(machine.handle(Lost(50.0, plan.devices[0])))
    assert machine.next_tick == 100.0
    send_all(machine, devices, 99.0)
    assert machine.outcome == "synced"


def test_only_devices_that_listen_are_asked_for_more():
    plan = planned(3, 1, replicas=3, blocks=1)
    machine, devices = begun(plan)
    devices.obey(machine.handle(joined(plan, plan.devices[1], 0.0, live=False)))
    work(machine, devices, plan.devices[0])
    devices.queue = {name: [] for name in plan.devices}
    devices.obey(machine.handle(Lost(2.0, plan.devices[0])))
    assert devices.queue[plan.devices[2]] == [0]
    assert devices.queue[plan.devices[1]] == []


def test_no_more_is_counted_than_was_finished():
    plan = planned(3, 1, replicas=3, blocks=2)
    machine, devices = begun(plan)
    one, two, _ = plan.devices
    work(machine, devices, one)
    work(machine, devices, two)
    devices.obey(machine.handle(Lost(2.0, one)))
    send_all(machine, devices)
    assert machine.outcome == "synced"
    assert all(c <= f for c, f in zip(machine.tally.counted, machine.tally.finished, strict=True))


def test_stop_ends_any_phase():
    plan = planned(2, 2, replicas=2, blocks=1)
    for phase in ("working", "collecting"):
        machine, devices = begun(plan)
        if phase == "collecting":
            finish_working(machine, devices)
        devices.obey(machine.handle(Stop(5.0, "somebody asked")))
        assert (machine.outcome, machine.reason) == ("stopped", "somebody asked")
        assert {close.device for close in devices.closed} == set(plan.devices)


def test_every_state_but_the_last_reacts_to_loss_time_and_stop():
    for table in (WORKING, COLLECTING):
        assert {Joined, Lost, Failed, Progress, Tick, Stop} <= set(table)


@settings(max_examples=60)
@given(
    devices=st.integers(1, 5),
    chunks=st.integers(1, 7),
    replicas=st.integers(1, 4),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_a_round_finishes_when_its_obvious_twin_does(
    devices: int, chunks: int, replicas: int, seed: int, data
) -> None:
    """Twin: after each finished chunk, count copies from scratch; stop when every chunk has enough."""
    replicas = min(replicas, devices)
    blocks = data.draw(st.integers(1, replicas))
    plan = planned(devices, chunks, replicas=replicas, blocks=blocks)
    machine, fleet = begun(plan)
    finished: list[tuple[str, int]] = []
    rng = np.random.default_rng(seed)
    while machine.state is State.WORKING:
        copies = [sum(c == chunk.number for _, c in finished) for chunk in plan.chunks]
        assert min(copies) < blocks, "enough copies, and the round still works"
        name = str(rng.choice([name for name in plan.devices if fleet.queue[name]]))
        finished.append((name, fleet.queue[name][0]))
        work(machine, fleet, name)
    assert min(sum(c == chunk.number for _, c in finished) for chunk in plan.chunks) >= blocks
    send_all(machine, fleet)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(fleet.total, fleet.plain, rtol=1e-8, atol=1e-8)


def test_a_broken_device_that_is_first_is_outvoted():
    plan = planned(3, 2, replicas=3, blocks=2)
    machine, devices = begun(plan)
    broken, one, two = plan.devices
    right, wrong = (1.0,) * 16, (5.0,) * 16
    for chunk in (0, 1):
        for name in (one, two):
            devices.done[name].add(chunk)
        devices.obey(machine.handle(progress(broken, chunk, sketch=wrong)))
        devices.obey(machine.handle(progress(one, chunk, sketch=right)))
        devices.obey(machine.handle(progress(two, chunk, sketch=right)))
    send_all(machine, devices)
    assert machine.outcome == "synced"
    assert {device for device, _ in devices.requests} == {one, two}
    assert {refuse.device for refuse in devices.refused} == {broken}


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_when_the_verdict_turns_only_copies_count_that_somebody_has(*, keeps: bool, fails: bool):
    plan = planned(4, 2, replicas=4, blocks=4)
    machine, devices = begun(plan)
    first, refused, third, _ = plan.devices
    tells(machine, devices, first, 0, ONE)
    tells(machine, devices, refused, 0, OTHER)
    devices.obey(machine.handle(Lost(2.0, refused)))
    kept = (Kept(0, 0, TARGET),) if keeps else ()
    devices.obey(machine.handle(joined(plan, refused, 3.0, kept)))
    if fails:
        devices.obey(machine.handle(Failed(3.0, refused, 1, "it is gone", (0,))))
    tells(machine, devices, third, 0, OTHER)
    assert machine.effort.holds == ({1: 1, 2: 1} if keeps and not fails else {0: 1})


@pytest.mark.parametrize("holds", [True, False])
def test_a_kept_copy_of_a_chunk_that_its_device_no_longer_holds_does_not_count(*, holds: bool):
    plan = planned(3, 2, replicas=3, blocks=1)
    machine, devices = begun(plan)
    one, other, _ = plan.devices
    tells(machine, devices, one, 0, ONE)
    tells(machine, devices, other, 0, OTHER)
    for name in (other, one):
        devices.obey(machine.handle(Lost(2.0, name)))
    event = joined(plan, other, 3.0, (Kept(0, 0, TARGET),))
    devices.obey(machine.handle(event if holds else replace(event, holds=event.holds[1:])))
    assert machine.effort.holds == ({1: 1} if holds else {})


def test_a_copy_whose_holder_is_gone_refuses_nobody_while_working():
    plan = planned(2, 2, replicas=2, blocks=1)
    for early in (True, False):
        machine, devices = begun(plan)
        one, other = plan.devices
        tells(machine, devices, one, 0, ONE)
        if early:
            tells(machine, devices, other, 0, OTHER)
            assert machine.effort.holds == {0: 1}
        devices.obey(machine.handle(Lost(2.0, one)))
        tells(machine, devices, other, 1, ONE)
        if not early:
            tells(machine, devices, other, 0, OTHER)
        send_all(machine, devices)
        assert machine.outcome == "synced"
        np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


@pytest.mark.parametrize("early", [True, False])
def test_a_copy_whose_holder_is_gone_refuses_nobody_while_collecting_unless_it_is_in_the_sum(*, early: bool):
    plan = planned(2, 2, replicas=2, blocks=1)
    for summed in (True, False):
        machine, devices = begun(plan)
        one, other = plan.devices
        tells(machine, devices, one, 0, ONE)
        if early:
            tells(machine, devices, other, 0, OTHER)
        tells(machine, devices, other, 1, ONE)
        assert {(device, *each.mix.chunks) for (device, _), each in devices.requests.items()} == {
            (one, 0),
            (other, 1),
        }
        devices.unsent.remove((one, 0))
        if summed:
            devices.obey(machine.handle(Codeword(2.0, one, 1, 0)))
        devices.obey(machine.handle(Lost(2.0, one)))
        if not early:
            tells(machine, devices, other, 0, OTHER)
            assert machine.effort._ledger.done_wc[1, 0] == (not summed)
        send_all(machine, devices)
        assert machine.outcome == "synced"
        np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_a_copy_that_is_refused_while_collecting_does_not_enter_the_sum():
    plan = planned(2, 2, replicas=2, blocks=2)
    machine, devices = begun(plan)
    one, other = plan.devices
    for name in (one, other):
        for chunk in (0, 1):
            devices.done[name].add(chunk)
            devices.obey(machine.handle(progress(name, chunk, sketch=(1.0,) * 16)))
    kept = tuple(Kept(0, chunk, TARGET) for chunk in (0, 1))
    devices.obey(machine.handle(joined(plan, one, 3.0, kept)))
    devices.obey(machine.handle(progress(one, 0, 3.0, sketch=(9.0,) * 16)))
    late = machine.handle(Codeword(4.0, one, 1, 0))
    assert [type(command) for command in late] == [Refuse]


def test_who_returns_late_has_as_long_to_send_as_the_others_had():
    plan = planned(2, 1, replicas=2, blocks=2)
    machine, devices = begun(plan)
    one, other = plan.devices
    work(machine, devices, one)
    work(machine, devices, other)
    devices.obey(machine.handle(Codeword(2.0, other, 1, 0)))
    devices.obey(machine.handle(joined(plan, one, 50.0, (Kept(0, 0, TARGET),))))
    while machine.next_tick < 100.0:
        assert machine.state is State.COLLECTING
        devices.obey(machine.handle(Tick(machine.next_tick)))
    assert machine.tally.failure == ["", ""]


def test_what_crossed_the_close_of_the_round_before_is_refused_and_held_against_nobody():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine = Round(plan, Assignment(2, 1, TARGET, 0), sync)
    machine.start(0.0, [joined(plan, device) for device in plan.devices])
    one, other = plan.devices
    for event in (progress(one, 0), Codeword(1.0, one, 1, 0), Failed(1.0, one, 1, "broken")):
        assert [type(command) for command in machine.handle(event)] == [Refuse]
    assert machine.tally.refused == [0, 0]
    assert [type(command) for command in machine.handle(progress(other, 0, round=3))] == [Refuse]
    assert machine.tally.refused == [0, 1]


@pytest.mark.parametrize("live", [True, False])
def test_who_returns_late_with_nothing_kept_has_time_to_train_as_well(*, live: bool):
    plan = planned(1, 2, replicas=1, blocks=1)
    machine, devices = begun(plan, live=live)
    name = plan.devices[0]
    finish_working(machine, devices)
    devices.unsent.clear()
    devices.done[name] = set()
    devices.obey(machine.handle(joined(plan, name, 2.0, live=live)))
    while machine.next_tick < 152.0:
        devices.obey(machine.handle(Tick(machine.next_tick)))
        assert machine.state is State.COLLECTING, "50 s to send, and before that 100 s to train"
    while devices.queue[name]:
        work(machine, devices, name, 151.0)
    send_all(machine, devices, 151.0)
    assert machine.outcome == "synced"


def test_a_failure_that_was_told_before_changes_nothing():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, devices = begun(plan)
    devices.obey(machine.handle(Failed(1.0, plan.devices[0], 1, "broken", (0,))))
    for _ in range(3):
        said = machine.handle(Failed(1.0, plan.devices[0], 1, "broken", (0,)))
        assert [type(command) for command in said] == [Refuse]


@pytest.mark.parametrize("live", [True, False])
def test_who_returns_late_is_not_given_what_the_sum_cannot_take_and_moves_no_deadline(*, live: bool):
    plan = planned(2, 3, replicas=1, blocks=1)
    machine, devices = begun(plan, live=live)
    one, other = plan.devices
    devices.obey(machine.handle(Lost(0.5, one)))
    finish_working(machine, devices, [other])
    assert (machine.state, machine.next_tick) == (State.COLLECTING, 51.0)
    for now in (2.0, 40.0):
        given = machine.handle(joined(plan, one, now, live=live))
        assert [(type(each), each.order) for each in given] == [(Work, ())] * live, (
            "it may be asked for more yet"
        )
        assert machine.next_tick == 51.0
        devices.obey(machine.handle(Lost(now, one)))
    send_all(machine, devices)
    assert (machine.outcome, len(machine.short)) == ("approximate", 3 - len(devices.done[other]))


@pytest.mark.parametrize("blocks", [1, 2])
def test_who_returns_late_is_given_what_nobody_has_for_the_sum_and_nothing_else(blocks: int):
    plan = planned(3, 6, replicas=2, blocks=blocks)
    machine, devices = begun(plan)
    finish_working(machine, devices)
    one, *others = plan.devices
    alone = devices.done[one] - set.union(*(devices.done[device] for device in others))
    assert bool(alone) == (blocks == 1), "with two blocks each chunk has two copies"
    devices.done[one] = set()
    (given, *asked) = machine.handle(joined(plan, one, 3.0))
    assert set(given.order) == alone
    assert any(isinstance(each, Repair) for each in asked) == (blocks == 2)


def test_a_device_that_returns_with_less_is_not_asked_for_what_it_lacks():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, devices = begun(plan)
    name = plan.devices[0]
    devices.obey(machine.handle(Joined(1.0, name, live=True, holds=(Held(plan.chunks[1].name, 10),))))
    assert devices.queue[name] == [1]


# ---- early commit: devices that have no room for what they finish
