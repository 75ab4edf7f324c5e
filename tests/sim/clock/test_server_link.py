"""The server's line: fair shares, slots, and nothing lost on the way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.sim.clock import UNCONTENDED, Line, Pipe, all_arrivals_s, arrivals_s

sends = st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.1, 3.0)), min_size=1, max_size=6)


def slow_arrivals(ready, own, size, update_s, step=1e-3):
    """The obvious twin: in small steps of time, fill the line from the slowest to the fastest."""
    left, came, now = [size] * len(ready), [None] * len(ready), 0.0
    while None in came:
        active = [at for at, begin in enumerate(ready) if begin <= now and came[at] is None]
        room, rates = 1.0 / update_s, {}
        for place, at in enumerate(sorted(active, key=lambda each: 1.0 / own[each])):
            rates[at] = min(1.0 / own[at], room / (len(active) - place))
            room -= rates[at]
        now += step
        for at in active:
            left[at] -= step * rates[at]
            if left[at] <= 0:
                came[at] = now
    return came


@given(sends)
def test_an_uncontended_line_delays_nobody(given_sends):
    ready, own = map(np.array, zip(*given_sends, strict=True))
    assert arrivals_s(ready, 0.5, own, UNCONTENDED) == pytest.approx(ready + 0.5 * own)


@given(sends)
def test_a_line_wide_enough_for_all_is_as_good_as_none(given_sends):
    ready, own = map(np.array, zip(*given_sends, strict=True))
    assert arrivals_s(ready, 0.5, own, Line(update_s=1e-3)) == pytest.approx(ready + 0.5 * own)


@pytest.mark.parametrize("seed", range(4))
def test_sharing_is_max_min_fair(seed):
    rng = np.random.default_rng(seed)
    ready, own = rng.uniform(0, 2, 4), rng.uniform(0.2, 2, 4)
    expected = slow_arrivals(ready.tolist(), own.tolist(), 0.7, 0.9)
    assert arrivals_s(ready, 0.7, own, Line(update_s=0.9)) == pytest.approx(expected, abs=5e-3)


@given(sends)
def test_a_busy_line_is_never_faster_than_its_width(given_sends):
    ready, own = map(np.array, zip(*given_sends, strict=True))
    came = arrivals_s(ready, 1.0, own, Line(update_s=1.0))
    assert came.max() >= len(ready) * 1.0 - 1e-9
    assert (came >= ready + own - 1e-9).all()


def test_with_one_slot_they_come_one_after_the_other():
    came = arrivals_s(np.zeros(3), 1.0, np.full(3, 2.0), Line(slots=1))
    assert came.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("line", [Line(slots=1), Line(update_s=1.0), Line(update_s=1.0, slots=1)])
def test_what_is_dropped_gives_its_place_to_the_others(line):
    pipe = Pipe(line)
    pipe.begin(0.0, 1, 1.0, 1.0)
    pipe.begin(0.0, 2, 1.0, 1.0)
    pipe.drop(0.5, 1)
    assert pipe.next_end <= 1.5
    assert pipe.ended(pipe.next_end) == [2]
    assert pipe.next_end == float("inf")


@pytest.mark.parametrize("line", [Line(), Line(update_s=0.1)])
def test_what_was_dropped_and_begins_anew_takes_as_long_again(line):
    pipe = Pipe(line)
    pipe.begin(0.0, 1, 1.0, 10.0)
    pipe.begin(0.0, 2, 1.0, 5.0)
    pipe.drop(1.0, 1)
    pipe.begin(2.0, 1, 1.0, 10.0)
    assert [(pipe.next_end, pipe.ended(pipe.next_end)) for _ in range(2)] == [(5.0, [2]), (12.0, [1])]


def test_who_never_sends_never_comes():
    assert arrivals_s(np.array([float("inf"), 0.0]), 1.0, np.ones(2), Line(slots=1)).tolist() == [
        float("inf"),
        1.0,
    ]


vectors = st.lists(
    st.tuples(st.lists(st.floats(0.0, 3.0), min_size=3, max_size=3), st.floats(0.1, 2.0)),
    min_size=1,
    max_size=5,
)


@given(vectors, st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3))
def test_vectors_of_a_client_go_one_after_the_other(given_vectors, sizes):
    """However many may go at once, and a line that is wide enough for all changes nothing."""
    ready, own = (np.array(each) for each in zip(*given_vectors, strict=True))
    came = all_arrivals_s(ready, sizes, own, UNCONTENDED)
    for sends, done, pace in zip(ready.tolist(), came.tolist(), own.tolist(), strict=True):
        free = 0.0
        for ready_s, size, came_s in zip(sends, sizes, done, strict=True):
            free = max(free, ready_s) + size * pace
            assert came_s == pytest.approx(free)
    for line in (Line(update_s=1e-4), Line(slots=len(own))):
        assert all_arrivals_s(ready, sizes, own, line) == pytest.approx(came, abs=1e-9)
    narrow = all_arrivals_s(ready, sizes, own, Line(slots=1))
    assert (narrow >= came - 1e-9).all()
    assert narrow.max() >= ready[:, 0].min() + float((own * sum(sizes)).sum()) - 1e-9


@pytest.mark.parametrize("line", [UNCONTENDED, Line(slots=1), Line(update_s=1.0)])
def test_what_is_never_ready_is_never_there_nor_what_comes_after(line):
    ready = np.array([[0.0, np.inf, np.inf], [np.inf] * 3])
    assert all_arrivals_s(ready, (1.0, 1.0, 1.0), np.ones(2), line).tolist() == [
        [1.0, *[np.inf] * 2],
        [np.inf] * 3,
    ]


@pytest.mark.parametrize("line", [{"update_s": -1.0}, {"update_s": float("nan")}, {"slots": 0}])
def test_a_line_that_cannot_be_is_refused(line):
    with pytest.raises(BadSetting, match="needed"):
        Line(**line)
