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
    """The quick clients need 64 s for a round; others train for all their steps, as long as they travel."""
    choice = choose_rounds(clients(16.0, slow_links=True), STEPS)
    late = choice.late
    assert (choice.way, choice.chosen, late.round_s) == ("late", late, 64.0)
    assert late.quorum <= 0.375
    stale_s = 64.0 / SPEEDS[3:] / STALE
    assert late.update_s == pytest.approx((3 * 64.0 + stale_s.sum()) / len(SPEEDS))


def test_uploads_take_turns_at_slots():
    """Three quick clients with equal links of 16 s: the third sends when the first has."""
    alike = clients(16.0)
    taking_turns = LocalClients(alike.step_s_w, alike.down_s_w, alike.up_s_w, slots=2)
    assert choose_rounds(taking_turns, STEPS).waiting.round_s == 16.0 + 640.0 + 4 * 16.0
    late = choose_rounds(taking_turns, STEPS).late
    assert late.round_s == choose_rounds(alike, STEPS).late.round_s + 16.0


def test_rounds_wait_for_ends_of_steps_where_links_are_quick():
    """With late updates those that end a step would be of older models."""
    choice = choose_rounds(clients(), STEPS)
    assert choice.late.update_s == pytest.approx(1.44 * choice.rounds.update_s, rel=0.01)
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
