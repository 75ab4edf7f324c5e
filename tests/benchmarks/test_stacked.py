"""Test a stack of models against one engine per client: both take the same steps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.stacked import stacked as stacked_fleet
from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.sim.clock import working
from fedgc.sim.training import Job, train
from tests.six_chunks import TASK


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)


def adam(parameters, rate):
    return torch.optim.Adam(parameters, lr=rate)


def config(**changes) -> RunConfig:
    values = {
        "work": "local", "rounds": 8, "local_steps": 4, "gate": "every", "gate_period": 2, "quorum": 0.6,
        "batch_size": 4, "learning_rate": 0.3, "min_clients": 3, "device": "cpu", "patience": 0.0,
        "max_gap": 0,
    }  # fmt: skip
    return RunConfig(**{"work": "coded", **values, **changes})


def storm(rounds: int):
    """The third client is slow; in the third round it dies, loses its work and returns later."""
    calm = working([[1.0], [1.1], [2.7]], control_s=0.01)
    gone = replace(
        calm, dies_s_w=np.array([np.inf, np.inf, 0.5]), returns_s_w=np.array([np.inf, np.inf, 0.75])
    )
    return tuple(gone if at == 2 else calm for at in range(rounds))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shared_momentum": "off", "schedule": "cosine", "warmup_steps": 3},
        {"gate": "relative-change", "gate_options": "delta=0.2, window=3"},
        {"gate": "drift", "gate_budget": 0.4, "max_gap": 4},
        {"codec": "int8"},
        {"placement": "scattered", "replicas": 2},
        {"quorum": 1.0, "patience": 0.5},
        {"lockstep": "on"},
        {"placement": "cyclic", "replicas": 1, "inject_clients": 0.7, "inject_share": 0.3, "batch_size": 6},
        {"placement": "scattered", "replicas": 2, "inject_clients": 0.3, "inject_share": 1.0},
    ],
)
@pytest.mark.parametrize("optimizer", [None, adam])
def test_stack_equals_engine_up_to_rounding(changes, optimizer):
    task, settings = replace(TASK, optimizer=optimizer), config(**changes)
    plain, stacked = (train(Job(task, settings, storm(8), engines=each)) for each in (None, stacked_fleet))
    assert stacked.model == pytest.approx(plain.model, abs=1e-4 if "codec" in changes else 1e-5)
    assert [point.row.outcome for point in stacked.points] == [point.row.outcome for point in plain.points]
    for one, other in zip(stacked.points, plain.points, strict=True):
        assert [each.counted for each in one.row.clients] == [each.counted for each in other.row.clients]
        assert one.row.loss == pytest.approx(other.row.loss, abs=1e-5)
        assert (one.seconds, one.sent) == (other.seconds, other.sent)


def test_server_that_ignores_partial_steps_gets_none():
    job = Job(TASK, config(), storm(8), engines=stacked_fleet)
    kept, dropped = (train(replace(job, partial=each)).points[-1].row for each in (True, False))
    assert [each.counted for each in kept.clients] == [8, 8, 3]
    assert [each.counted for each in dropped.clients] == [8, 8, 0]


@pytest.mark.parametrize(
    ("model", "seen"),
    [
        (lambda: nn.Sequential(nn.Linear(5, 2), nn.Dropout()), "Dropout"),
        (lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 2)), "running statistics"),
    ],
)
def test_models_unsuitable_for_stack_are_refused(model, seen):
    with pytest.raises(BadSetting, match=f"stack: saw {seen}"):
        train(Job(replace(TASK, model=model), config(), storm(8), engines=stacked_fleet))


def test_coded_work_has_no_stack():
    with pytest.raises(BadSetting, match="saw engines for coded work"):
        Job(TASK, RunConfig(rounds=1, work="coded"), storm(1), engines=stacked_fleet)


def test_too_few_samples_for_batch_are_refused():
    with pytest.raises(BadSetting, match="needed 64 for a batch"):
        train(Job(TASK, config(batch_size=64), storm(8), engines=stacked_fleet))
