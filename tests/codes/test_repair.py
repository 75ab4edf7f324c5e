import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import Coefficients, repair
from fedgc.errors import BadPlacement


def terms(chunks):
    return Coefficients(tuple(chunks), tuple((float(chunk),) for chunk in chunks))


def without(done, gone):
    """The finished matrix without the chunks of clients that are gone."""
    left = done.copy()
    left[gone] = False
    return left


def fewest_slowly(done, chunks, able):
    """The least number of helpers that together have all chunks, by trying all sets."""
    for size in range(len(able) + 1):
        for chosen in itertools.combinations(able, size):
            if all(any(done[w, c] for w in chosen) for c in chunks):
                return size
    return None


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 999))
def test_lost_terms_are_sent_once_by_clients_that_finished_them(clients_w, chunks, seed):
    rng = np.random.default_rng(seed)
    done = rng.random((clients_w, chunks)) < 0.5
    lost = terms(np.flatnonzero(rng.random(chunks) < 0.7).tolist())
    plan = repair(0, lost, without(done, [0]))
    able = range(1, clients_w)
    sent = [
        (c, row)
        for part in plan.parts
        for c, row in zip(part.coefficients.chunks, part.coefficients.matrix, strict=True)
    ]
    left = list(zip(plan.missing.chunks, plan.missing.matrix, strict=True))
    assert sorted(sent + left) == sorted(zip(lost.chunks, lost.matrix, strict=True))
    for part in plan.parts:
        assert part.column == 0
        assert part.helper != 0
        assert done[part.helper, list(part.coefficients.chunks)].all()
    assert all(not done[1:, chunk].any() for chunk in plan.missing.chunks)
    if not plan.missing.chunks:
        least = fewest_slowly(done, lost.chunks, able)
        # greedy cover: within the harmonic sum of the number of terms
        assert least <= len(plan.parts) <= least * (1 + np.log(max(len(lost.chunks), 1))) + 1e-9


def test_lost_helpers_are_skipped_and_cheaper_helper_is_used():
    done = np.ones((4, 2), bool)
    assert repair(0, terms([0, 1]), without(done, [0, 1])).parts[0].helper == 2
    assert repair(0, terms([0, 1]), without(done, [0]), cost=[0.0, 3.0, 2.0, 1.0]).parts[0].helper == 3


def test_two_cheap_helpers_beat_one_expensive_helper():
    done = np.array([[True, True], [True, True], [True, False], [False, True]])

    def helpers(costly: float) -> list[int]:
        shared = repair(0, terms([0, 1]), without(done, [0]), cost=[0.0, costly, 1.0, 1.0])
        return [part.helper for part in shared.parts]

    assert (helpers(1.9), helpers(2.1)) == ([1], [2, 3])


def test_lost_repair_is_repaired_under_same_column():
    done = np.ones((3, 2), bool)
    first = repair(0, terms([0, 1]), without(done, [0])).parts[0]
    second = repair(first.column, first.coefficients, without(done, [0, first.helper]))
    assert second.column == 0
    assert [part.helper for part in second.parts] == [2]
    assert second.parts[0].coefficients == first.coefficients


def test_returning_client_may_repair_own_column():
    done = np.array([[True, True], [False, True]])
    plan = repair(0, terms([0, 1]), done)
    assert [part.helper for part in plan.parts] == [0]


def test_complete_round_needs_no_repair():
    assert repair(0, terms([]), np.ones((2, 2), bool)).parts == ()


def test_mismatched_arguments_are_refused():
    with pytest.raises(BadPlacement, match="a finished matrix of bool"):
        repair(0, terms([5]), np.ones((2, 2), bool))
    with pytest.raises(BadPlacement, match="a finished matrix of float64"):
        repair(0, terms([0]), np.ones((2, 2)))
    with pytest.raises(BadPlacement, match="client 3 is none of 0 to 1"):
        repair(3, terms([0]), np.ones((2, 2), bool))
    with pytest.raises(BadPlacement, match="costs of shape"):
        repair(0, terms([0]), np.ones((2, 2), bool), cost=[1.0])
