"""A device without room folds what it has finished: the sum is the plain one, or says what it lacks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.messages import (
    Codeword,
    Failed,
    Fold,
    Kept,
    Lost,
    Pressed,
    Refuse,
    Tick,
)
from fedgc.plan import Plan
from fedgc.round import Assignment, Round, State
from tests.coded_round import (
    ONE,
    OTHER,
    TARGET,
    Devices,
    begun,
    finish_working,
    joined,
    planned,
    send_all,
    sync,
    tells,
    work,
)


def has_no_room(machine: Round, devices: Devices, name: str, now: float = 1.0) -> None:
    """Where nothing is freed, it gives up what it finished first."""
    before = devices.freed[name]
    devices.obey(machine.handle(Pressed(now, name, 1)))
    if machine.state is not State.CLOSED and devices.freed[name] == before and devices.done[name]:
        lost = min(devices.done[name])
        devices.done[name].discard(lost)
        devices.obey(machine.handle(Failed(now, name, 1, "no room", (lost,))))


def works_in(room: int, machine: Round, devices: Devices, name: str, now: float = 1.0) -> None:
    work(machine, devices, name, now)
    while len(devices.done[name]) > room and machine.state is not State.CLOSED:
        has_no_room(machine, devices, name, now)


class Weather:
    """Loses devices and lets them return, with what they have not folded or with nothing, as chance will."""

    def __init__(self, rng: np.random.Generator, often: float) -> None:
        self.rng, self.often = rng, often
        self.gone: set[str] = set()

    def blow(self, machine: Round, devices: Devices, now: float) -> None:
        if machine.state is State.CLOSED or self.rng.random() >= self.often:
            return
        name = str(self.rng.choice(devices.plan.devices))
        devices.queue[name] = []
        if name not in self.gone:
            self.gone.add(name)
            devices.unsent = [each for each in devices.unsent if each[0] != name]
            devices.obey(machine.handle(Lost(now, name)))
            return
        self.gone.discard(name)
        if self.rng.random() < 0.5:
            devices.done[name] = set()
        kept = tuple(Kept(0, chunk, TARGET) for chunk in sorted(devices.done[name]))
        devices.obey(machine.handle(joined(devices.plan, name, now, kept)))


def short_of_room(
    plan: Plan, room: int, rng: np.random.Generator, often: float
) -> tuple[Round, Devices, Weather]:
    """Run a round to its end among devices that can keep so many updates and no more."""
    machine, devices = begun(plan)
    weather, now = Weather(rng, often), 0.0
    while machine.state is not State.CLOSED:
        weather.blow(machine, devices, now)
        busy = [name for name in plan.devices if devices.queue[name]]
        if machine.state is State.CLOSED:
            break
        if devices.unsent and (not busy or rng.random() < 0.3):
            device, attempt = devices.unsent.pop(int(rng.integers(len(devices.unsent))))
            devices.obey(machine.handle(Codeword(now, device, 1, attempt)))
        elif busy:
            works_in(room, machine, devices, str(rng.choice(busy)), now)
        else:
            now = machine.next_tick
            devices.obey(machine.handle(Tick(now)))
        now += 0.01
    return machine, devices, weather


@settings(max_examples=300)
@given(
    devices=st.integers(2, 5),
    chunks=st.integers(2, 8),
    replicas=st.integers(1, 4),
    blocks=st.sampled_from([1, 2, 3, "auto"]),
    uplink=st.sampled_from([None, 1.0]),
    room=st.integers(0, 3),
    often=st.sampled_from([0.0, 0.05, 0.2]),
    seed=st.integers(0, 9999),
)
def test_whoever_folds_what_and_is_lost_every_sum_is_plain_or_says_what_it_lacks(
    devices, chunks, replicas, blocks, uplink, room, often, seed
):
    replicas = min(replicas, devices)
    blocks = blocks if isinstance(blocks, str) else min(blocks, replicas)
    plan = planned(devices, chunks, replicas=replicas, blocks=blocks, uplink=uplink)
    machine, fleet, _ = short_of_room(plan, room, np.random.default_rng(seed), often)
    assert len(set(fleet.terms)) == len(fleet.terms)
    if machine.outcome == "synced":
        np.testing.assert_allclose(fleet.total, fleet.plain, rtol=1e-7, atol=1e-7)
    elif often:
        assert machine.outcome == "empty" or (machine.outcome == "approximate" and machine.short)
    if not often:
        assert machine.outcome == "synced", "nobody was lost"
    if not often and blocks == 1:
        assert machine.tally.failure == [""] * devices, "all that was finished was folded"


def test_what_is_folded_is_free_and_the_sum_is_the_same():
    plan = planned(2, 6, replicas=1, blocks=1)
    machine, devices = begun(plan)
    most = 0
    while machine.state is State.WORKING:
        for name in plan.devices:
            if devices.queue[name]:
                works_in(1, machine, devices, name)
                most = max(most, len(devices.done[name]))
    assert most == 1
    assert machine.tally.folds == sum(devices.freed.values()) > 0
    send_all(machine, devices)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_nothing_is_folded_before_an_exchange_is_certain():
    plan = planned(2, 2, replicas=2, blocks=2)
    assignment = Assignment(number=1, version=0, target=TARGET, seed=0, certain=False)
    machine, devices = Round(plan, assignment, sync), Devices(plan)
    devices.obey(machine.start(0.0, [joined(plan, name) for name in plan.devices]))
    one, other = plan.devices
    work(machine, devices, one)
    assert machine.handle(Pressed(1.0, one, 1)) == (Fold(one, 1, None),)
    work(machine, devices, other)
    [fold] = machine.handle(Pressed(2.0, one, 1))
    assert isinstance(fold, Fold)
    assert fold.mix is not None, "the gate has said that there is an exchange"


def test_a_fold_fixes_how_many_copies_are_aimed_for():
    plan = planned(3, 6, replicas=3, blocks="auto", uplink=0.1)
    for presses in (False, True):
        machine, devices = begun(plan)
        work(machine, devices, plan.devices[0])
        if presses:
            has_no_room(machine, devices, plan.devices[0])
        ends_with(machine, devices, blocks=1 if presses else 3)


def test_nobody_goes_on_for_the_sake_of_a_slow_line_once_somebody_has_no_room():
    plan = planned(3, 6, replicas=3, blocks=1, uplink=1.0, lag=4.0)
    for presses in (False, True):
        machine, devices = begun(plan)
        work(machine, devices, plan.devices[0])
        if presses:
            has_no_room(machine, devices, plan.devices[0])
        finish_working(machine, devices)
        assert any(devices.queue.values()) is not presses


def test_who_has_no_room_for_what_it_makes_meanwhile_leaves_that_and_keeps_the_rest():
    plan = planned(4, 8, replicas=4, blocks=1, uplink=1.0, lag=4.0)
    machine, devices = begun(plan)
    finish_working(machine, devices)
    slow, name, *_ = plan.devices
    before = set(devices.done[name])
    assert before
    work(machine, devices, name, 2.0)
    assert len(devices.done[name]) == len(before) + 1
    devices.obey(machine.handle(Pressed(2.0, name, 1)))
    assert devices.done[name] == before
    assert devices.queue[name] == [], "it trains no further"
    loses(machine, devices, slow, 3.0)
    all_is_made_good(machine, devices, 3.0)


def all_is_made_good(machine: Round, devices: Devices, now: float) -> None:
    while any(devices.queue.values()):
        for name in devices.plan.devices:
            while devices.queue[name]:
                work(machine, devices, name, now)
        send_all(machine, devices, now + 0.1)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def ends_with(machine: Round, devices: Devices, blocks: int) -> None:
    finish_working(machine, devices)
    assert machine.solution is not None
    assert machine.solution.blocks == blocks
    send_all(machine, devices)
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def all_told(machine: Round, devices: Devices, *told: tuple[str, int]) -> None:
    for name, chunk in told:
        tells(machine, devices, name, chunk, ONE)


def test_after_a_fold_codewords_keep_their_blocks_whatever_the_error_limit_bears(monkeypatch):
    monkeypatch.setattr("fedgc.chunks.amplification_limit", lambda *_: 1.0)
    plan = planned(3, 4, replicas=3, blocks=2)
    for presses in (False, True):
        machine, devices = begun(plan)
        work(machine, devices, plan.devices[0])
        if presses:
            has_no_room(machine, devices, plan.devices[0])
        ends_with(machine, devices, blocks=2 if presses else 1)


@pytest.mark.parametrize("returns", [True, False])
def test_what_a_lost_device_had_folded_is_done_again(*, returns: bool):
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, devices = begun(plan)
    one, other = plan.devices
    work(machine, devices, one)
    has_no_room(machine, devices, one)
    devices.obey(machine.handle(Lost(2.0, one)))
    if returns:
        devices.obey(machine.handle(joined(plan, one, 3.0)))
    finish_working(machine, devices, [other, one])
    send_all(machine, devices)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


@pytest.mark.parametrize("others", ["have it", "are yet to make it", "had folded it as well"])
def test_what_a_fold_counts_on_is_made_good_where_its_device_is_lost(others: str):
    plan = planned(3, 2, replicas=3, blocks=2)
    machine, devices = begun(plan)
    one, two, three = plan.devices
    work(machine, devices, one)
    [first] = devices.done[one]
    tells(machine, devices, two, first, ())
    has_no_room(machine, devices, one)
    if others == "have it":
        tells(machine, devices, three, first, ())
    if others == "had folded it as well":
        has_no_room(machine, devices, two)
    devices.obey(machine.handle(Lost(2.0, two)))
    assert devices.freed[one] == 1
    while machine.state is not State.CLOSED:
        busy = [name for name in (three, one) if devices.queue[name]]
        if busy:
            work(machine, devices, busy[0], 3.0)
        else:
            send_all(machine, devices, 4.0)
    assert machine.outcome == "synced"
    assert (two, first) in devices.terms, "what is folded of a chunk is only whole with what it counts on"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_a_device_whose_folded_copy_was_wrong_gives_nothing_more():
    plan = planned(4, 3, replicas=4, blocks=1)
    machine = Round(plan, Assignment(1, 0, TARGET, 0), sync)
    devices = Devices(plan)
    devices.obey(machine.start(0.0, [joined(plan, name) for name in plan.devices]))
    wrong, one, two, _ = plan.devices
    tells(machine, devices, wrong, 0, OTHER)
    has_no_room(machine, devices, wrong)
    tells(machine, devices, wrong, 1, ONE)
    tells(machine, devices, one, 0, ONE)
    tells(machine, devices, two, 0, ONE)
    assert wrong in [each.device for each in devices.refused]
    devices.queue[wrong] = []
    finish_working(machine, devices)
    assert wrong not in {device for device, _ in devices.requests}
    send_all(machine, devices)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_while_collecting_a_device_frees_what_it_was_asked_to_send():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, devices = begun(plan)
    finish_working(machine, devices)
    name = devices.unsent[0][0]
    asked = set(devices.done[name])
    devices.obey(machine.handle(Pressed(2.0, name, 1)))
    assert asked
    assert not devices.done[name]
    send_all(machine, devices)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def test_what_was_freed_is_made_again_where_a_repair_needs_it():
    plan = planned(2, 2, replicas=2, blocks=2)
    machine, devices = begun(plan)
    one, other = plan.devices
    all_told(machine, devices, (one, 0), (one, 1), (other, 0), (other, 1))
    devices.obey(machine.handle(Pressed(2.0, one, 1)))
    devices.queue = {name: [] for name in plan.devices}
    devices.unsent.remove((other, 0))
    devices.obey(machine.handle(Lost(3.0, other)))
    assert sorted(devices.queue[one]) == [0, 1]
    while devices.queue[one]:
        work(machine, devices, one, 4.0)
    send_all(machine, devices, 5.0)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)


def loses(machine: Round, devices: Devices, name: str, now: float) -> None:
    devices.unsent = [each for each in devices.unsent if each[0] != name]
    devices.queue[name] = []
    devices.obey(machine.handle(Lost(now, name)))


def sends(machine: Round, devices: Devices, name: str, now: float) -> None:
    for each in [each for each in devices.unsent if each[0] == name]:
        devices.unsent.remove(each)
        devices.obey(machine.handle(Codeword(now, name, 1, each[1])))


def test_what_was_made_for_a_repair_and_freed_is_asked_for_once_more():
    plan = planned(4, 2, replicas=4, blocks=3)
    machine, devices = begun(plan)
    one, two, three, helper = plan.devices
    all_told(machine, devices, *((name, chunk) for chunk in (0, 1) for name in (one, two, three)))
    devices.queue = {name: [] for name in plan.devices}
    for name in (one, two, three):
        devices.obey(machine.handle(Pressed(2.0, name, 1)))
    sends(machine, devices, one, 2.1)
    loses(machine, devices, two, 2.2)
    while devices.queue[helper]:
        work(machine, devices, helper, 2.5)
    devices.obey(machine.handle(Pressed(2.6, helper, 1)))
    sends(machine, devices, helper, 2.7)
    loses(machine, devices, three, 2.8)
    all_is_made_good(machine, devices, 2.9)


def test_no_room_in_another_round_or_of_a_stranger_is_refused():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, _ = begun(plan)
    one = plan.devices[0]
    for event in (Pressed(1.0, one, 2), Pressed(1.0, "nobody", 1)):
        assert [type(command) for command in machine.handle(event)] == [Refuse]
    machine.handle(Lost(1.0, one))
    assert [type(command) for command in machine.handle(Pressed(1.0, one, 1))] == [Refuse]


def test_a_copy_that_was_freed_still_speaks_against_one_that_differs():
    plan = planned(3, 2, replicas=3, blocks=1)
    machine, devices = begun(plan)
    one, two, broken = plan.devices
    for name, sketch in ((one, ONE), (two, ONE), (broken, OTHER)):
        tells(machine, devices, name, 0, sketch)
        devices.queue[name] = [chunk for chunk in devices.queue[name] if chunk]
    [fold] = machine.handle(Pressed(2.0, two, 1))
    assert fold.spare == (0,), "the other's copy is counted on"
    devices.obey([fold])
    devices.queue[one] = []
    devices.obey(machine.handle(Lost(3.0, one)))
    while machine.state is State.WORKING:
        name = two if devices.queue[two] else broken
        work(machine, devices, name, 4.0)
    assert not machine.effort._ledger.counting_wc[plan.devices.index(broken), 0]
    send_all(machine, devices, 5.0)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(devices.total, devices.plain, rtol=1e-9)
