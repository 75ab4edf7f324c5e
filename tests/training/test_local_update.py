"""Test joined chunks, low-precision updates, and the common step."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codecs import Codec, make_codec
from fedgc.config import RunConfig
from fedgc.errors import BadVector, TaskFailed
from fedgc.messages import Work
from fedgc.training.data import concatenated, samples_of
from fedgc.training.local_update import chunk_names, chunk_numbers, trajectory_name, with_error_feedback
from fedgc.training.shared_momentum import lead_of, squared_distance

CPU = torch.device("cpu")


def columns(first: int, count: int):
    return samples_of((torch.arange(first, first + count), torch.ones(count)), CPU)


def test_tensor_chunks_are_joined_in_order():
    whole = concatenated([columns(0, 3), columns(10, 2)])
    assert len(whole) == 5
    values, ones = whole.batch(np.array([4, 0, 3]))
    assert values.tolist() == [11, 0, 10]
    assert ones.tolist() == [1.0] * 3


def test_dataset_chunks_are_joined_in_order():
    whole = concatenated([samples_of([1, 2, 3], CPU), samples_of([7, 8], CPU)])
    assert whole.batch(np.array([4, 0])).tolist() == [8, 1]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (samples_of([1, 2], CPU), "needed one kind"),
        (samples_of((torch.ones(2),), CPU), "different shapes"),
        (samples_of((torch.ones(2, 3), torch.ones(2)), CPU), "different shapes"),
    ],
)
def test_incompatible_arguments_are_named(other, says):
    with pytest.raises(TaskFailed, match=says):
        concatenated([columns(0, 3), other])


def test_title_lists_chunks_with_any_names():
    of = trajectory_name({4: 'a "quoted"\nname', 1: "plain"})
    assert chunk_numbers(of) == (1, 4)
    assert chunk_names(of) == ("plain", 'a "quoted"\nname')


@given(
    seed=st.integers(0, 99),
    size=st.integers(1, 40),
    count=st.integers(1, 6),
    wire=st.sampled_from(["float32", "bf16", "int8", "int4", "top-k share=0.3, block=7, decay=1"]),
)
def test_sent_updates_plus_rounding_error_equal_true_sum(seed, size, count, wire):
    rng, form = np.random.default_rng(seed), make_codec(wire)
    sent, true, rest = np.zeros(size), np.zeros(size), None
    for number in range(count):
        update, stamp = rng.normal(size=size).astype(np.float32), (number, 0, "me")
        true += update
        data, rest = with_error_feedback(update, form, stamp, rest)
        sent += form.decode(data, size)
    np.testing.assert_allclose(sent + rest.after, true, atol=1e-4)


@given(seed=st.integers(0, 99), size=st.integers(1, 300), led=st.floats(0, 20))
def test_own_part_equals_slow_reference(seed, size, led):
    rng = np.random.default_rng(seed)
    start, now, step = (rng.normal(size=size).astype(np.float32) for _ in range(3))
    plain = float(np.sum((start.astype(np.float64) - now - led * step) ** 2))
    assert squared_distance(start, now, step, led) == pytest.approx(plain, rel=1e-6, abs=1e-9)


def work(before: int, common_steps: float) -> Work:
    return Work(
        "a", 3, 2, 8, (), (), 0, 9.0, kind="local", first_step=4, common_steps=common_steps, before=before
    )


def test_lead_is_common_step_at_full_rate():
    before, model = np.float32([3, 1, 9]), np.float32([1, 0, 5])
    config = RunConfig(shared_momentum=0.25, schedule="cosine", rounds=2, local_steps=4)
    lead = lead_of(config, {1: before, 2: model}, work(before=1, common_steps=4.0), parameters=2)
    share = np.mean([config.rate_share(step) for step in range(4)])
    np.testing.assert_allclose(lead, 0.75 * np.array([2, 1]) / 4 / share, rtol=1e-6)


@pytest.mark.parametrize(
    ("alpha", "models", "steps"), [(1.0, (1, 2), 4.0), (0.5, (2,), 4.0), (0.5, (1, 2), 0.0)]
)
def test_lead_needs_momentum_steps_and_previous_model(alpha, models, steps):
    known = {version: np.ones(2, np.float32) * version for version in models}
    assert lead_of(RunConfig(shared_momentum=alpha), known, work(1, steps), 2) is None


def test_lead_of_late_client_is_mean_step_since_its_earlier_model():
    config, models = RunConfig(shared_momentum=0.25), {0: np.float32([9, 1]), 2: np.float32([1, 0])}
    lead = lead_of(config, models, work(before=0, common_steps=8.0), parameters=2)
    np.testing.assert_allclose(lead, 0.75 * np.array([8, 1]) / 8, rtol=1e-6)


class Cut(Codec):
    """Sends the numbers as float16, in which large ones are infinite."""

    def largest(self, size):
        return 2 * size

    def encode(self, vector, rng):
        with np.errstate(over="ignore"):
            return vector.astype("<f2").view(np.uint8)

    def decode(self, data, size):
        return data.view("<f2").astype(np.float32)


def test_infinite_numbers_of_codec_are_not_kept_for_later():
    _, rest = with_error_feedback(np.array([1.0001, 2.0], np.float32), Cut(), (1, 0, "me"), None)
    with pytest.raises(BadVector, match=r"^decode returned NaN or Inf, needed finite numbers$"):
        with_error_feedback(np.array([1e9, 2.0], np.float32), Cut(), (2, 0, "me"), rest)
    data, rest = with_error_feedback(np.array([1.0, 2.0], np.float32), Cut(), (3, 0, "me"), rest)
    assert np.isfinite(Cut().decode(data, 2)).all()
    assert np.isfinite(rest.after).all()
