import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.baselines import FractionalRepetition, block_coordinate, cyclic
from benchmarks.codewords import encode
from fedgc.errors import BadPlacement, NotRecoverable


@given(st.integers(1, 7), st.data())
def test_enough_clients_give_exact_sum(clients_w, data):
    load = data.draw(st.integers(1, clients_w))
    blocks = data.draw(st.integers(1, load))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    code = cyclic(clients_w, load, blocks, rng)
    assert code.stragglers == load - blocks
    updates = rng.standard_normal((clients_w, 2 * blocks))
    codewords = []
    for w in range(clients_w):
        told = code.coefficients(w)
        assert told.chunks == tuple((w + step) % clients_w for step in range(load))
        codewords.append(encode(told.chunks, told.matrix, dict(enumerate(updates))))
    for silent in itertools.combinations(range(clients_w), code.stragglers):
        answered = np.ones(clients_w, bool)
        answered[list(silent)] = False
        weights = code.weights(answered)
        assert (weights[:, list(silent)] == 0.0).all()
        scale = max(1.0, np.abs(weights).max() * np.abs(code.factors_wlb).max()) ** 2
        np.testing.assert_allclose(
            (weights @ codewords).reshape(-1), updates.sum(axis=0), rtol=0, atol=1e-9 * scale
        )


def test_too_many_silent_clients_are_named():
    code = cyclic(5, 3, 1, np.random.default_rng(0))
    with pytest.raises(NotRecoverable, match="3 clients are silent, 2 may be"):
        code.weights(np.array([True, True, False, False, False]))


def test_amplification_equals_error_of_noisy_codewords():
    rng = np.random.default_rng(0)
    code = cyclic(12, 4, 2, rng)
    answered = np.ones(12, bool)
    answered[3] = False
    weights = code.weights(answered)
    updates = rng.standard_normal((12, 2, 500))
    codewords = np.einsum("wlb,wlbd->wd", code.factors_wlb, updates[code.held_wl])
    noise = (
        rng.standard_normal((40, *codewords.shape)) * np.sqrt((code.factors_wlb**2).sum(axis=(1, 2)))[:, None]
    )
    error = np.mean((weights @ noise) ** 2) / 12  # a block of the sum has 12 times unit variance
    assert abs(error / code.amplification(answered) - 1.0) < 0.05


def test_fractional_repetition_needs_one_client_per_group():
    code = FractionalRepetition(6, 3)
    assert [code.chunks(w) for w in (0, 2, 3)] == [(0, 1, 2), (0, 1, 2), (3, 4, 5)]
    for answers in itertools.product([False, True], repeat=6):
        answered = np.array(answers)
        if answered[:3].any() and answered[3:].any():
            weights = code.weights(answered)
            assert weights[~answered].sum() == 0
            assert [weights[:3].sum(), weights[3:].sum()] == [1.0, 1.0]
        else:
            with pytest.raises(NotRecoverable, match="no client of group"):
                code.weights(answered)


def test_late_coordinates_tolerate_more_stragglers():
    code = block_coordinate(6, (0, 1, 3), np.random.default_rng(0))
    assert code.recovered([3] * 6) == (True, True, True)
    assert code.recovered([3, 3, 3, 1, 1, 1]) == (True, False, True)
    assert code.recovered([0, 3, 3, 3, 3, 3]) == (False, True, True)


@pytest.mark.parametrize(
    "refused",
    [
        lambda rng: cyclic(3, 4, 1, rng),
        lambda rng: cyclic(3, 2, 3, rng),
        lambda rng: cyclic(3, 2, 0, rng),
        lambda rng: FractionalRepetition(5, 2),
        lambda rng: block_coordinate(4, (2, 1), rng),
        lambda rng: block_coordinate(4, (), rng),
    ],
)
def test_invalid_codes_are_refused(refused):
    with pytest.raises(BadPlacement):
        refused(np.random.default_rng(0))
