from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedgc.config import RunConfig
from fedgc.messages import Work
from fedgc.training import new_engine
from fedgc.training.pace import Pace
from fedgc.training.tasks import Task

SIZES = {f"c{i}": 9 + 4 * i for i in range(5)}  # chunks of different sizes, some below a batch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


def load(name):
    chunk = int(name[1:])
    generator = torch.Generator().manual_seed(chunk)
    inputs = torch.randn(SIZES[name], 6, generator=generator)
    return inputs, (inputs.sum(dim=1) > chunk / 5).long()


def network():
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    )


def loss(module, batch):
    inputs, labels = batch
    return nn.functional.cross_entropy(module(inputs), labels)


@pytest.fixture
def small():
    """A task whose result shows any difference in batches, dropout, normalisation or optimizer state."""
    return Task(
        model=network,
        chunks=SIZES,
        load=load,
        loss=loss,
        optimizer=partial(torch.optim.SGD, momentum=0.9),
    )


class Clock:
    """A clock that advances by one second per reading, and by rest times."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now

    def rest(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


class Bench:
    """Makes engines and drives them."""

    def __init__(self, spill_dir):
        self.spill_dir = spill_dir
        self.engines = []

    def engine(self, task, config=None, *, version=0, vector=None, clock=None, pace_s=0.0, files=None):
        clock = clock or Clock()
        config = config or RunConfig(batch_size=10, work="coded")
        made = new_engine(task, config, Pace(clock, clock.rest, pace_s), self.spill_dir, files=files)
        self.engines.append(made)
        made.load(version, self.vector(made.size) if vector is None else vector)
        return made

    @staticmethod
    def vector(size, seed=0):
        return np.random.default_rng(seed).uniform(0.1, 0.5, size).astype(np.float32)

    @staticmethod
    def work(order, *, target=3, round=1, version=0, seed=5, lockstep=False, names=None):
        names = names or tuple((i, f"c{i}") for i in range(len(SIZES)))
        return Work("me", round, version, target, tuple(order), names, seed, 60.0, lockstep)

    @staticmethod
    def drain(engine):
        """Step until no work is left; return the events."""
        said = []
        while not engine.idle:
            event = engine.step()
            if event is not None:
                said.append(event)
        return said


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    for engine in made.engines:
        engine.close()
    assert list(tmp_path.iterdir()) == []
