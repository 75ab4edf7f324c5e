import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import TaskFailed
from fedgc.training.data import batch_rows, samples_of

CPU = torch.device("cpu")


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**32))
def test_batches_have_one_size_and_cover_whole_epochs(samples, batch_size, start):
    size = min(samples, batch_size)
    epochs = 3
    steps = -(-epochs * samples // size)
    batches = [batch_rows(samples, batch_size, step, start) for step in range(steps)]
    assert {len(rows) for rows in batches} == {size}
    stream = np.concatenate(batches).tolist()
    for epoch in range(epochs):
        assert sorted(stream[epoch * samples : (epoch + 1) * samples]) == list(range(samples))


def test_every_epoch_and_chunk_has_own_order():
    first, second, other = (
        batch_rows(50, 50, step, start).tolist() for step, start in ((0, 1), (1, 1), (0, 2))
    )
    assert first != second
    assert first != other


def test_tuple_may_hold_tensors_and_arrays():
    chunk = samples_of((torch.arange(6), np.arange(6) * 10), CPU)
    assert len(chunk) == 6
    assert [each.tolist() for each in chunk.batch(np.array([4, 1]))] == [[4, 1], [40, 10]]


def test_list_of_samples_is_dataset():
    chunk = samples_of([(torch.tensor(i), "word") for i in range(4)], CPU)
    numbers, words = chunk.batch(np.array([3, 0]))
    assert numbers.tolist() == [3, 0]
    assert list(words) == ["word", "word"]


@pytest.mark.parametrize("loaded", [None, 3, iter([1]), (), (torch.tensor(1.0),), ([1, 2], [3, 4])])
def test_invalid_data_is_refused(loaded):
    with pytest.raises(TaskFailed, match=r"load\(\) returned"):
        samples_of(loaded, CPU)
