import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import harmonic_frame
from fedgc.codes.mixing import all_patterns, mix, packed


def mixed_slowly(frame, weight_c):
    """One pattern by the pseudo-inverse of the weighted columns that are there."""
    rows = np.zeros(frame.T.shape)
    there = np.flatnonzero(weight_c)
    root = np.sqrt(weight_c[there])
    rows[there] = root[:, None] * np.linalg.pinv(frame[:, there] * root, rcond=1e-9)
    return rows


@given(st.integers(1, 7), st.data())
def test_every_pattern_equals_pseudo_inverse(columns, data):
    blocks = data.draw(st.integers(1, columns))
    frame = harmonic_frame(columns, blocks)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    weights = all_patterns(columns) * rng.uniform(0.5, 2.0, columns)
    found = mix(frame, weights)
    for pattern, weight_c in enumerate(weights):
        enough = np.count_nonzero(weight_c) >= blocks
        assert found.full_p[pattern] == enough
        assert np.isfinite(found.condition_p[pattern]) == enough
        slow = mixed_slowly(frame, weight_c)
        np.testing.assert_allclose(
            found.rows_pcb[pattern], slow, rtol=0, atol=1e-9 * max(1.0, np.abs(slow).max())
        )
        noise = (slow**2).sum() / blocks  # columns have unit length
        assert abs(found.amplification_p[pattern] - noise) <= 1e-7 * max(1.0, noise)


def test_residuals_are_at_rounding_level():
    rng = np.random.default_rng(0)
    left, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    right, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    frame = left @ np.diag([1.0, 0.1, 1e-3, 1e-6]) @ right
    found = mix(frame, np.ones((1, 4)))
    assert found.full_p[0]
    assert abs(found.condition_p[0] / 1e6 - 1.0) < 1e-3
    assert np.abs(frame @ found.rows_pcb[0] - np.eye(4)).max() < 1e-9


def test_singular_set_is_not_full():
    frame = np.array([[1.0, 1.0], [1.0, 1.0]])
    found = mix(frame, np.ones((1, 2)))
    assert not found.full_p[0]
    np.testing.assert_allclose(frame @ found.rows_pcb[0], np.full((2, 2), 0.5))


def test_batched_frames_equal_single_frames():
    rng = np.random.default_rng(0)
    frames = rng.standard_normal((5, 2, 3))
    together = mix(frames, np.ones((5, 3)))
    for index, frame in enumerate(frames):
        alone = mix(frame, np.ones((1, 3)))
        np.testing.assert_allclose(together.rows_pcb[index], alone.rows_pcb[0])


@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 99))
def test_packed_bytes_distinguish_patterns(columns, chunks, seed):
    finished = np.random.default_rng(seed).random((columns, chunks)) < 0.5
    bytes_n = packed(finished)
    for first in range(chunks):
        for second in range(chunks):
            same = bool((finished[:, first] == finished[:, second]).all())
            assert bool((bytes_n[first] == bytes_n[second]).all()) == same
