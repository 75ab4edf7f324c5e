"""Test how long a round of local work waits for updates once most have come."""

from dataclasses import replace

import pytest

from fedgc.messages import Codeword, Failed, Joined, Loaded, Lost, Offered, Tick
from fedgc.round.local.lateness import DEAF_S, PATIENCE
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.plan import Plan
from tests.round.local.test_round import TARGET, Clients, begun, joined, planned, reach, sync

MUTE = "client 3"
STEP_S = 0.1  # as the clients report


def plan_of(clients: int = 4, **changes: object) -> Plan:
    return replace(planned(clients), gives_up_late=True, late_s=2.0, **changes)


def collecting(plan: Plan, **changes: object) -> tuple[Round, Clients]:
    """A round that asks for updates at 1 s, of clients that have all reported their steps."""
    machine, fleet = begun(plan, **changes)
    for client in plan.clients:
        reach(machine, fleet, client)
    assert machine.state is State.COLLECTING
    return machine, fleet


def others_send(machine: Round, fleet: Clients, now: float) -> None:
    for client in fleet.plan.clients:
        if client != MUTE:
            fleet.send(machine, client, now)


def test_round_ends_without_client_that_sends_nothing():
    machine, fleet = collecting(plan_of())
    others_send(machine, fleet, 1.2)
    assert machine.next_tick == pytest.approx(1.0 + 2.0 + STEP_S)
    machine.handle(Tick(machine.next_tick))
    assert (machine.outcome, machine.short) == ("approximate", (3,))
    assert machine.statistics.awaited == {3}
    assert machine.statistics.failure == ["", "", "", "sent nothing within 2 s"]


def test_limit_is_several_times_slowest_of_others():
    machine, fleet = collecting(plan_of())
    others_send(machine, fleet, 6.0)
    assert machine.next_tick == pytest.approx(1.0 + PATIENCE * 5.0 + STEP_S)


def test_upload_deadline_comes_first():
    machine, fleet = collecting(plan_of())
    others_send(machine, fleet, 40.0)
    assert machine.next_tick == 51.0


def test_known_slow_uplink_has_its_own_time():
    machine, fleet = collecting(plan_of(), upload_s=(0.1, 0.1, 0.1, 20.0))
    others_send(machine, fleet, 1.2)
    assert machine.next_tick == pytest.approx(1.0 + 2.0 + 20.0 + STEP_S)


@pytest.mark.parametrize("clients", [2, 4])
def test_half_of_updates_decides_nothing(clients: int):
    machine, fleet = collecting(plan_of(clients))
    for client in machine.plan.clients[: clients // 2]:
        fleet.send(machine, client, 1.2)
    assert machine.next_tick == 51.0


def test_chosen_upload_deadline_is_how_long_round_waits():
    machine, fleet = collecting(planned(4))
    others_send(machine, fleet, 1.2)
    assert machine.next_tick == 51.0


def test_update_that_is_being_sent_is_not_late():
    machine, fleet = collecting(plan_of())
    assert machine.handle(Offered(1.5, MUTE, 1, 0)) == ()
    others_send(machine, fleet, 1.2)
    assert machine.next_tick == 51.0
    fleet.send(machine, MUTE, 50.0)
    assert (machine.outcome, len(fleet.added)) == ("synced", 4)
    assert not machine.statistics.awaited


def test_late_update_counts_while_round_waits_for_another():
    machine, fleet = collecting(plan_of(5))
    machine.handle(Offered(1.5, "client 4", 1, 0))
    for client in ("client 0", "client 1", "client 2"):
        fleet.send(machine, client, 1.2)
    machine.handle(Tick(20.0))
    fleet.send(machine, MUTE, 20.0)
    fleet.send(machine, "client 4", 30.0)
    assert (machine.outcome, len(fleet.added)) == ("synced", 5)


def test_report_of_partial_steps_starts_time_again_once():
    machine, fleet = collecting(plan_of())
    others_send(machine, fleet, 1.2)
    for now in (2.9, 4.0):
        fleet.obey(machine, machine.handle(fleet.report(MUTE, now)), now)
        assert machine.next_tick == pytest.approx(2.9 + 2.0 + STEP_S)


def test_client_that_returns_has_time_again():
    machine, fleet = collecting(plan_of())
    others_send(machine, fleet, 1.2)
    back = joined(machine.plan, MUTE, 2.5, TARGET)
    fleet.obey(machine, machine.handle(back), 2.5)
    assert machine.next_tick > 2.5 + 2.0
    machine.handle(Tick(machine.next_tick))
    assert machine.outcome == "approximate"


def test_stalled_upload_counts_as_awaited_and_failure_does_not():
    for failed_at, awaited in ((12.0, {3}), (1.5, set())):
        machine, fleet = collecting(plan_of())
        machine.handle(Offered(1.2, MUTE, 1, 0))
        others_send(machine, fleet, 1.2)
        machine.handle(Failed(failed_at, MUTE, 1, "nothing came for 10 s"))
        assert machine.outcome == "approximate"
        assert machine.statistics.awaited == awaited


def test_lost_client_is_not_counted_as_owing():
    machine, fleet = collecting(plan_of())
    machine.handle(Lost(1.1, "client 0"))
    for client in ("client 1", "client 2"):
        fleet.send(machine, client, 1.2)
    assert machine.next_tick == pytest.approx(1.0 + 2.0 + STEP_S)


def quorum_of_three(machine: Round, fleet: Clients, now: float) -> None:
    for client in machine.plan.clients:
        if client != MUTE:
            reach(machine, fleet, client, now=now)
    others_send(machine, fleet, now)


def test_client_in_step_of_unknown_length_has_time_of_round():
    plan = replace(planned(4, quorum=0.75), gives_up_late=True, late_s=2.0)
    machine, fleet = begun(plan)
    machine.handle(Loaded(0.0, MUTE, 0))
    quorum_of_three(machine, fleet, 30.0)
    assert machine.next_tick == 30.0 + 2.0 + 30.0


def test_client_without_model_has_nothing_to_send():
    plan = replace(planned(4, quorum=0.75), gives_up_late=True, late_s=2.0)
    machine, fleet = begun(plan)
    quorum_of_three(machine, fleet, 30.0)
    assert (machine.outcome, machine.short) == ("approximate", (3,))
    assert not machine.statistics.awaited


def test_client_of_message_link_has_time_for_process_to_start():
    plan = plan_of(upload_deadline_s=500.0)
    machine, fleet = Round(plan, Assignment(1, 0, TARGET, 0), sync), Clients(plan)
    there: list[Joined] = [joined(plan, client, live=client != MUTE) for client in plan.clients]
    fleet.obey(machine, machine.start(0.0, there), 0.0)
    for client in plan.clients:
        reach(machine, fleet, client)
    others_send(machine, fleet, 1.2)
    assert machine.next_tick == pytest.approx(1.0 + DEAF_S + STEP_S)


def test_late_messages_change_no_later_round():
    machine, fleet = collecting(plan_of())
    others_send(machine, fleet, 1.2)
    machine.handle(Tick(machine.next_tick))
    after = Round(machine.plan, Assignment(2, 1, TARGET, 0), sync)
    after.start(4.0, [joined(machine.plan, client, 4.0) for client in machine.plan.clients])
    assert after.handle(Offered(4.1, MUTE, 1, 0)) == ()
    after.handle(Codeword(4.2, MUTE, 1, 0))
    assert after.state is State.WORKING
    assert not any(after.statistics.refused)
