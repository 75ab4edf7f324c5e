"""Test that false announcements of one client neither win nor slow the rounds of the others."""

import pytest

from fedgc.messages import Held, Refuse, Work
from fedgc.run.machine import Append
from tests.run.test_machine import SHARED, Driver, own, play_private_rounds

FALSE = tuple(Held(held.name, 10**15, "same") for held in SHARED)
INVENTED = tuple(Held(f"new {at}", 10, "same") for at in range(3000))


@pytest.mark.parametrize("order", ["lab", "alb", "abl"])
def test_false_claim_of_shared_chunks_does_not_win(order: str) -> None:
    driver = Driver(rounds=2, min_clients=3 if order == "abl" else 2)
    for client in order:
        driver.join(client, holds=FALSE if client == "l" else SHARED)
    driver.join("c")
    play_private_rounds(driver, 2)
    rows = [each.row for each in driver.of(Append)]
    assert [(row.outcome, row.chunks) for row in rows] == [("synced", 4)] * 2
    assert rows[-1].samples == rows[-1].counted_samples == 40
    assert rows[-1].left_out == (
        f"1 client was refused data: l: chunk chunk 0: saw {10**15} samples, others have 10;"
        " 3 more chunks differ: data made at random need a seed"
    )
    assert {refused.client for refused in driver.of(Refuse)} <= {"l", "a"}


def test_invented_chunks_do_not_enter_plan() -> None:
    driver = Driver(rounds=1, min_clients=3)
    driver.join("a", "b")
    driver.join("l", holds=(*SHARED, *INVENTED))
    assert {len(work.names) for work in driver.of(Work)} <= {2, 3, 4}
    play_private_rounds(driver, 1)
    (row,) = (each.row for each in driver.of(Append))
    assert (row.outcome, row.chunks, row.replicas) == ("synced", 4, 2)
    assert "1 client was refused data: l: chunk new 0: no other client announces it" in row.left_out


def test_claimed_seconds_count_as_far_as_there_is_this_model() -> None:
    driver = Driver(rounds=2, deadline_s="auto")
    driver.now = 1000.0
    driver.join("a", "b")
    play_private_rounds(driver, 1)
    began = driver.now
    driver.now += 2.0
    driver.step_s["a"] = 1e9
    driver.work("a")
    round_ = driver.run.round
    assert round_ is not None
    (seconds,) = {each for each in round_.statistics.busy_s if each}
    assert seconds <= driver.now - began + 1.0


def test_private_data_of_all_clients_stays_in_plan() -> None:
    driver = Driver(rounds=1, min_clients=3)
    for client in "abc":
        driver.join(client, holds=own(client))
    play_private_rounds(driver, 1)
    (row,) = (each.row for each in driver.of(Append))
    assert (row.outcome, row.chunks, row.left_out) == ("synced", 12, "")
