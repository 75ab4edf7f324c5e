"""Test lateness: the median upload time sets the limit after which a client is late."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.round.coded.lateness import PATIENCE, Lateness

LEAST_S = 0.5

seconds = st.floats(0.0, 1e4)


@given(took_s=st.lists(seconds, min_size=1, max_size=12), now=seconds)
def test_patience_equals_that_of_full_list_of_times(took_s: list[float], now: float):
    lateness = Lateness(LEAST_S)
    owed = {(w, 0): None for w in range(len(took_s))}
    lateness.asked(owed, 0.0)
    in_order = sorted(range(len(took_s)), key=took_s.__getitem__)
    came = [w for w in in_order if took_s[w] <= now]
    known = [lateness.came(w, took_s[w]) for w in came]
    for w in came:
        del owed[w, 0]

    half = math.ceil(len(took_s) / 2)
    usual_s = max(LEAST_S, PATIENCE * sorted(took_s)[half - 1]) if len(came) >= half else math.inf
    assert lateness.patience_s == usual_s
    assert [at for at, each in enumerate(known, start=1) if each] == ([half] if len(came) >= half else [])
    assert lateness.late(owed, now) == tuple(key for key in owed if usual_s <= now)
    assert lateness.next_s(owed, now) == (usual_s if owed and usual_s > now else math.inf)
    assert lateness.sent_s == {w: took_s[w] for w in came}


@given(st.lists(st.integers(0, 2), min_size=4, max_size=40))
def test_only_last_quarter_is_late_when_uploads_take_turns(waves: list[int]):
    many = 4 * len(waves)
    lateness = Lateness(LEAST_S)
    owed = [(w, 0) for w in range(many)]
    lateness.asked(owed, 0.0)
    while owed:
        now = float(many - len(owed) + 1)
        assert not lateness.late(owed, now) or len(owed) <= many / 4 + 1
        lateness.came(owed.pop(0)[0], now)


def test_later_request_has_equal_time_limit():
    lateness = Lateness(LEAST_S)
    lateness.asked([(0, 0), (1, 0)], 0.0)
    lateness.came(0, 2.0)
    lateness.asked([(1, 0), (2, 1)], 10.0)
    assert lateness.late([(1, 0), (2, 1)], 10.0) == ((1, 0),), "asked before, so its time runs on"
    assert lateness.next_s([(1, 0), (2, 1)], 10.0) == 10.0 + 2.0 * PATIENCE


def test_vectors_of_one_client_are_sequential():
    lateness = Lateness(LEAST_S)
    lateness.asked([(0, 0), (1, 0), (2, 0)], 0.0)
    lateness.came(0, 1.0)
    lateness.came(1, 2.0)
    assert lateness.patience_s == 2.0 * PATIENCE
    owed = [(0, 1), (0, 2), (0, 3)]
    lateness.asked([(2, 0), *owed], 10.0)
    assert lateness.late(owed, 12.9) == ()
    assert lateness.late(owed, 13.0) == tuple(owed), "its line is late, with all behind"
    lateness.came(0, 12.5)
    assert lateness.sent_s[0] == 2.5
    assert (lateness.late(owed[1:], 13.0), lateness.next_s(owed[1:], 13.0)) == ((), 15.5)
    lateness.came(0, 14.0)
    assert (lateness.sent_s[0], lateness.waited_s(0, 15.0)) == (1.5, 1.0)
    lateness.came(0, 15.0)
    lateness.asked([(0, 4)], 20.0)
    assert lateness.waited_s(0, 21.0) == 1.0, "it had nothing to send before"


def test_returning_client_has_fresh_time_limit():
    lateness = Lateness(LEAST_S)
    lateness.asked([(0, 0), (1, 0)], 0.0)
    lateness.came(0, 2.0)
    lateness.again(1)
    lateness.asked([(1, 0)], 10.0)
    assert lateness.late([(1, 0)], 10.0) == ()
    assert lateness.patience_s == pytest.approx(2.0 * PATIENCE)
