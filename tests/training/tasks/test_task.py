import numpy as np
import pytest
import torch

from fedgc.errors import BadTask
from fedgc.training.tasks import Task


def a_task(**changed):
    return Task(**({"model": list, "chunks": {"a": 3, "b": 1}, "load": str, "loss": max} | changed))


def test_task_lists_chunks_from_mapping_or_function():
    assert dict(a_task().sizes()) == {"a": 3, "b": 1}
    assert dict(a_task(chunks=lambda: {"c": 2}).sizes()) == {"c": 2}


def test_count_may_be_any_integer_type():
    sizes = a_task(chunks={"a": np.int64(3)}).sizes()
    assert dict(sizes) == {"a": 3}
    assert type(sizes["a"]) is int


def test_machine_may_hold_no_chunk():
    assert dict(a_task(chunks={}).sizes()) == {}


@pytest.mark.parametrize("field", ["model", "load", "loss", "evaluate", "optimizer"])
def test_non_callable_is_named(field):
    with pytest.raises(BadTask, match=f"{field} is 7, needed a function"):
        a_task(**{field: 7})


def test_object_in_place_of_function_is_named_by_its_type():
    made = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    needed = r"optimizer is of the type Adam, needed a function of \(parameters, learning rate\) or None"
    with pytest.raises(BadTask, match=needed):
        a_task(optimizer=made)


def test_module_in_place_of_function_is_named_by_its_type():
    with pytest.raises(BadTask, match="model is of the type Linear, needed a function that makes the module"):
        a_task(model=torch.nn.Linear(2, 1))
    assert a_task(model=torch.nn.Identity).model is torch.nn.Identity


@pytest.mark.parametrize(
    ("chunks", "seen"),
    [
        (["a"], "chunks is"),
        ({"a": 0}, "chunk 'a' has 0 samples"),
        ({"a": 1.5}, "chunk 'a' has 1.5 samples"),
        ({"a": True}, "chunk 'a' has True samples"),
        ({"": 1}, "a chunk is called ''"),
        ({3: 1}, "a chunk is called 3"),
    ],
)
def test_invalid_chunks_are_refused_with_task(chunks, seen):
    with pytest.raises(BadTask, match=seen):
        a_task(chunks=chunks)


def test_chunks_from_function_are_checked_on_call():
    with pytest.raises(BadTask, match=r"chunks\(\) returned 7"):
        a_task(chunks=lambda: 7).sizes()
    with pytest.raises(BadTask, match="chunk 'a' has -1"):
        a_task(chunks=lambda: {"a": -1}).sizes()


def test_failing_chunk_function_is_reported_in_one_line():
    def raises():
        raise FileNotFoundError("no such folder")

    with pytest.raises(BadTask, match=r"chunks\(\) raised FileNotFoundError: no such folder"):
        a_task(chunks=raises).sizes()
