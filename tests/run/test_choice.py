"""Test which clients are asked to train: turns, skipped rounds, lost clients, clients that join, resume."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fedgc.messages import Continue, Held, Joined, Lost, Work
from fedgc.run.choice import Choice
from fedgc.run.machine import Append
from tests.run.test_local_run import CLIENTS, SAMPLES, Fleet

NAMES = tuple(f"client {number}" for number in range(30))


@given(clients=st.integers(1, 30), count=st.integers(1, 30), seed=st.integers(0, 5))
def test_each_client_is_asked_once_in_turn(clients, count, seed):
    choice, able = Choice(count, seed), NAMES[:clients]
    asked = [choice.among(able, number, ()) for number in range(1, 13)]
    if count >= clients:
        assert asked == [None] * 12
        return
    assert {len(each) for each in asked} == {count}
    times = Counter(dict.fromkeys(able, 0))
    for each in asked:
        times.update(each)
        assert max(times.values()) - min(times.values()) <= 2


def test_choice_is_random_and_follows_seed():
    def turns(seed):
        choice = Choice(5, seed)
        return [frozenset(choice.among(NAMES, number, ())) for number in range(1, 13)]

    assert turns(0) == turns(0) != turns(1)
    assert len(set(turns(0))) == 12, "the second turn has other groups"


def test_carried_clients_are_asked_again_and_lost_ones_replaced():
    choice = Choice(3, 0)
    first = choice.among(NAMES[:9], 1, ())
    assert choice.among(NAMES[:9], 2, first) == first
    lost = min(first)
    left = [client for client in NAMES[:9] if client != lost]
    third = choice.among(left, 3, first)
    assert len(third) == 3
    assert third > first - {lost}


def test_new_client_is_asked_in_present_turn():
    choice = Choice(2, 0)
    asked = set(choice.among(NAMES[:6], 1, ()))
    for number in (2, 3, 4):
        asked |= choice.among(NAMES[:7], number, ())
    assert asked == set(NAMES[:7])


# ---- a run


def rounds_of(fleet: Fleet) -> list[list[str]]:
    return [[each.client for each in append.row.clients] for append in fleet.of(Append)]


def test_run_asks_sample_and_counts_only_its_data():
    fleet = Fleet(gate="every", clients_per_round=2, rounds=4)
    assert fleet.to_the_end() == ["synced"] * 4
    asked = rounds_of(fleet)
    assert [sorted(asked[0] + asked[1]), sorted(asked[2] + asked[3])] == [list(CLIENTS)] * 2
    assert len(fleet.of(Work)) == 8
    for append in fleet.of(Append):
        assert append.row.reason.endswith("asked 2 of 4 clients")
        assert (append.row.coverage, append.row.samples) == (1.0, 2 * SAMPLES)
        assert not append.awaited
        assert not any(each.failure for each in append.row.clients)


def test_same_clients_continue_through_skipped_rounds():
    fleet = Fleet(gate="every", gate_period=3, clients_per_round=2, rounds=6)
    assert fleet.to_the_end() == ["skipped", "skipped", "synced"] * 2
    asked = rounds_of(fleet)
    assert asked[0] == asked[1] == asked[2]
    assert asked[3] == asked[4] == asked[5]
    assert sorted(asked[0] + asked[3]) == list(CLIENTS)
    assert (len(fleet.of(Work)), len(fleet.of(Continue))) == (4, 8)
    assert fleet.booked == fleet.done == dict.fromkeys(CLIENTS, 15)


def test_lost_client_is_replaced_in_next_round():
    fleet = Fleet(gate="every", gate_period=3, clients_per_round=2, rounds=6)
    lost, stays = rounds_of_now(fleet)
    fleet.say(Lost(fleet.now, lost))
    fleet.do_a_round()
    now = rounds_of_now(fleet)
    assert len(now) == 2
    assert stays in now
    assert lost not in now
    new = next(client for client in now if client != stays)
    assert fleet.of(Work)[-1].client == new
    assert [each.client for each in fleet.of(Continue)] == [stays]


def test_client_that_joins_in_mid_round_waits_unless_it_is_asked():
    fleet = Fleet(gate="every", clients_per_round=2, rounds=6)
    asked, given_before = rounds_of_now(fleet), len(fleet.of(Work))
    idle = next(client for client in CLIENTS if client not in asked)
    for client in (idle, asked[0]):
        fleet.say(Lost(fleet.now, client))
        fleet.say(Joined(fleet.now, client, True, (Held(f"chunk {client}", SAMPLES),)))
    assert [each.client for each in fleet.of(Work)[given_before:]] == [asked[0]]
    assert not fleet.run.round.waiting.clients - set(asked)


def test_resumed_run_asks_clients_that_it_would_have_asked():
    whole = Fleet(gate="every", clients_per_round=1, rounds=8)
    whole.to_the_end()
    first = Fleet(gate="every", clients_per_round=1, rounds=8)
    for _ in range(3):
        first.do_a_round()
    again = Fleet(resume=first.run.state(), gate="every", clients_per_round=1, rounds=8)
    again.to_the_end()
    assert rounds_of(first) + rounds_of(again) == rounds_of(whole)


def rounds_of_now(fleet: Fleet) -> list[str]:
    return list(fleet.run.round.plan.clients)


def test_shared_data_stays_divided_among_all_clients():
    fleet = Fleet(shared=True, gate="every", clients_per_round=2, rounds=4)
    fleet.to_the_end()
    names = {work.client: work.names for work in fleet.of(Work)}
    assert len(names) == len(set(names.values())) == 4
    assert {(work.client, work.names) for work in fleet.of(Work)} == set(names.items())
