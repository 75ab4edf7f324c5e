"""Test the choice of a quorum for local work, and when late updates should count."""

import math

import numpy as np
import pytest

from fedgc.errors import BadSetting
from fedgc.tuner.local_rounds import STALE, LocalClients, choose_rounds

SPEEDS = np.array([1.0, 1.0, 1.0, 0.2, 0.2, 0.2, 0.05, 0.05])
STEPS = 32


def clients(link_s: float = 0.0, *, slow_links: bool = False) -> LocalClients:
    link_s_w = link_s / SPEEDS if slow_links else np.full(len(SPEEDS), link_s)
    return LocalClients(1.0 / SPEEDS, link_s_w, link_s_w)


def test_quorum_is_that_of_quick_clients():
    """Their round takes 32 s, and the slowest clients then end their second step."""
    choice = choose_rounds(clients(), STEPS)
    assert (choice.way, choice.rounds.quorum, choice.rounds.round_s) == ("partial", 0.375, 40.0)
    assert choice.waiting.round_s == choice.waiting.update_s == 640.0


@pytest.mark.parametrize(("model_s", "quorum"), [(20.0, 0.75), (40.0, 1.0)])
def test_quorum_lets_each_client_do_one_step(model_s, quorum):
    """Others are done after 28 s; a client with the model ends the step of 20 s that it has begun."""
    slow = LocalClients(np.array([1.0, 1.0, 2.0, 20.0]), np.array([20.0, 20.0, 20.0, model_s]), np.zeros(4))
    assert choose_rounds(slow, 4).rounds.quorum == quorum


def test_late_updates_count_where_links_are_slow():
    """The round waits for half of the clients; others do all their steps, as long as their models travel."""
    choice = choose_rounds(clients(16.0, slow_links=True), STEPS)
    late = choice.late
    assert (choice.way, choice.chosen, late.round_s) == ("late", late, 320.0)
    assert late.quorum == 0.5
    stale_s = 64.0 / SPEEDS[6:] / STALE
    assert late.update_s == pytest.approx(math.sqrt((6 * 320.0**2 + (stale_s**2).sum()) / len(SPEEDS)))


@pytest.mark.parametrize(("up_s", "way"), [(0.8, "sync"), (4.0, "late")])
def test_late_updates_count_for_uplinks_that_are_much_slower(up_s, way):
    """Training takes 2 s, most uploads .4 s, and two of eight `up_s`."""
    up_s_w = np.array([0.4] * 6 + [up_s] * 2)
    choice = choose_rounds(LocalClients(np.full(8, 2.0 / STEPS), np.full(8, 0.2), up_s_w), STEPS)
    assert choice.way == way


def test_late_updates_are_chosen_if_any_quorum_gains_clearly():
    """Rounds with the least quorum gain less than that, and are nearly as quick as the best ones."""
    up_s_w = np.array([1.0, 3.0, 2.0, 1.0, 2.0])
    choice = choose_rounds(LocalClients(np.array([1.1, 1.1, 0.8, 1.0, 0.9]), np.ones(5), up_s_w), 4)
    assert (choice.way, choice.chosen.quorum) == ("late", 0.8)


def test_uploads_take_turns_at_slots():
    """Five quick clients with equal links of 16 s: the fourth sends when the first has."""
    step_s_w, link_s_w = np.array([1.0] * 5 + [20.0] * 3), np.full(8, 16.0)
    alike = LocalClients(step_s_w, link_s_w, link_s_w)
    taking_turns = LocalClients(step_s_w, link_s_w, link_s_w, slots=3)
    assert choose_rounds(taking_turns, STEPS).waiting.round_s == 16.0 + 640.0 + 3 * 16.0
    late = choose_rounds(taking_turns, STEPS).late
    assert late.round_s == choose_rounds(alike, STEPS).late.round_s + 16.0


def test_rounds_wait_for_ends_of_steps_where_links_are_quick():
    """With late updates those that end a step would be of older models."""
    choice = choose_rounds(clients(), STEPS)
    assert choice.late.update_s == pytest.approx(1.48 * choice.rounds.update_s, rel=0.01)
    assert choice.chosen == choice.rounds


def test_equal_clients_are_all_waited_for():
    same = LocalClients(np.ones(7), np.zeros(7), np.zeros(7))
    assert (choose_rounds(same, STEPS).way, choose_rounds(same, STEPS).rounds.quorum) == ("sync", 1.0)


@pytest.mark.parametrize("count", [2, 3, 5, 7, 49, 1000])
def test_quorum_as_share_names_as_many_clients(count: int):
    """Clients in two halves of different speed: the quick half is the quorum."""
    quick = math.ceil(count / 2)
    step_s_w = np.where(np.arange(count) < quick, 1.0, 30.0)
    quorum = choose_rounds(LocalClients(step_s_w, np.zeros(count), np.zeros(count)), STEPS).rounds.quorum
    assert math.ceil(quorum * count) == quick


def test_times_of_other_clients_are_refused():
    with pytest.raises(BadSetting, match="needed one of each client"):
        LocalClients(np.ones(3), np.ones(2), np.ones(3))


def test_rounds_of_groups_end_with_quorum_of_quickest_group():
    """Its third client is done after 32 s; others train for as long as they need for a step."""
    choice = choose_rounds(clients(), STEPS)
    assert (choice.groups, choice.grouped.quorum, choice.grouped.round_s) == ((3, 3, 2), 0.75, 32.0)
    assert choose_rounds(clients(16.0, slow_links=True), STEPS).grouped.round_s == 64.0


def test_equal_clients_are_one_group():
    same = LocalClients(np.ones(4), np.zeros(4), np.zeros(4))
    assert choose_rounds(same, STEPS).groups == (4,)
