"""Test that a client that claims work and delivers nothing holds a round for a limited time only."""

import pytest

from fedgc.messages import Codeword, Command, Loaded, Lost, Take, Tick
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.stalled import DEAF_S, LEAST_S, PATIENCE
from tests.coded_round import TARGET, Clients, begun, joined, planned, progress, send_all, sync, work
from tests.round.local import test_round as local

AUTO = {"deadline_s": "auto"}


def ready(machine: Round, clients: Clients, *names: str, now: float = 1.0) -> None:
    """Let these clients finish all that they have."""
    while any(clients.queue[name] for name in names) and machine.state is State.WORKING:
        for name in names:
            if clients.queue[name] and machine.state is State.WORKING:
                work(machine, clients, name, now)


def tick(machine: Round, clients: Clients, now: float) -> tuple[Command, ...]:
    said = machine.handle(Tick(now))
    clients.obey(said)
    return said


def test_only_holder_without_progress_holds_no_round():
    plan = planned(3, 4, replicas=2, blocks=1, held=[{0, 1}, {0, 1}, {2, 3}], settings=AUTO)
    machine, clients = begun(plan)
    ready(machine, clients, "client 0", "client 1")
    assert machine.state is State.WORKING
    assert machine.next_tick == LEAST_S
    tick(machine, clients, LEAST_S)
    assert machine.state is State.COLLECTING
    send_all(machine, clients, 31.0)
    assert (machine.outcome, machine.short) == ("approximate", (2, 3))
    assert machine.statistics.failure == ["", "", "no progress for 30 s"]
    assert machine.statistics.awaited == {2}


def test_replicas_of_stalled_client_are_not_awaited():
    plan = planned(3, 6, replicas=3, blocks=3, settings=AUTO)
    machine, clients = begun(plan)
    ready(machine, clients, "client 0", "client 1")
    assert machine.state is State.WORKING, "three replicas of each chunk are wanted"
    tick(machine, clients, LEAST_S)
    send_all(machine, clients, 31.0)
    assert machine.outcome == "synced"


def test_stalled_client_that_reports_is_counted_on_again():
    plan = planned(4, 6, replicas=2, blocks=1, held=[{0, 1}, {0, 1}, {2, 3}, {4, 5}], settings=AUTO)
    machine, clients = begun(plan)
    ready(machine, clients, "client 0", "client 1")
    work(machine, clients, "client 3", 29.0)
    tick(machine, clients, PATIENCE * 29.0)
    assert machine.statistics.failure[2] == "no progress for 232 s"
    assert machine.state is State.WORKING, "client 3 has time until 261 s"
    work(machine, clients, "client 2", 233.0)
    assert machine.statistics.failure[2] == ""
    work(machine, clients, "client 3", 234.0)
    assert machine.state is State.WORKING, "client 2 has a chunk to go"
    work(machine, clients, "client 2", 235.0)
    send_all(machine, clients, 236.0)
    assert (machine.outcome, machine.short) == ("synced", ())


def test_slow_client_has_several_times_longest_chunk():
    plan = planned(3, 4, replicas=2, blocks=1, held=[{0, 1}, {0, 1}, {2, 3}], settings=AUTO)
    machine, clients = begun(plan)
    for now in (20.0, 40.0):
        for name in ("client 0", "client 1"):
            if clients.queue[name]:
                work(machine, clients, name, now)
    tick(machine, clients, LEAST_S + 100.0)
    assert machine.state is State.WORKING
    assert machine.next_tick == PATIENCE * 20.0


def test_nothing_is_concluded_while_no_client_reports():
    plan = planned(3, 4, replicas=2, blocks=1, settings=AUTO)
    machine, clients = begun(plan)
    tick(machine, clients, 599.0)
    assert machine.state is State.WORKING
    assert not machine.statistics.awaited


def test_clients_that_stall_together_are_still_counted_on():
    plan = planned(2, 8, replicas=2, blocks=2, settings=AUTO)
    machine, clients = begun(plan)
    for name in plan.clients:
        work(machine, clients, name)
    tick(machine, clients, 599.0)
    assert machine.state is State.WORKING, "they may have been suspended"
    assert not machine.statistics.awaited


def test_model_in_transit_is_no_stall():
    plan = planned(2, 2, replicas=1, blocks=1, held=[{0}, {1}], settings=AUTO)
    machine = Round(plan, Assignment(1, 0, TARGET, 0, model_limit_s=200.0), sync)
    clients = Clients(plan)
    clients.obey(machine.start(0.0, [joined(plan, client) for client in plan.clients]))
    ready(machine, clients, "client 0")
    assert machine.next_tick == 200.0 + LEAST_S
    machine.handle(Loaded(50.0, "client 1", 0))
    tick(machine, clients, 200.0 + LEAST_S)
    assert machine.statistics.awaited == {1}


def test_chosen_deadline_is_how_long_round_waits():
    plan = planned(3, 4, replicas=2, blocks=1, held=[{0, 1}, {0, 1}, {2, 3}])
    machine, clients = begun(plan)
    ready(machine, clients, "client 0", "client 1")
    assert machine.next_tick == 100.0
    tick(machine, clients, 100.0)
    assert machine.statistics.awaited == {2}


def test_client_of_message_link_has_time_for_all_its_chunks():
    plan = planned(3, 4, replicas=2, blocks=1, held=[{0, 1}, {0, 1}, {2, 3}], settings=AUTO)
    machine, clients = begun(plan, live=False)
    ready(machine, clients, "client 0", "client 1", now=10.0)
    assert machine.next_tick == max(DEAF_S, PATIENCE * 10.0 * 2)


def test_claimed_chunks_that_never_come_are_repaired():
    plan = planned(3, 6, replicas=3, blocks=1, settings=AUTO)
    machine, clients = begun(plan)
    for chunk in range(6):
        clients.hold("client 0", chunk)
        clients.obey(machine.handle(progress("client 0", chunk)))
    assert machine.state is State.COLLECTING
    clients.unsent.clear()
    now = machine.next_tick
    said = tick(machine, clients, now)
    assert {take.client for take in said if isinstance(take, Take)} == {"client 1", "client 2"}
    while machine.state is not State.CLOSED:
        for name in ("client 1", "client 2"):
            for chunk in list(clients.queue[name]):
                clients.hold(name, chunk)
                clients.obey(machine.handle(progress(name, chunk, now)))
        send_all(machine, clients, now + 1.0)
    assert machine.outcome == "synced"
    assert machine.statistics.awaited == {0}


@pytest.mark.parametrize("lost", [False, True])
def test_mute_client_holds_no_quorum_of_local_work(lost: bool):
    plan = local.planned(2)
    object.__setattr__(plan, "gives_up_stalled", True)
    machine, fleet = local.begun(plan)
    local.reach(machine, fleet, "client 0")
    if lost:
        fleet.obey(machine, machine.handle(Lost(5.0, "client 1")), 5.0)
    else:
        assert machine.next_tick == LEAST_S
        fleet.obey(machine, machine.handle(Tick(LEAST_S)), LEAST_S)
    assert fleet.unsent[0] == "client 0"
    fleet.send(machine, "client 0", 31.0)
    machine.handle(Tick(31.0 + plan.upload_deadline_s))
    assert machine.outcome == "approximate"
    assert machine.statistics.awaited == (set() if lost else {1})


def test_late_codeword_that_others_replaced_counts_as_awaited():
    plan = planned(3, 3, replicas=3, blocks=1, settings={**AUTO, "late_s": 5.0})
    machine, clients = begun(plan)
    for client, chunk in (("client 0", 0), ("client 1", 1), ("client 2", 2)):
        clients.hold(client, chunk)
        clients.obey(machine.handle(progress(client, chunk)))
    assert machine.state is State.COLLECTING
    mute = clients.unsent[0][0]
    now = 2.0
    while machine.state is not State.CLOSED:
        clients.unsent = [each for each in clients.unsent if each[0] != mute]
        while clients.unsent:
            client, attempt = clients.unsent.pop(0)
            clients.obey(machine.handle(Codeword(now, client, 1, attempt)))
        for name in set(plan.clients) - {mute}:
            if clients.queue[name]:
                work(machine, clients, name, now)
        now += 1.0
        tick(machine, clients, now)
    assert machine.outcome == "synced"
    assert machine.statistics.awaited == {plan.clients.index(mute)}
    assert now < plan.upload_deadline_s
