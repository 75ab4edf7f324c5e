import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import amplification_limit, best_blocks, next_chunk, place
from fedgc.errors import BadSetting


@given(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6), st.floats(0.0, 50.0))
def test_best_blocks_minimize_total_time(steps, upload_s):
    cover = np.cumsum(steps).tolist()
    total = [at + upload_s / (index + 1) for index, at in enumerate(cover)]
    assert total[best_blocks(cover, upload_s) - 1] == min(total)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=9), st.data())
def test_next_chunk_is_earliest_of_least_covered(counts, data):
    replicas, started = np.array(counts).T
    remaining = data.draw(st.permutations(range(len(replicas))))
    remaining = remaining[: data.draw(st.integers(0, len(replicas)))]
    aim = data.draw(st.integers(1, 5))
    chunk = next_chunk(replicas, started, remaining, aim)
    wanted = [c for c in remaining if replicas[c] < aim]
    ranked = sorted(wanted, key=lambda c: (replicas[c] + started[c], remaining.index(c)))
    assert chunk == (ranked[0] if ranked else None)


def cover_time(placement, step_s, rule):
    """The time at which every chunk has two replicas, if `rule` chooses each client's next chunk."""
    replicas, started = np.zeros((2, placement.chunks), int)
    left = [list(order) for order in placement.orders]
    ready = [(0.0, w, None) for w in range(placement.clients_w)]
    while True:
        now, w, finished = heapq.heappop(ready)
        if finished is not None:
            replicas[finished] += 1
            started[finished] -= 1
            if replicas.min() >= 2:
                return now
        chunk = rule(replicas, started, left[w])
        if chunk is not None:
            left[w].remove(chunk)
            started[chunk] += 1
            heapq.heappush(ready, (now + step_s[w], w, chunk))


def test_steering_covers_first_then_skipping_then_fixed_order():
    rules = (
        lambda replicas, started, left: left[0] if left else None,
        lambda replicas, started, left: next((chunk for chunk in left if replicas[chunk] < 2), None),
        lambda replicas, started, left: next_chunk(replicas, started, left, 2),
    )
    placement = place(80, [1.0] * 80, 8)
    rng = np.random.default_rng(0)
    times = np.zeros(3)
    for _ in range(20):
        step_s = 1.0 + rng.exponential(1.0, 80)
        times += [cover_time(placement, step_s, rule) for rule in rules]
    fixed, skip, steer = times
    assert steer < 0.97 * skip
    assert skip < 0.95 * fixed


def test_limit_balances_amplified_noise_and_error_limit():
    assert abs(0.002 * amplification_limit(0.01, 0.002) ** 0.5 - 0.01) < 1e-12


@pytest.mark.parametrize(
    "refused",
    [
        lambda: best_blocks([], 1.0),
        lambda: best_blocks([1.0], float("nan")),
        lambda: amplification_limit(0.0, 1.0),
        lambda: amplification_limit(1.0, -1.0),
    ],
)
def test_invalid_times_and_limits_are_refused(refused):
    with pytest.raises(BadSetting, match="need"):
        refused()
