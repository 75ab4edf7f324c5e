"""Test the digest of a shared chunk: equal for equal data, different for other data, and cheap."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedgc.config import RunConfig
from fedgc.messages import LONGEST_DIGEST, UNREAD
from fedgc.training import Engine, new_engine
from fedgc.training.digest import content_digest
from fedgc.training.pace import Pace
from fedgc.training.tasks import Task, over

ROWS = 40
DATA = (np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3), np.arange(ROWS))


class Noisy(torch.utils.data.Dataset[object]):
    """Items with a random transform, as datasets of images have."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, at: int) -> dict[str, object]:
        return {"x": torch.rand(2) + at, "name": f"item {at}"}


def task(load: object, **changes: object) -> Task:
    given = {"model": partial(nn.Linear, 3, 1), "chunks": {"c": ROWS}, "load": load, "loss": max}
    return Task(**{**given, "may_move": True, **changes})


def digest(data: object) -> str:
    return content_digest(task(lambda _: data), "c", ROWS)


def test_same_data_has_same_digest_in_any_form():
    tensors = tuple(torch.from_numpy(each) for each in DATA)
    assert digest(DATA) == digest(tensors) == digest(tuple(each.copy() for each in DATA))
    assert len(digest(DATA)) == LONGEST_DIGEST


@pytest.mark.parametrize(
    "other",
    [
        (DATA[0] + 1, DATA[1]),
        (DATA[0][::-1].copy(), DATA[1][::-1].copy()),
        (DATA[0].astype(np.float64), DATA[1]),
        (DATA[0],),
        (DATA[0].reshape(ROWS, 1, 3), DATA[1]),
    ],
)
def test_other_values_order_type_or_shape_change_digest(other: tuple[np.ndarray, ...]):
    assert digest(other) != digest(DATA)


def test_names_and_sizes_are_part_of_digest():
    same = task(lambda _: DATA)
    assert content_digest(same, "c", ROWS) != content_digest(same, "d", ROWS)


def test_random_transforms_are_reproducible():
    assert digest(Noisy()) == digest(Noisy()) != UNREAD


def test_bf16_data_has_digest():
    assert digest((torch.ones(ROWS, 2, dtype=torch.bfloat16),)) != UNREAD


@pytest.mark.parametrize("loaded", [None, (), (DATA[0], DATA[1][:3])])
def test_unreadable_chunk_has_no_digest(loaded: object):
    assert digest(loaded) == UNREAD


def engine(of: Task, folder: Path) -> Engine:
    return new_engine(of, RunConfig(work="coded"), Pace(float, lambda _: None), folder)


def test_client_announces_digests_only_of_shared_data(tmp_path: Path):
    private, shared = (engine(task(lambda _: DATA, may_move=moves), tmp_path) for moves in (False, True))
    assert [held.digest for held in private.holds()] == [""]
    assert [held.digest for held in shared.holds()] == [digest(DATA)]
    assert shared.holds() == shared.holds()


def test_single_dataset_task_reads_only_compared_rows():
    read = []

    class Counted(Noisy):
        def __getitem__(self, at: int) -> dict[str, object]:
            read.append(at)
            return super().__getitem__(at)

    made = over(Counted(), RunConfig(chunks=2, work="coded"), model=partial(nn.Linear, 2, 1), loss=max)
    digests = [content_digest(made, name, samples) for name, samples in made.sizes().items()]
    assert len(set(digests)) == 2
    assert UNREAD not in digests
    assert len(read) == 16


def test_peek_and_load_give_equal_digest():
    whole = over(DATA, RunConfig(chunks=2, work="coded"), model=partial(nn.Linear, 3, 1), loss=max)
    loaded = task(whole.load, chunks=whole.sizes())
    for name, samples in whole.sizes().items():
        assert content_digest(whole, name, samples) == content_digest(loaded, name, samples) != UNREAD
