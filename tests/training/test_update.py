import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.codewords import encode
from fedgc.errors import TaskFailed
from fedgc.messages import SKETCH_NUMBERS, Mix
from fedgc.training.randomness import draws
from fedgc.training.sketch import Sketch
from fedgc.training.update import BLOCK, measure, mixed, update_of

SIZES = st.one_of(st.integers(0, 300), st.integers(BLOCK - 3, BLOCK + 3))


def pair(size, seed=0):
    generator = np.random.default_rng(seed)
    return tuple(generator.normal(size=size).astype(np.float32) for _ in range(2))


def plain_sketch(vector, start):
    """Number by number: bit i of the draws is the sign of x_i, i mod 16 its sum."""
    sums = [0.0] * SKETCH_NUMBERS
    words = draws(start, 0, -(-len(vector) // 64)).tolist()
    for i, value in enumerate(vector.tolist()):
        byte = words[i // 64] >> (i // 8 % 8 * 8) & 255
        sums[i % SKETCH_NUMBERS] += -value if byte >> (7 - i % 8) & 1 else value
    return sums


@given(SIZES, st.integers(1, 100), st.integers(0, 2**64 - 1))
@settings(max_examples=30)
def test_blockwise_norm_equals_norm_of_whole(size, samples, start):
    begin, end = pair(size)
    found = measure(begin, end, samples, start)
    step = (begin - end).astype(float)  # float32 is what travels
    assert found.squared_norm == pytest.approx(step @ step)
    assert found.sketch == pytest.approx(plain_sketch(step, start), abs=1e-9)


def test_squared_sketch_is_unbiased():
    begin, end = pair(5000)
    found = [measure(begin, end, 1, start) for start in range(200)]
    ratios = [np.square(each.sketch).sum() / each.squared_norm for each in found]
    spread = np.sqrt(2 / SKETCH_NUMBERS / 200)
    assert abs(np.mean(ratios) - 1) < 5 * spread


@given(st.integers(1, 400))
def test_sketch_may_be_computed_in_pieces(size):
    vector = pair(size)[0].astype(float)
    whole, pieces = Sketch(3), Sketch(3)
    whole.add(vector)
    for first in range(0, size, 64):
        pieces.add(vector[first : first + 64])
    assert pieces.numbers() == pytest.approx(whole.numbers())


def test_update_is_float32_and_leaves_inputs_unchanged():
    begin, end = pair(10)
    before = begin.copy(), end.copy()
    update = update_of(begin, end, 7)
    assert update.dtype == np.float32
    assert np.allclose(update, 7 * (begin - end))
    assert np.array_equal(before, (begin, end))


@pytest.mark.parametrize(("value", "samples"), [(np.nan, 1), (np.inf, 1), (-3e38, 2)])
def test_non_finite_or_misshapen_update_is_named_with_position(value, samples):
    begin, end = pair(BLOCK + 10)
    end[BLOCK + 4] = value
    with pytest.raises(TaskFailed, match=f"at {BLOCK + 4}, needed finite"):
        measure(begin, end, samples, 0)


@given(SIZES.filter(bool), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=30)
def test_blockwise_codeword_equals_codeword_of_whole_updates(size, chunks, blocks):
    begin = pair(size)[0]
    ends = [(pair(size, seed=chunk)[1], 1 + chunk) for chunk in range(chunks)]
    rows = tuple(tuple(0.5 + chunk + block for block in range(blocks)) for chunk in range(chunks))
    updates = {chunk: update_of(begin, end, samples) for chunk, (end, samples) in enumerate(ends)}
    twin = encode(range(chunks), rows, updates)
    np.testing.assert_allclose(
        mixed(begin, ends, Mix(tuple(range(chunks)), rows)), twin, rtol=1e-4, atol=1e-4
    )
