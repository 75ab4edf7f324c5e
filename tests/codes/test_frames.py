from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.codewords import codeword_of, decode
from benchmarks.worst import just_enough, worst
from fedgc.codes import FrameCode, GaussianCode, frame_for, harmonic_frame, place
from fedgc.codes.frame_table import SEARCHED
from fedgc.codes.mixing import all_patterns, mix
from fedgc.errors import BadPlacement

# (columns, blocks): worst condition, and the amplification that must come with it
REACH = {
    (4, 2): (2.5, 2.1),
    (8, 2): (5.2, 7.0),
    (8, 3): (10.0, 25.0),
    (8, 4): (12.0, 23.0),
    (12, 4): (50.0, 440.0),
    (16, 4): (140.0, 2700.0),
}


@pytest.mark.parametrize("size", REACH)
def test_worst_set_of_holders_is_well_conditioned(size):
    figures = worst(frame_for(*size))
    assert figures.condition <= REACH[size][0]
    assert figures.amplification <= REACH[size][1]


def worst_slowly(frame):
    """Condition and amplification of every set, one at a time."""
    pairs = []
    for chosen in combinations(range(frame.shape[1]), len(frame)):
        inverse = np.linalg.inv(frame[:, chosen])
        pairs.append((np.linalg.cond(frame[:, chosen]), (inverse**2).sum() / len(frame)))
    return np.array(pairs)


@pytest.mark.parametrize("size", sorted(SEARCHED))
def test_searched_frames_have_unit_columns_and_beat_harmonic(size):
    frame = frame_for(*size)
    assert frame.shape == (size[1], size[0])
    np.testing.assert_allclose(np.linalg.norm(frame, axis=0), 1.0, rtol=0, atol=1e-8)
    found, plain = worst(frame), worst(harmonic_frame(*size))
    assert found.condition < plain.condition
    assert found.amplification < plain.amplification
    slow = worst_slowly(frame)
    np.testing.assert_allclose([found.condition, found.amplification], slow.max(axis=0), rtol=1e-6)
    np.testing.assert_allclose(
        [found.median_condition, found.median_amplification], np.median(slow, axis=0), rtol=1e-6
    )


@pytest.mark.parametrize("size", [(8, 2), (8, 4), (6, 3)])
def test_additional_holders_never_worsen_conditioning(size):
    frame = frame_for(*size)
    enough = all_patterns(size[0])
    solved = mix(frame, enough[enough.sum(axis=1) >= size[1]].astype(float))
    assert solved.condition_p.max() <= worst(frame).condition + 1e-9
    assert solved.amplification_p.max() <= worst(frame).amplification + 1e-9


@given(st.integers(1, 16), st.data())
def test_any_sufficient_set_of_harmonic_columns_is_independent(columns, data):
    blocks = data.draw(st.integers(1, min(columns, 4)))
    frame = harmonic_frame(columns, blocks)
    np.testing.assert_allclose(np.linalg.norm(frame, axis=0), 1.0)
    assert mix(frame, just_enough(columns, blocks).astype(float)).full_p.all()


@pytest.mark.parametrize("size", range(1, 13))
def test_square_frames_are_orthogonal(size):
    assert worst(frame_for(size, size)).condition < 1.0 + 1e-6


def error_of_copies_that_differ(code, done, mismatch, rng):
    """Every client has a slightly different replica of each chunk update."""
    chunks, size = done.shape[1], 16 * code.blocks
    updates = rng.standard_normal((chunks, size))
    solution = code.solve(done)
    codewords = {}
    for w in solution.needed:
        own = updates + mismatch * rng.standard_normal(updates.shape)
        codewords[w] = codeword_of(solution, w, dict(enumerate(own)))
    total = updates.sum(axis=0)
    return np.linalg.norm(decode(solution, codewords, size) - total) / np.linalg.norm(total)


@pytest.mark.parametrize("mismatch", [1e-3, 1e-7])
def test_frames_tolerate_differing_replicas_better_than_gaussian(mismatch):
    placement = place(200, [1.0] * 200, 8)
    errors = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        done = np.zeros_like(placement.holds)
        for chunk in range(200):  # just enough replicas of every chunk
            done[rng.permutation(np.flatnonzero(placement.holds[:, chunk]))[:4], chunk] = True
        codes = FrameCode(placement, 4), GaussianCode(placement, 4, rng)
        errors.append([error_of_copies_that_differ(code, done, mismatch, rng) for code in codes])
    assert np.max(errors, axis=0)[0] <= 4.0 * mismatch
    assert np.median(errors, axis=0)[1] >= 20.0 * mismatch


def test_invalid_frames_are_refused():
    with pytest.raises(BadPlacement, match="5 blocks on 4 columns"):
        harmonic_frame(4, 5)
    with pytest.raises(BadPlacement, match="0 blocks on 4 columns"):
        frame_for(4, 0)
