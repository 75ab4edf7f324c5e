"""Test the models that arrive in a session: whole ones, and changes of the last one."""

import numpy as np
import pytest

from fedgc.codecs import codec_of, make_codec
from fedgc.codecs.model_change import Changed, ChangeForm
from fedgc.errors import BadVector
from fedgc.large_vectors import Scratch
from fedgc.links.frames import StreamId
from fedgc.links.pieces import CHANGE
from fedgc.links.session.arrived_models import ArrivedModels

SIZE = 10
MODEL = np.arange(SIZE, dtype=np.float32)


def arrived(*streams: tuple[int, int], wire: str = "float32") -> ArrivedModels:
    """Return models of which these (version, attempt) have come, each change with ones."""
    models = ArrivedModels(ChangeForm(2, wire), Scratch())
    models.numbers = SIZE
    for version, attempt in streams:
        ones = np.ones(SIZE // 2, np.float32)
        data = make_codec(wire).encode(ones, np.random.default_rng(0)) if wire != "float32" else ones
        models.enter(StreamId("model", version, attempt), data if attempt == CHANGE else MODEL)
    models.release()
    return models


def test_changes_are_made_to_copy_of_last_model() -> None:
    models = arrived((3, 0))
    np.testing.assert_array_equal(models.take(3), MODEL)
    assert models.changed is None
    models.enter(StreamId("model", 4, CHANGE), np.ones(5, np.float32))
    models.release()
    np.testing.assert_array_equal(models.take(4), [0, 1, 2, 3, 4, 1, 1, 1, 1, 1])
    assert models.changed == Changed(3, (slice(5, 10),))
    np.testing.assert_array_equal(MODEL, np.arange(SIZE))
    assert models.take(4) is None


def test_difference_is_added_to_last_model() -> None:
    models = arrived((0, 0), (1, CHANGE), wire="int8")
    np.testing.assert_allclose(models.take(1), [1, 2, 3, 4, 5, 5, 6, 7, 8, 9], rtol=1e-6)


def test_difference_of_buffers_is_exact() -> None:
    models = arrived((1, 0), wire="int8")
    models.buffers = 2
    models.take(1)
    step = np.float32([1e-3, 2e-3, 3e-3, 4e8, -0.25])
    data = codec_of("int8", 2).encode(step, np.random.default_rng(0))
    models.enter(StreamId("model", 2, CHANGE), data)
    models.release()
    assert models.form(StreamId("model", 2, CHANGE)).largest == data.nbytes
    new = models.take(2)
    np.testing.assert_array_equal(new[8:], MODEL[8:] + step[3:])


def test_changes_without_work_between_them_are_both_made() -> None:
    models = arrived((0, 0))
    models.take(0)
    for version in (1, 2):
        models.enter(StreamId("model", version, CHANGE), np.full(5, version, np.float32))
    models.release()
    np.testing.assert_array_equal(models.take(2), [1, 1, 1, 1, 1, 2, 2, 2, 2, 2])
    assert models.changed == Changed(0, (slice(0, 5), slice(5, 10)))


def test_whole_model_replaces_earlier_changes() -> None:
    models = arrived((0, 0), (1, CHANGE), (5, 0))
    np.testing.assert_array_equal(models.take(5), MODEL)
    assert models.changed is None


@pytest.mark.parametrize("streams", [[(1, CHANGE)], [(0, 0), (2, CHANGE)]])
def test_change_without_model_before_it_is_refused(streams: list[tuple[int, int]]) -> None:
    with pytest.raises(BadVector, match="saw a change, needed the model before it"):
        arrived(*streams).take(streams[-1][0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_change_that_is_not_finite_is_refused(bad: float) -> None:
    models = arrived((0, 0))
    models.take(0)
    models.enter(StreamId("model", 1, CHANGE), np.float32([1, 2, 3, 4, bad]))
    models.release()
    with pytest.raises(BadVector, match="saw NaN or Inf"):
        models.take(1)
