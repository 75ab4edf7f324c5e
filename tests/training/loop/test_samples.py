"""Test how samples are counted over the ranks of a script."""

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from fedgc.errors import BadTask
from fedgc.training.loop.ranks import started_as
from fedgc.training.loop.samples import Counted, samples_of, total_samples

DATA = TensorDataset(torch.zeros(10, 1))


class Stream(IterableDataset):
    """Has batches and no length."""

    def __iter__(self):
        return iter(torch.zeros(10, 1))


class CountedStream(Stream):
    """Knows its length."""

    def __len__(self):
        return 10


GIVEN, DIVIDED, OWN = Counted


def test_loader_with_distributed_sampler_divides_its_dataset():
    sampler = DistributedSampler(DATA, num_replicas=2, rank=1)
    assert samples_of(DataLoader(DATA, 2, sampler=sampler)) == (10, DIVIDED)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, 2),
        DataLoader(DATA, 2, shuffle=True),
        DataLoader(CountedStream(), 2),
        DataLoader(DATA, 2, sampler=WeightedRandomSampler([1.0] * 10, 4)),
        DataLoader(DATA, 2, sampler=RandomSampler(DATA, num_samples=4)),
    ],
)
def test_other_loader_has_data_of_its_own(loader):
    assert samples_of(loader) == (10, OWN)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, 2, sampler=SubsetRandomSampler([0, 3, 5])),
        DataLoader(DATA, batch_sampler=BatchSampler(SubsetRandomSampler([0, 3, 5]), 2, drop_last=False)),
        DataLoader(DATA, 2, sampler=[0, 3, 5]),
        DataLoader(Subset(DATA, [0, 3, 5]), 2),
    ],
)
def test_samples_of_subset_are_counted(loader):
    """The usual ways to split one dataset between clients."""
    assert samples_of(loader) == (3, OWN)


@pytest.mark.parametrize("loader", [DataLoader(Stream(), 2), [torch.zeros(4, 1)] * 3])
def test_loader_without_known_dataset_needs_samples(loader):
    name = type(loader).__name__
    needed = rf"saw a {name} without a dataset of known length, needed fedgc.join\(samples=...\)"
    with pytest.raises(BadTask, match=needed):
        samples_of(loader)


@pytest.mark.parametrize("loader", [[], DataLoader(TensorDataset(torch.zeros(0, 1)), 2)])
def test_loader_of_no_samples_is_refused(loader):
    with pytest.raises(BadTask, match="saw a loader without a batch, needed at least one"):
        samples_of(loader)


def test_samples_of_subset_that_accelerate_divides_are_counted():
    loader = DataLoader(DATA, 2, sampler=SubsetRandomSampler([0, 3, 5]))
    assert samples_of(prepare_data_loader(loader, num_processes=2, process_index=0)) == (3, DIVIDED)


def test_sampler_for_one_process_divides_nothing():
    sampler = DistributedSampler(DATA, num_replicas=1, rank=0)
    assert samples_of(DataLoader(DATA, 2, sampler=sampler)) == (10, OWN)


def test_batch_sampler_of_accelerate_divides_its_dataset():
    batches = torch.utils.data.BatchSampler(range(10), 2, drop_last=False)
    batches.num_processes = 2
    assert samples_of(DataLoader(DATA, batch_sampler=batches)) == (10, DIVIDED)


@pytest.mark.parametrize(
    ("counts", "total"),
    [
        ([(10, OWN)], 10),
        ([(10, OWN), (7, OWN)], 17),
        ([(10, OWN), (10, OWN)], 20),
        ([(10, DIVIDED)] * 2, 10),
        ([(25, GIVEN)] * 3, 25),
    ],
)
def test_total_counts_divided_data_once_and_own_data_together(counts, total):
    assert total_samples(counts) == total


@pytest.mark.parametrize(
    "counts", [[(10, GIVEN), (20, GIVEN)], [(10, DIVIDED), (9, DIVIDED)], [(10, DIVIDED), (10, OWN)]]
)
def test_ranks_that_disagree_are_told_their_counts(counts):
    with pytest.raises(BadTask, match=f"count {counts[0][0]}, {counts[1][0]} samples"):
        total_samples(counts)


def test_launcher_tells_rank_and_allocation_does_not():
    assert started_as({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0"}) == (1, 2)
    assert started_as({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}) == (3, 4)
    assert started_as({"SLURM_NTASKS": "4"}) == (0, 1)
