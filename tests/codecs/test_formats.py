import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.codewords import codeword_of, decode
from fedgc.codecs import EPSILON, Wire, pack, packed_bytes, shortest_wire, unpack
from fedgc.codes import FrameCode, RunningSum, adopt, amplification_limit, place
from fedgc.errors import BadSetting, BadVector


def there_and_back(numbers, wire, seed=0):
    return unpack(pack(numbers, wire, np.random.default_rng(seed)), wire, numbers.size)


@given(
    st.sampled_from(Wire),
    st.integers(0, 40) | st.integers(1020, 1030),
    st.integers(0, 99),
    st.floats(1e-6, 1e6),
)
def test_decoded_piece_is_within_one_quantization_step(wire, size, seed, scale):
    numbers = (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)
    packed = pack(numbers, wire, np.random.default_rng(seed))
    assert packed.size == packed_bytes(size, wire)
    back = unpack(packed, wire, size)
    step = {
        Wire.FLOAT32: 0.0,
        Wire.BF16: np.abs(numbers).max(initial=0) * 2.0**-8,
        Wire.INT8: np.abs(numbers).max(initial=0) / 127 * 1.001,
        Wire.INT4: np.abs(numbers).max(initial=0) / 7 * 1.001,
    }[wire]
    assert np.abs(back - numbers).max(initial=0.0) <= step


@pytest.mark.parametrize("wire", list(Wire))
def test_stated_error_is_error_of_normal_numbers(wire):
    numbers = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    error = np.linalg.norm(there_and_back(numbers, wire) - numbers) / np.linalg.norm(numbers)
    assert error <= EPSILON[wire] * 1.05
    assert error >= EPSILON[wire] * 0.9 or wire is Wire.FLOAT32  # kept as it is: its error is that of sums


@pytest.mark.parametrize(("wire", "levels"), [(Wire.INT8, 127), (Wire.INT4, 7)])
def test_stochastic_rounding_is_unbiased(wire, levels):
    numbers = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    rng = np.random.default_rng(1)
    draws = np.stack([unpack(pack(numbers, wire, rng), wire, 500) for _ in range(2000)])
    bias = draws.mean(axis=0) - numbers
    step = np.abs(numbers).max() / levels
    # a rounding has at most half a step of deviation; 5 standard errors in one of 500 are 1 in 3,000 runs
    assert np.abs(bias).max() < 5.0 * 0.5 * step / np.sqrt(2000)
    assert np.linalg.norm(draws[0] - numbers) > 10 * np.linalg.norm(bias)


def bf16_slowly(number):
    """The nearest 8-bit number; ties go to the even one."""
    bits = int(np.float32(number).view(np.uint32))
    low, rest = bits >> 16, bits & 0xFFFF
    return low + (rest > 0x8000 or (rest == 0x8000 and low & 1))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_bf16_rounds_to_nearest_even(numbers):
    packed = pack(np.array(numbers, np.float32), Wire.BF16, np.random.default_rng(0))
    assert packed.view("<u2").tolist() == [bf16_slowly(number) for number in numbers]


def test_nan_is_kept_by_bf16_and_refused_by_int8():
    odd = np.array([np.nan, np.inf, -np.inf], np.float32)
    odd_nan = np.array([0x7FFFFFFF], np.uint32).view(np.float32)
    back = there_and_back(np.concatenate([odd, odd_nan]), Wire.BF16)
    assert np.isnan(back[[0, 3]]).all()
    assert back[1:3].tolist() == [np.inf, -np.inf]
    with pytest.raises(BadVector, match="no int8 form"):
        there_and_back(odd, Wire.INT8)


@pytest.mark.parametrize("wire", [Wire.INT8, Wire.INT4])
def test_zeros_have_no_scale(wire):
    assert there_and_back(np.zeros(3000, np.float32), wire).tolist() == [0.0] * 3000


@given(st.lists(st.integers(-7, 7), min_size=1, max_size=9))
def test_whole_4_bit_levels_are_decoded_exactly(levels):
    numbers = np.array([*levels, 7], np.float32)
    assert there_and_back(numbers, Wire.INT4).tolist() == numbers.tolist()


@pytest.mark.parametrize("wire", [Wire.BF16, Wire.INT8])
def test_sum_error_is_wire_error_times_root_of_amplification(wire):
    rng = np.random.default_rng(0)
    placement = place(100, [1.0] * 100, 8)
    done = np.zeros_like(placement.holds)
    for chunk in range(100):
        done[rng.permutation(np.flatnonzero(placement.holds[:, chunk]))[:4], chunk] = True
    solution = FrameCode(placement, 4).solve(done)
    updates = rng.standard_normal((100, 4000)).astype(np.float32)
    plain = updates.sum(axis=0, dtype=np.float64)
    codewords = {
        w: there_and_back(codeword_of(solution, w, dict(enumerate(updates))), wire, w)
        for w in solution.needed
    }
    error = np.linalg.norm(decode(solution, codewords, 4000) - plain) / np.linalg.norm(plain)
    predicted = EPSILON[wire] * solution.amplification**0.5
    assert 0.7 * predicted < error < 1.3 * predicted
    assert shortest_wire(solution.amplification, 1.5 * error) in (wire, Wire.INT8)


def test_float32_sum_beyond_error_limit_is_refused():
    placement = adopt([{0}] * 40, 1)
    done = np.zeros_like(placement.holds)
    done[8:16] = True  # neighbours in a frame of 40 have the worst condition
    solution = FrameCode(placement, 8).solve(done)
    update = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    total = RunningSum(4000, 8, np.float32)
    for client in solution.needed:
        total.add(solution.column(client).tolist(), codeword_of(solution, client, {0: update}))
    error = np.linalg.norm(total.total() - update) / np.linalg.norm(update)
    assert error > 0.01
    assert solution.amplification > amplification_limit(0.01, EPSILON[Wire.FLOAT32])


def test_unpackable_input_is_refused():
    with pytest.raises(BadVector, match="int64"):
        pack(np.ones(3, int), Wire.BF16, np.random.default_rng(0))
    with pytest.raises(BadVector, match="6 bytes hold 3 numbers"):
        unpack(np.zeros(5, np.uint8), Wire.BF16, 3)
    with pytest.raises(BadSetting, match="float32 leaves"):
        shortest_wire(100.0, 1e-9)
