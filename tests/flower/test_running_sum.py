"""The running sum beside the sum that one would write down."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadVector
from fedgc.flower import running_sum
from fedgc.flower.running_sum import RunningSum


def plain_sum(size: int, parts: list[tuple[tuple[float, ...], np.ndarray]]) -> np.ndarray:
    """Every number of the sum by itself, in float64: slow and obvious."""
    total = np.zeros(size)
    for weights, codeword in parts:
        length = -(-size // len(weights))
        for place in range(size):
            total[place] += weights[place // length] * codeword[place % length]
    return total


@given(
    size=st.integers(1, 50),
    blocks=st.integers(1, 6),
    seeds=st.lists(st.integers(0, 99), max_size=5),
    tile=st.integers(1, 20),
)
def test_it_is_the_sum_one_would_write_down(size: int, blocks: int, seeds: list[int], tile: int) -> None:
    parts = []
    for seed in seeds:
        chance = np.random.default_rng(seed)
        codeword = chance.standard_normal(-(-size // blocks)).astype(np.float32)
        parts.append((tuple(chance.standard_normal(blocks).tolist()), codeword))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_sum, "TILE", tile)
        total = RunningSum(size)
        for weights, codeword in parts:
            total.add(weights, codeword)
    np.testing.assert_allclose(total.mean(3), plain_sum(size, parts) / 3, rtol=1e-5, atol=1e-5)


def test_after_clear_it_begins_anew() -> None:
    total = RunningSum(4)
    total.add((1.0,), np.ones(4, np.float32))
    total.clear()
    assert not total.mean(1).any()


def test_a_codeword_of_another_length_is_refused_and_leaves_the_sum() -> None:
    total = RunningSum(4)
    with pytest.raises(BadVector, match=r"needed \(2,\)"):
        total.add((1.0, 1.0), np.ones(4, np.float32))
    assert not total.mean(1).any()
