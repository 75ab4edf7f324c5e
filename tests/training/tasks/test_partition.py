import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, BadTask
from fedgc.training.tasks import named, over
from fedgc.training.tasks.partition import partition

WAYS = ("iid", "dirichlet:0.5", "quantity:0.5", "shards:2", "owner")
LABELS = np.arange(4000) % 10


def divided(how: str, chunks: int, labels=LABELS, seed: int = 0):
    settings = RunConfig(chunks=chunks, partition=how, seed=seed)
    return partition(len(labels), settings, lambda role, name: labels if role == "label" else labels // 2)


def is_a_partition(chunks, samples):
    return sorted(np.concatenate(chunks).tolist()) == list(range(samples)) and all(map(len, chunks))


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=120), st.data(), st.sampled_from(WAYS), st.integers(0, 9)
)
def test_partition_assigns_every_sample_or_is_refused(labels, data, how, seed):
    count = data.draw(st.integers(1, len(labels)))
    try:
        chunks = divided(how, count, np.array(labels), seed)
    except BadTask:
        assert how != "iid"
        return
    assert len(chunks) == count
    assert is_a_partition(chunks, len(labels))


def test_iid_chunks_differ_by_one_sample_at_most():
    assert {len(chunk) for chunk in divided("iid", 3, np.arange(10))} == {3, 4}


@pytest.mark.parametrize("how", WAYS[:4])
def test_partition_depends_only_on_seed(how):
    first, again, other = (divided(how, 4, seed=seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


def skew(chunks):
    """Mean over chunks of the share of the commonest label."""
    return np.mean([np.bincount(LABELS[chunk]).max() / len(chunk) for chunk in chunks])


def test_small_alpha_and_few_shards_skew_labels_and_others_do_not():
    assert min(skew(divided(how, 8)) for how in ("dirichlet:0.1", "shards:1")) > 0.4
    assert max(skew(divided(how, 8)) for how in ("dirichlet:1000", "quantity:0.5", "iid")) < 0.25


def test_small_alpha_makes_sizes_uneven():
    assert max(map(len, divided("quantity:0.5", 8))) > 2 * min(map(len, divided("quantity:0.5", 8)))


def test_owner_keeps_all_samples_together():
    chunks = divided("owner", 3)
    assert sorted(owner for chunk in chunks for owner in set((LABELS[chunk] // 2).tolist())) == [*range(5)]


@pytest.mark.parametrize(
    ("how", "chunks", "needed"),
    [
        ("iid", 4001, r"setting data\.chunks: saw 4001 for 4000 samples"),
        ("dirichlet:0.001", 200, r"partition dirichlet:0.001: saw \d+ of 200 clients or chunks without"),
        ("owner", 6, "partition owner: saw 1 of 6 clients or chunks without samples"),
        ("shards:1001", 4, "saw 4004 shards of 4000 samples"),
    ],
)
def test_partition_that_leaves_client_empty_is_refused(how, chunks, needed):
    with pytest.raises(BadTask, match=needed):
        divided(how, chunks)


@pytest.mark.parametrize(
    "how", ["", "even", "iid:1", "dirichlet", "dirichlet:0", "quantity:nan", "quantity:1:x", "shards:0.5"]
)
def test_unknown_partition_is_refused(how):
    with pytest.raises(BadSetting, match=r"setting data.partition: saw .*, needed iid, owner, dirichlet"):
        RunConfig(partition=how)


class Pictures:
    """A dataset of torch, as torchvision's are."""

    targets = LABELS[:100].tolist()

    def __len__(self):
        return 100

    def __getitem__(self, at):
        return at, self.targets[at]


class Pairs(Pictures):
    targets = property()

    def __getitem__(self, at):
        return at, int(LABELS[at])


class Columns(Pictures):
    """A dataset with the interface of Hugging Face's."""

    column_names = ("label", "writer")

    def with_format(self, kind):
        return {"label": LABELS[:100], "writer": np.arange(100) % 4}

    def select(self, rows):
        return self


ARRAYS = (np.zeros((100, 2)), LABELS[:100], np.arange(100) % 4)


@pytest.mark.parametrize(
    ("dataset", "how"),
    [
        *((each, "shards:1") for each in (ARRAYS, TensorDataset(*map(torch.tensor, ARRAYS)))),
        *((each, "shards:1") for each in (Pictures(), Pairs(), Columns())),
        *((each, how) for each, how in ((ARRAYS, "owner"), (ARRAYS, "owner:2"), (Columns(), "owner:writer"))),
    ],
)
def test_labels_and_owners_of_dataset_are_found(dataset, how):
    task = over(dataset, RunConfig(chunks=4, partition=how), model=list, loss=max)
    assert sum(task.sizes().values()) == 100


@pytest.mark.parametrize(
    ("dataset", "how"),
    [(ARRAYS[:1], "dirichlet:1"), (ARRAYS[:2], "owner"), (Pictures(), "owner:writer"), (Columns(), "owner")],
)
def test_dataset_without_column_is_refused(dataset, how):
    with pytest.raises(BadTask, match="for every sample in the dataset"):
        over(dataset, RunConfig(chunks=4, partition=how), model=list, loss=max)


def test_shipped_task_is_divided_by_label():
    task = named("digits", RunConfig(chunks=10, partition="shards:1"))
    labels = [np.unique(task.load(chunk)[1]) for chunk in task.sizes()]
    assert max(map(len, labels)) <= 3
    with pytest.raises(BadTask, match="task digits has labels and no other column"):
        named("digits", RunConfig(chunks=10, partition="owner"))


def test_dataset_without_samples_is_named():
    with pytest.raises(
        BadTask, match="task: saw a dataset without samples, needed at least 1 for each chunk"
    ):
        divided("iid", 2, np.zeros(0, dtype=np.int64))
