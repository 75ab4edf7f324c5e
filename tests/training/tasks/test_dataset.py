"""Test `over`: every client cuts a dataset of any kind into the same chunks."""

import importlib.util
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from fedgc.config import RunConfig
from fedgc.errors import BadTask
from fedgc.messages import Work
from fedgc.training import CommonModel, new_engine
from fedgc.training.pace import Pace
from fedgc.training.tasks import over


def numbers(task):
    """The samples of every chunk as plain numbers."""
    return [
        [int(row[0]) for row in zip(*task.load(name), strict=True)]
        if isinstance(task.load(name), tuple)
        else [int(task.load(name)[row][0]) for row in range(len(task.load(name)))]
        for name in task.sizes()
    ]


def cut(dataset, chunks, seed=0):
    return over(dataset, RunConfig(chunks=chunks, seed=seed, work="coded"), model=torch.nn.Module, loss=max)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), st.integers(0, 9))
def test_every_sample_is_in_one_chunk_for_any_dataset_kind(sizes, seed):
    samples, chunks = sizes
    rows = torch.arange(samples)
    kinds = [(rows,), (rows.numpy(),), (rows, rows.float()), TensorDataset(rows)]
    found = [numbers(cut(kind, chunks, seed)) for kind in kinds]
    assert all(each == found[0] for each in found)
    assert Counter(n for chunk in found[0] for n in chunk) == Counter(range(samples))


def test_clients_cut_alike_and_other_seed_cuts_differently():
    rows = (torch.arange(50),)
    assert numbers(cut(rows, 5)) == numbers(cut(rows, 5))
    assert numbers(cut(rows, 5)) != numbers(cut(rows, 5, seed=1))


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        ((np.zeros(3), np.zeros(4)), r"arrays of \[3, 4\] rows"),
        (iter([1, 2]), "saw a list_iterator as dataset"),
        ((np.zeros(3),), r"setting data\.chunks: saw 5 for 3 samples, needed 1 to 3"),
        (
            (np.zeros(9), ["a"] * 9),
            "saw a list as part 2 of the dataset, needed a tensor or array of numbers",
        ),
        ((np.zeros(9), np.array(["a"] * 9)), "saw an array of <U1 as part 2 of the dataset"),
    ],
)
def test_undividable_dataset_is_refused_in_one_line(dataset, sentence):
    with pytest.raises(BadTask, match=sentence):
        cut(dataset, 5)


def test_chunk_of_other_run_is_refused():
    with pytest.raises(BadTask, match="saw chunk 'north'"):
        cut((np.zeros(5),), 5).load("north")


def trained(task, config, tmp_path):
    """The loss of each finished chunk, by an engine."""
    engine = new_engine(task, config, Pace(lambda: 0.0, lambda _: None), tmp_path)
    names = tuple((number, held.name) for number, held in enumerate(engine.holds()))
    engine.load(0, CommonModel(task, config).first())
    engine.handle(Work("me", 1, 0, 5, tuple(range(len(names))), names, seed=0, lease_s=60.0))
    said = []
    while not engine.idle:
        said += [event for event in [engine.step()] if event is not None]
    engine.close()
    return said


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="Hugging Face datasets is not there")
@pytest.mark.filterwarnings("ignore")  # of that package's own making
def test_hugging_face_dataset_trains_by_column_names(tmp_path):
    from datasets import Dataset

    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(60, 3)).astype(np.float32)
    rows = Dataset.from_dict({"inputs": inputs.tolist(), "truth": inputs.sum(axis=1).tolist()})
    config = RunConfig(chunks=3, batch_size=5, work="coded")
    task = over(
        rows,
        config,
        model=lambda: torch.nn.Linear(3, 1),
        loss=lambda model, batch: ((model(batch["inputs"]).squeeze(1) - batch["truth"]) ** 2).mean(),
    )
    said = trained(task, config, tmp_path)
    assert [type(each).__name__ for each in said] == ["Progress"] * 3
    assert sum(each.samples for each in said) == 60


class Rows:
    """A dataset with only the members that `over` needs."""

    def __init__(self, values, kind=None):
        self.values, self.kind = values, kind

    def __len__(self):
        return len(self.values)

    def __getitem__(self, row):
        assert self.kind == "torch"
        return {"x": torch.tensor(self.values[row])}

    def select(self, rows):
        return Rows([self.values[row] for row in rows], self.kind)

    def with_format(self, kind):
        return Rows(self.values, kind)


def test_selected_and_formatted_rows_are_named_tensors(tmp_path):
    config = RunConfig(chunks=2, batch_size=3, work="coded")
    task = over(
        Rows([float(n) for n in range(9)]),
        config,
        model=lambda: torch.nn.Linear(1, 1),
        loss=lambda model, batch: model(batch["x"].unsqueeze(1)).square().mean(),
    )
    assert [each.samples for each in trained(task, config, tmp_path)] == [5, 4]
