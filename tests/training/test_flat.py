import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedgc.errors import BadTask, BadVector
from fedgc.training import FlatModel
from fedgc.training.flat import check_parts


def normalized():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_vector_holds_ordered_parameters_then_float_buffers():
    module = normalized()
    flat = FlatModel(module)
    norm = module[1]
    expected = [*module.parameters(), norm.running_mean, norm.running_var]
    read = flat.read()
    assert flat.parameters == 3 * 4 + 4 + 4 + 4 + 4 * 2 + 2
    assert flat.size == read.size == flat.parameters + 8
    assert read.dtype == np.float32
    assert np.array_equal(read, torch.cat([each.detach().flatten() for each in expected]).numpy())


def test_written_vector_is_read_back_and_used_by_module():
    one, other = FlatModel(normalized()), FlatModel(normalized())
    other.write(one.read())
    assert np.array_equal(other.read(), one.read())
    inputs = torch.randn(5, 3)
    assert torch.equal(one.module.eval()(inputs), other.module.eval()(inputs))


@given(first=st.integers(0, 40), last=st.integers(0, 40))
def test_view_reads_any_part_of_vector(first: int, last: int):
    flat = FlatModel(normalized())
    np.testing.assert_array_equal(flat.view()[first:last], flat.read()[first:last])


def test_view_is_of_tensors_as_they_are():
    flat = FlatModel(nn.Linear(2, 1))
    view = flat.view()
    flat.write(np.arange(3, dtype=np.float32))
    assert (view.size, view[:].tolist(), view[1:2].tolist()) == (3, [0, 1, 2], [1])


def test_view_of_half_precision_has_float32_copies():
    flat = FlatModel(nn.Linear(2, 1).to(torch.bfloat16))
    flat.write(np.float32([1.001, 2.001, 3.001]))
    np.testing.assert_array_equal(flat.view()[:], np.float32([1.001, 2.001, 3.001]))


@pytest.mark.parametrize(("at", "size"), [(70_000, 100_000), (0, 99_999)])
def test_parts_are_checked(at: int, size: int):
    vector = np.zeros(100_000, np.float32)
    check_parts(vector, 100_000)
    vector[at] = np.nan
    with pytest.raises(BadVector, match=r"not finite|needed 99999"):
        check_parts(vector, size)


def test_vectors_are_copied_on_read_and_write():
    flat = FlatModel(nn.Linear(2, 1))
    vector = np.ones(3, np.float32)
    flat.write(vector)
    vector[:] = 5
    flat.read()[:] = 7
    assert flat.read().tolist() == [1, 1, 1]


def test_read_only_vector_can_be_read():
    flat = FlatModel(nn.Linear(2, 1))
    flat.write(np.frombuffer(np.float32([1, 2, 3]).tobytes(), np.float32))
    assert flat.read().tolist() == [1, 2, 3]


def test_tied_weights_count_once_and_frozen_weights_do_not():
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 1))
    module[1].weight = module[0].weight
    module[2].requires_grad_(requires_grad=False)
    flat = FlatModel(module)
    assert flat.size == flat.parameters == 4


def test_local_buffers_can_be_restored():
    module = normalized()
    module.register_buffer("table", torch.zeros(2), persistent=False)
    flat = FlatModel(module)
    assert flat.size == flat.parameters + 8
    before = flat.read_unsent()
    module(torch.randn(5, 3))
    module.table.add_(1)
    assert module[1].num_batches_tracked == 1
    flat.write_unsent(before)
    assert module[1].num_batches_tracked == 0
    assert module.table.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("vector", "seen"),
    [
        (np.zeros(4, np.float32), r"float32 of shape \(4,\), needed float32 of shape \(3,\)"),
        (np.zeros((3, 1), np.float32), r"shape \(3, 1\)"),
        (np.zeros(3), "saw float64"),
        (np.float32([0, np.nan, np.inf]), "2 of 3 numbers not finite, the first nan at 1"),
        ([0.0, 0.0, 0.0], "saw list"),
    ],
)
def test_vector_of_other_form_is_refused_and_changes_nothing(vector, seen):
    flat = FlatModel(nn.Linear(2, 1))
    before = flat.read()
    with pytest.raises(BadVector, match=seen):
        flat.write(vector)
    assert np.array_equal(flat.read(), before)


def with_edges() -> nn.Module:
    module = nn.Linear(2, 1)
    module.register_buffer("edges", torch.eye(2).to_sparse())
    return module


@pytest.mark.parametrize(
    ("module", "seen"),
    [
        (nn.ReLU(), "no trainable parameter"),
        (nn.Linear(2, 1).double(), "weight of the model is torch.float64, needed torch.float32"),
        (nn.LazyLinear(2), "weight of the model has no shape yet"),
        (
            with_edges(),
            "saw edges of the model as torch.sparse_coo, needed a dense tensor, or register_buffer",
        ),
        ("module", "a str, needed a torch module"),
    ],
)
def test_unsupported_model_is_refused(module, seen):
    with pytest.raises(BadTask, match=seen):
        FlatModel(module)


@pytest.mark.parametrize("private", [["2.*"], ["2.weight"]])
def test_pattern_for_one_name_of_tied_weights_is_refused(private: list[str]):
    """The tensor would be exchanged under its other name."""
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    module[2].weight = module[0].weight
    with pytest.raises(BadTask, match=r"saw a pattern for 2\.weight, which is tied to 0\.weight"):
        FlatModel(module, private)
    assert next(iter(FlatModel(module, [*private, "0.weight"]).private)) == "0.weight"


def test_sparse_buffer_may_be_private():
    assert list(FlatModel(with_edges(), private=["edges"]).private) == ["edges"]
