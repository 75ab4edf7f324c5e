"""A client without room folds what it has finished: the sum is the plain one, or says what it lacks."""

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
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.plan import Plan
from tests.coded_round import (
    ONE,
    OTHER,
    TARGET,
    Clients,
    begun,
    finish_working,
    joined,
    planned,
    send_all,
    sync,
    tells,
    work,
)


def has_no_room(machine: Round, clients: Clients, name: str, now: float = 1.0) -> None:
    """Where nothing is freed, it gives up what it finished first."""
    before = clients.freed[name]
    clients.obey(machine.handle(Pressed(now, name, 1)))
    if machine.state is not State.CLOSED and clients.freed[name] == before and clients.done[name]:
        lost = min(clients.done[name])
        clients.done[name].discard(lost)
        clients.obey(machine.handle(Failed(now, name, 1, "no room", (lost,))))


def works_in(room: int, machine: Round, clients: Clients, name: str, now: float = 1.0) -> None:
    work(machine, clients, name, now)
    while len(clients.done[name]) > room and machine.state is not State.CLOSED:
        has_no_room(machine, clients, name, now)


class Scenario:
    """Loses clients and lets them return, with what they have not folded or with nothing, as chance will."""

    def __init__(self, rng: np.random.Generator, often: float) -> None:
        self.rng, self.often = rng, often
        self.gone: set[str] = set()

    def blow(self, machine: Round, clients: Clients, now: float) -> None:
        if machine.state is State.CLOSED or self.rng.random() >= self.often:
            return
        name = str(self.rng.choice(clients.plan.clients))
        clients.queue[name] = []
        if name not in self.gone:
            self.gone.add(name)
            clients.unsent = [each for each in clients.unsent if each[0] != name]
            clients.obey(machine.handle(Lost(now, name)))
            return
        self.gone.discard(name)
        if self.rng.random() < 0.5:
            clients.done[name] = set()
        kept = tuple(Kept(0, chunk, TARGET) for chunk in sorted(clients.done[name]))
        clients.obey(machine.handle(joined(clients.plan, name, now, kept)))


def short_of_room(
    plan: Plan, room: int, rng: np.random.Generator, often: float
) -> tuple[Round, Clients, Scenario]:
    """Run a round to its end among clients that can keep so many updates and no more."""
    machine, clients = begun(plan)
    scenario, now = Scenario(rng, often), 0.0
    while machine.state is not State.CLOSED:
        scenario.blow(machine, clients, now)
        busy = [name for name in plan.clients if clients.queue[name]]
        if machine.state is State.CLOSED:
            break
        if clients.unsent and (not busy or rng.random() < 0.3):
            client, attempt = clients.unsent.pop(int(rng.integers(len(clients.unsent))))
            clients.obey(machine.handle(Codeword(now, client, 1, attempt)))
        elif busy:
            works_in(room, machine, clients, str(rng.choice(busy)), now)
        else:
            now = machine.next_tick
            clients.obey(machine.handle(Tick(now)))
        now += 0.01
    return machine, clients, scenario


@settings(max_examples=300)
@given(
    clients=st.integers(2, 5),
    chunks=st.integers(2, 8),
    replicas=st.integers(1, 4),
    blocks=st.sampled_from([1, 2, 3, "auto"]),
    uplink=st.sampled_from([None, 1.0]),
    room=st.integers(0, 3),
    often=st.sampled_from([0.0, 0.05, 0.2]),
    seed=st.integers(0, 9999),
)
def test_whoever_folds_what_and_is_lost_every_sum_is_plain_or_says_what_it_lacks(
    clients, chunks, replicas, blocks, uplink, room, often, seed
):
    replicas = min(replicas, clients)
    blocks = blocks if isinstance(blocks, str) else min(blocks, replicas)
    plan = planned(clients, chunks, replicas=replicas, blocks=blocks, uplink=uplink)
    machine, fleet, _ = short_of_room(plan, room, np.random.default_rng(seed), often)
    assert len(set(fleet.terms)) == len(fleet.terms)
    if machine.outcome == "synced":
        np.testing.assert_allclose(fleet.total, fleet.plain, rtol=1e-7, atol=1e-7)
    elif often:
        assert machine.outcome == "empty" or (machine.outcome == "approximate" and machine.short)
    if not often:
        assert machine.outcome == "synced", "nobody was lost"
    if not often and blocks == 1:
        assert machine.statistics.failure == [""] * clients, "all that was finished was folded"


def test_what_is_folded_is_free_and_the_sum_is_the_same():
    plan = planned(2, 6, replicas=1, blocks=1)
    machine, clients = begun(plan)
    most = 0
    while machine.state is State.WORKING:
        for name in plan.clients:
            if clients.queue[name]:
                works_in(1, machine, clients, name)
                most = max(most, len(clients.done[name]))
    assert most == 1
    assert machine.statistics.folds == sum(clients.freed.values()) > 0
    send_all(machine, clients)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def test_nothing_is_folded_before_an_exchange_is_certain():
    plan = planned(2, 2, replicas=2, blocks=2)
    assignment = Assignment(number=1, version=0, target=TARGET, seed=0, certain=False)
    machine, clients = Round(plan, assignment, sync), Clients(plan)
    clients.obey(machine.start(0.0, [joined(plan, name) for name in plan.clients]))
    one, other = plan.clients
    work(machine, clients, one)
    assert machine.handle(Pressed(1.0, one, 1)) == (Fold(one, 1, None),)
    work(machine, clients, other)
    [fold] = machine.handle(Pressed(2.0, one, 1))
    assert isinstance(fold, Fold)
    assert fold.mix is not None, "the gate has said that there is an exchange"


def test_a_fold_fixes_how_many_copies_are_aimed_for():
    plan = planned(3, 6, replicas=3, blocks="auto", uplink=0.1)
    for presses in (False, True):
        machine, clients = begun(plan)
        work(machine, clients, plan.clients[0])
        if presses:
            has_no_room(machine, clients, plan.clients[0])
        ends_with(machine, clients, blocks=1 if presses else 3)


def test_nobody_goes_on_for_the_sake_of_a_slow_line_once_somebody_has_no_room():
    plan = planned(3, 6, replicas=3, blocks=1, uplink=1.0, lag=4.0)
    for presses in (False, True):
        machine, clients = begun(plan)
        work(machine, clients, plan.clients[0])
        if presses:
            has_no_room(machine, clients, plan.clients[0])
        finish_working(machine, clients)
        assert any(clients.queue.values()) is not presses


def test_who_has_no_room_for_what_it_makes_meanwhile_leaves_that_and_keeps_the_rest():
    plan = planned(4, 8, replicas=4, blocks=1, uplink=1.0, lag=4.0)
    machine, clients = begun(plan)
    finish_working(machine, clients)
    slow, name, *_ = plan.clients
    before = set(clients.done[name])
    assert before
    work(machine, clients, name, 2.0)
    assert len(clients.done[name]) == len(before) + 1
    clients.obey(machine.handle(Pressed(2.0, name, 1)))
    assert clients.done[name] == before
    assert clients.queue[name] == [], "it trains no further"
    loses(machine, clients, slow, 3.0)
    all_is_made_good(machine, clients, 3.0)


def all_is_made_good(machine: Round, clients: Clients, now: float) -> None:
    while any(clients.queue.values()):
        for name in clients.plan.clients:
            while clients.queue[name]:
                work(machine, clients, name, now)
        send_all(machine, clients, now + 0.1)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def ends_with(machine: Round, clients: Clients, blocks: int) -> None:
    finish_working(machine, clients)
    assert machine.solution is not None
    assert machine.solution.blocks == blocks
    send_all(machine, clients)
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def all_told(machine: Round, clients: Clients, *told: tuple[str, int]) -> None:
    for name, chunk in told:
        tells(machine, clients, name, chunk, ONE)


def test_after_a_fold_codewords_keep_their_blocks_whatever_the_error_limit_bears(monkeypatch):
    monkeypatch.setattr("fedgc.round.coded.scheduler.amplification_limit", lambda *_: 1.0)
    plan = planned(3, 4, replicas=3, blocks=2)
    for presses in (False, True):
        machine, clients = begun(plan)
        work(machine, clients, plan.clients[0])
        if presses:
            has_no_room(machine, clients, plan.clients[0])
        ends_with(machine, clients, blocks=2 if presses else 1)


@pytest.mark.parametrize("returns", [True, False])
def test_what_a_lost_client_had_folded_is_done_again(*, returns: bool):
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, clients = begun(plan)
    one, other = plan.clients
    work(machine, clients, one)
    has_no_room(machine, clients, one)
    clients.obey(machine.handle(Lost(2.0, one)))
    if returns:
        clients.obey(machine.handle(joined(plan, one, 3.0)))
    finish_working(machine, clients, [other, one])
    send_all(machine, clients)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


@pytest.mark.parametrize("others", ["have it", "are yet to make it", "had folded it as well"])
def test_what_a_fold_counts_on_is_made_good_where_its_client_is_lost(others: str):
    plan = planned(3, 2, replicas=3, blocks=2)
    machine, clients = begun(plan)
    one, two, three = plan.clients
    work(machine, clients, one)
    [first] = clients.done[one]
    tells(machine, clients, two, first, ())
    has_no_room(machine, clients, one)
    if others == "have it":
        tells(machine, clients, three, first, ())
    if others == "had folded it as well":
        has_no_room(machine, clients, two)
    clients.obey(machine.handle(Lost(2.0, two)))
    assert clients.freed[one] == 1
    while machine.state is not State.CLOSED:
        busy = [name for name in (three, one) if clients.queue[name]]
        if busy:
            work(machine, clients, busy[0], 3.0)
        else:
            send_all(machine, clients, 4.0)
    assert machine.outcome == "synced"
    assert (two, first) in clients.terms, "what is folded of a chunk is only whole with what it counts on"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def test_a_client_whose_folded_copy_was_wrong_gives_nothing_more():
    plan = planned(4, 3, replicas=4, blocks=1)
    machine = Round(plan, Assignment(1, 0, TARGET, 0), sync)
    clients = Clients(plan)
    clients.obey(machine.start(0.0, [joined(plan, name) for name in plan.clients]))
    wrong, one, two, _ = plan.clients
    tells(machine, clients, wrong, 0, OTHER)
    has_no_room(machine, clients, wrong)
    tells(machine, clients, wrong, 1, ONE)
    tells(machine, clients, one, 0, ONE)
    tells(machine, clients, two, 0, ONE)
    assert wrong in [each.client for each in clients.refused]
    clients.queue[wrong] = []
    finish_working(machine, clients)
    assert wrong not in {client for client, _ in clients.requests}
    send_all(machine, clients)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def test_while_collecting_a_client_frees_what_it_was_asked_to_send():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, clients = begun(plan)
    finish_working(machine, clients)
    name = clients.unsent[0][0]
    asked = set(clients.done[name])
    clients.obey(machine.handle(Pressed(2.0, name, 1)))
    assert asked
    assert not clients.done[name]
    send_all(machine, clients)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def test_what_was_freed_is_made_again_where_a_repair_needs_it():
    plan = planned(2, 2, replicas=2, blocks=2)
    machine, clients = begun(plan)
    one, other = plan.clients
    all_told(machine, clients, (one, 0), (one, 1), (other, 0), (other, 1))
    clients.obey(machine.handle(Pressed(2.0, one, 1)))
    clients.queue = {name: [] for name in plan.clients}
    clients.unsent.remove((other, 0))
    clients.obey(machine.handle(Lost(3.0, other)))
    assert sorted(clients.queue[one]) == [0, 1]
    while clients.queue[one]:
        work(machine, clients, one, 4.0)
    send_all(machine, clients, 5.0)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)


def loses(machine: Round, clients: Clients, name: str, now: float) -> None:
    clients.unsent = [each for each in clients.unsent if each[0] != name]
    clients.queue[name] = []
    clients.obey(machine.handle(Lost(now, name)))


def sends(machine: Round, clients: Clients, name: str, now: float) -> None:
    for each in [each for each in clients.unsent if each[0] == name]:
        clients.unsent.remove(each)
        clients.obey(machine.handle(Codeword(now, name, 1, each[1])))


def test_what_was_made_for_a_repair_and_freed_is_asked_for_once_more():
    plan = planned(4, 2, replicas=4, blocks=3)
    machine, clients = begun(plan)
    one, two, three, helper = plan.clients
    all_told(machine, clients, *((name, chunk) for chunk in (0, 1) for name in (one, two, three)))
    clients.queue = {name: [] for name in plan.clients}
    for name in (one, two, three):
        clients.obey(machine.handle(Pressed(2.0, name, 1)))
    sends(machine, clients, one, 2.1)
    loses(machine, clients, two, 2.2)
    while clients.queue[helper]:
        work(machine, clients, helper, 2.5)
    clients.obey(machine.handle(Pressed(2.6, helper, 1)))
    sends(machine, clients, helper, 2.7)
    loses(machine, clients, three, 2.8)
    all_is_made_good(machine, clients, 2.9)


def test_no_room_in_another_round_or_of_a_stranger_is_refused():
    plan = planned(2, 2, replicas=2, blocks=1)
    machine, _ = begun(plan)
    one = plan.clients[0]
    for event in (Pressed(1.0, one, 2), Pressed(1.0, "nobody", 1)):
        assert [type(command) for command in machine.handle(event)] == [Refuse]
    machine.handle(Lost(1.0, one))
    assert [type(command) for command in machine.handle(Pressed(1.0, one, 1))] == [Refuse]


def test_a_copy_that_was_freed_still_speaks_against_one_that_differs():
    plan = planned(3, 2, replicas=3, blocks=1)
    machine, clients = begun(plan)
    one, two, broken = plan.clients
    for name, sketch in ((one, ONE), (two, ONE), (broken, OTHER)):
        tells(machine, clients, name, 0, sketch)
        clients.queue[name] = [chunk for chunk in clients.queue[name] if chunk]
    [fold] = machine.handle(Pressed(2.0, two, 1))
    assert fold.spare == (0,), "the other's copy is counted on"
    clients.obey([fold])
    clients.queue[one] = []
    clients.obey(machine.handle(Lost(3.0, one)))
    while machine.state is State.WORKING:
        name = two if clients.queue[two] else broken
        work(machine, clients, name, 4.0)
    assert not machine.scheduler._tracker.counting_wc[plan.clients.index(broken), 0]
    send_all(machine, clients, 5.0)
    assert machine.outcome == "synced"
    np.testing.assert_allclose(clients.total, clients.plain, rtol=1e-9)
