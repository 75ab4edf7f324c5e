import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.errors import BadSetting, BadVector, NotRecoverable
from fedgc.secagg.keystream import BLOCK_WORDS, keystream
from fedgc.secagg.masked_vector import MaskedVector
from fedgc.secagg.quantizer import Quantizer, fits

RINGS = st.sampled_from([(2, 8), (4, 8), (8, 16), (12, 16), (9, 32), (20, 32), (22, 32)])


def rounded(quantizer, update, weight, chance):
    """The words of an update without masks."""
    return MaskedVector(quantizer, update, weight, (), chance)[:]


def slow_steps(quantizer, update, weight, chance):
    """One value at a time, in exact arithmetic but for the float32 product and its rounding."""
    fine = 65_536 if quantizer.bits <= 8 else 256
    scale = np.float32(fine * quantizer.top / quantizer.clip * weight / quantizer.w_max)
    raw = keystream(chance, update.size * (2 if fine > 256 else 1))
    numbers = np.frombuffer(raw, "<u2" if fine > 256 else "<u1")
    steps = []
    for value, number in zip(update, numbers, strict=True):
        near = np.float32(np.clip(value, -quantizer.clip, quantizer.clip)) * scale
        near = float(np.clip(near, -fine * quantizer.top, fine * quantizer.top))
        steps.append((round(near) + int(number)) // fine)
    return steps


@given(ring=RINGS, data=st.data())
@settings(max_examples=60)
def test_steps_equal_slow_reference(ring, data):
    quantizer = Quantizer(2.0, *ring, w_max=37)
    values = data.draw(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=20))
    weight, update = data.draw(st.integers(0, 37)), np.array(values, np.float32)
    words = rounded(quantizer, update, weight, bytes(32))
    signed = words[: update.size].view(f"<i{words.itemsize}").tolist()
    assert signed == slow_steps(quantizer, update, weight, bytes(32))


@given(ring=RINGS, weights=st.lists(st.integers(0, 5000), min_size=1, max_size=6), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_mean_is_within_stated_bound_and_weight_exact(ring, weights, seed):
    quantizer = Quantizer(0.5, *ring, w_max=5000)
    words = np.zeros(quantizer.words(30), f"<u{ring[1] // 8}")
    rng = np.random.default_rng(seed)
    updates = rng.uniform(-0.5, 0.5, (len(weights), 30)).astype(np.float32)
    for at, weight in enumerate(weights):
        words += rounded(quantizer, updates[at], weight, bytes([at]) * 32)
    total = sum(weights)
    if total == 0:
        with pytest.raises(NotRecoverable, match="no site did work"):
            quantizer.mean(words, len(weights))
        return
    mean, weight = quantizer.mean(words, len(weights))
    assert weight == total
    true = sum(w * u.astype(np.float64) for w, u in zip(weights, updates, strict=True)) / total
    assert np.abs(mean - true).max() <= quantizer.bound(len(weights), total)


@pytest.mark.parametrize(("bits", "ring"), [(4, 8), (8, 16), (12, 16), (20, 32), (22, 32)])
@pytest.mark.parametrize("at", [0.1, 0.3725, -0.5, -0.9])
def test_rounding_is_unbiased(bits, ring, at):
    """Within five deviations of the mean of a step's rounding, plus what the first rounding may shift."""
    quantizer = Quantizer(1.0, bits, ring, w_max=1)
    size = 400_000
    words = rounded(quantizer, np.full(size, at, np.float32), 1, b"bias" * 8)
    mean, _ = quantizer.mean(words, 1)
    step = quantizer.clip / quantizer.top
    fine = 65_536 if bits <= 8 else 256
    error = abs(float(mean.astype(np.float64).mean()) - float(np.float32(at)))
    assert error < 5 * 0.5 * step / np.sqrt(size) + step / (2 * fine) + 2**-23


@pytest.mark.parametrize("bits", [20, 21, 22])
def test_clip_is_never_rounded_above_maximum(bits):
    """In float32, clip times its own scale may come out a little above the top step."""
    for clip in np.linspace(0.1, 3, 200):
        quantizer = Quantizer(float(clip), bits, 32, w_max=1)
        edges = np.repeat(np.float32([clip, -clip]), 50)
        words = rounded(quantizer, edges, 1, bytes(32))
        assert np.abs(words[:100].view(np.int32)).max() == quantizer.top


def test_block_borders_do_not_change_result():
    quantizer = Quantizer(1.0, 20, 32, w_max=1)
    update = np.linspace(-1, 1, BLOCK_WORDS + 9, dtype=np.float32)
    words = rounded(quantizer, update, 1, bytes(32))
    mean, _ = quantizer.mean(words, 1)
    assert np.abs(mean - update).max() <= quantizer.bound(1, 1)


def test_weight_takes_minimal_number_of_words():
    assert Quantizer(1.0, 20, 32, w_max=2**19 - 1).digits == 1
    assert Quantizer(1.0, 20, 32, w_max=2**19).digits == 2
    assert Quantizer(1.0, 4, 8, w_max=1000).digits == 4


@given(members=st.integers(1, 300), bits=st.integers(2, 22), ring=st.sampled_from([8, 16, 32]))
def test_value_within_bounds_does_not_wrap(members, bits, ring):
    top = 2 ** (bits - 1) - 1
    assert fits(members, bits, ring) == (members * top <= 2 ** (ring - 1) - 1)


@pytest.mark.parametrize(
    "pinned",
    [(0.0, 8, 16, 1), (float("nan"), 8, 16, 1), (1.0, 1, 16, 1), (1.0, 23, 32, 1), (1.0, 8, 24, 1),
     (1.0, 8, 16, 0), (1.0, 8, 16, 2**32)],
)  # fmt: skip
def test_invalid_settings_are_refused(pinned):
    with pytest.raises(BadSetting):
        Quantizer(*pinned)


def test_words_of_other_size_or_type_are_refused():
    quantizer = Quantizer(1.0, 20, 32, w_max=1)
    for words in (np.zeros(1, np.uint32), np.zeros(6, np.uint16)):
        with pytest.raises(BadVector, match="sum: saw"):
            quantizer.mean(words, 1)
