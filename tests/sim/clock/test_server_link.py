"""Test the server's link: fair shares, slots, and no lost transfers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.messages import Reveal
from fedgc.sim.clock import UNCONTENDED, Line, Pipe, Terms, arrivals_s
from fedgc.sim.clock.conditions import NEVER
from fedgc.sim.clock.uploads import Uploads

sends = st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.1, 3.0)), min_size=1, max_size=6)


def slow_arrivals(ready, own, size, update_s, step=1e-3):
    """Slow reference: in small time steps, fill the link from the slowest to the fastest."""
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
def test_uncontended_link_delays_no_client(given_sends):
    ready, own = map(np.array, zip(*given_sends, strict=True))
    assert arrivals_s(ready, 0.5, own, UNCONTENDED) == pytest.approx(ready + 0.5 * own)


@given(sends)
def test_wide_enough_link_equals_unlimited_link(given_sends):
    ready, own = map(np.array, zip(*given_sends, strict=True))
    assert arrivals_s(ready, 0.5, own, Line(update_s=1e-3)) == pytest.approx(ready + 0.5 * own)


@pytest.mark.parametrize("seed", range(4))
def test_sharing_is_max_min_fair(seed):
    rng = np.random.default_rng(seed)
    ready, own = rng.uniform(0, 2, 4), rng.uniform(0.2, 2, 4)
    expected = slow_arrivals(ready.tolist(), own.tolist(), 0.7, 0.9)
    assert arrivals_s(ready, 0.7, own, Line(update_s=0.9)) == pytest.approx(expected, abs=5e-3)


@given(sends)
def test_busy_line_is_never_faster_than_its_width(given_sends):
    ready, own = map(np.array, zip(*given_sends, strict=True))
    came = arrivals_s(ready, 1.0, own, Line(update_s=1.0))
    assert came.max() >= len(ready) * 1.0 - 1e-9
    assert (came >= ready + own - 1e-9).all()


def test_single_slot_makes_uploads_sequential():
    came = arrivals_s(np.zeros(3), 1.0, np.full(3, 2.0), Line(slots=1))
    assert came.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("line", [Line(slots=1), Line(update_s=1.0), Line(update_s=1.0, slots=1)])
def test_dropped_upload_releases_capacity(line):
    pipe = Pipe(line)
    pipe.begin(0.0, 1, 1.0, 1.0)
    pipe.begin(0.0, 2, 1.0, 1.0)
    pipe.drop(0.5, 1)
    assert pipe.next_end <= 1.5
    assert pipe.ended(pipe.next_end) == [2]
    assert pipe.next_end == float("inf")


@pytest.mark.parametrize("line", [Line(), Line(update_s=0.1)])
def test_restarted_upload_takes_full_time(line):
    pipe = Pipe(line)
    pipe.begin(0.0, 1, 1.0, 10.0)
    pipe.begin(0.0, 2, 1.0, 5.0)
    pipe.drop(1.0, 1)
    pipe.begin(2.0, 1, 1.0, 10.0)
    assert [(pipe.next_end, pipe.ended(pipe.next_end)) for _ in range(2)] == [(5.0, [2]), (12.0, [1])]


def test_upload_that_is_never_sent_never_arrives():
    assert arrivals_s(np.array([float("inf"), 0.0]), 1.0, np.ones(2), Line(slots=1)).tolist() == [
        float("inf"),
        1.0,
    ]


@pytest.mark.parametrize("line", [{"update_s": -1.0}, {"update_s": float("nan")}, {"slots": 0}])
def test_invalid_link_is_refused(line):
    with pytest.raises(BadSetting, match="needed"):
        Line(**line)


@pytest.mark.parametrize("update_s", [0.0, 0.001])
def test_flows_of_earlier_rounds_have_slots_of_their_own(update_s):
    pipe = Pipe(Line(update_s=update_s, slots=1))
    for flow, own_s in enumerate((100.0, 50.0, 1.0, 1.0)):
        pipe.begin(0.0, flow, 1.0, own_s)
    assert pipe.next_end == pytest.approx(100.0)
    pipe.set_late(1.0, [0, 1])
    ends = {}
    while (now := pipe.next_end) < NEVER:
        ends |= dict.fromkeys(pipe.ended(now), round(now))
    assert ends == {2: 2, 3: 3, 0: 100, 1: 150}


@pytest.mark.parametrize("update_s", [0.0, 0.5])
def test_upload_is_measured_from_its_slot_on_as_on_server(update_s):
    uploads = Uploads(2, Terms(line=Line(update_s=update_s, slots=1)), lambda _: 2.0)
    for w in range(2):
        uploads.ask(0.0, w, Reveal(f"client {w}", 1, 0, "local", None, "float32"))
    first, second = (upload for now in (2.0, 4.0) for upload in uploads.ended(now))
    assert (first.began, second.began) == (0.0, 2.0)
