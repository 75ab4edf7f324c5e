"""Test runs of a stack of clients against runs with one client after the other: both do the same steps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.messages import Reveal, Work
from fedgc.sim.clock import working
from fedgc.sim.fleet import Fleet
from fedgc.sim.training import Job, train
from fedgc.training import CommonModel, Vector, stacked
from fedgc.training.model_stack import ModelStack
from tests.six_chunks import TASK


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
def test_run_of_stack_equals_run_of_clients_up_to_rounding(changes, optimizer):
    task, settings = replace(TASK, optimizer=optimizer), config(**changes)
    plain, stacked = (train(Job(task, settings, storm(8), stack=each)) for each in (1, 3))
    assert stacked.model == pytest.approx(plain.model, abs=1e-4 if "codec" in changes else 1e-5)
    assert [point.row.outcome for point in stacked.points] == [point.row.outcome for point in plain.points]
    for one, other in zip(stacked.points, plain.points, strict=True):
        assert [each.counted for each in one.row.clients] == [each.counted for each in other.row.clients]
        assert one.row.loss == pytest.approx(other.row.loss, abs=1e-5)
        assert (one.seconds, one.sent) == (other.seconds, other.sent)


def test_server_that_ignores_partial_steps_gets_none():
    job = Job(TASK, config(), storm(8), stack=3)
    kept, dropped = (train(replace(job, partial=each)).points[-1].row for each in (True, False))
    assert [each.counted for each in kept.clients] == [9, 9, 4], "they end the step that they are in"
    assert [each.counted for each in dropped.clients] == [8, 8, 0]


def steps_of_stacks(monkeypatch, job: Job) -> int:
    """Train; return how many steps of stacks were done."""
    done = []
    step = ModelStack.step
    monkeypatch.setattr(ModelStack, "step", lambda *given: done.append(step(*given)))
    train(job)
    return len(done)


@pytest.mark.parametrize("optimizer", [None, adam])
def test_stopped_client_is_not_trained_again(monkeypatch, optimizer):
    """Two end their four steps first, and the third is stopped after the first: all are in one stack."""
    settings = config(rounds=4, gate_period=1, lockstep="on", shared_momentum="off")
    scenario = (working([[1.0], [1.0], [2.9]], control_s=0.01),) * 4
    job = Job(replace(TASK, optimizer=optimizer), settings, scenario, stack=3)
    assert steps_of_stacks(monkeypatch, job) == 4 * settings.local_steps


def updates_of_other_models(job: Job, folder: Path) -> list[Vector]:
    """The updates of three clients that begin from models and steps of their own."""
    fleet = Fleet(job, folder, 0)
    model, sizes = CommonModel(TASK, job.config).first(), enumerate(TASK.sizes())
    for w, (number, name) in enumerate([*sizes][:3]):
        fleet.load(w, model + np.float32(0.1 * w))
        names = ((number, name),)
        work = Work(f"client {w}", w, w, 4, (number,), names, 0, 1.0, kind="local", first_step=3 * w)
        fleet.begin(work)
    fleet.forecast = lambda _: [("client 0", 4), ("client 1", 4)]
    updates = []
    for w in reversed(range(3)):
        fleet.reached(f"client {w}", 4)
        updates.append(fleet.sent(Reveal(f"client {w}", w, 0, "local", None)))
    return updates


def test_clients_of_different_common_models_are_in_one_stack(monkeypatch, tmp_path):
    job, begun = Job(TASK, config(shared_momentum="off"), storm(8)), []
    begin = ModelStack.__init__

    def spied(stack, trainer, starts):
        begun.append(len(starts))
        begin(stack, trainer, starts)

    monkeypatch.setattr(ModelStack, "__init__", spied)
    plain = updates_of_other_models(job, tmp_path)
    stacked = updates_of_other_models(replace(job, stack=3), tmp_path)
    assert begun == [3]
    for one, other in zip(plain, stacked, strict=True):
        assert other == pytest.approx(one, abs=1e-6)
        assert np.abs(one).max() > 0.01


def update_of_stopped_client(job: Job, folder: Path) -> Vector:
    """The update of a client that has two steps to go, and is stopped after one; another one does six."""
    fleet, (number, name) = Fleet(job, folder, 0), next(iter(enumerate(TASK.sizes())))
    fleet.load(0, CommonModel(TASK, job.config).first())
    for client in ("client 0", "client 1"):
        fleet.begin(Work(client, 1, 0, 6, (number,), ((number, name),), 0, 1.0, kind="local"))
    fleet.reached("client 1", 4)
    fleet.sent(Reveal("client 1", 1, 0, "local", None))
    fleet.forecast = lambda _: [("client 1", 6)]
    fleet.reached("client 0", 6)
    fleet.reached("client 1", 5)
    return fleet.sent(Reveal("client 1", 1, 0, "local", None))


@pytest.mark.parametrize("limit", [2**power for power in range(6, 12)])
def test_stack_is_kept_from_first_step_on_or_not(monkeypatch, tmp_path, limit):
    """It gets smaller as clients end their steps, and may be small enough to be kept only then."""
    monkeypatch.setattr(stacked, "KEPT_BYTES", limit)
    job = Job(TASK, config(shared_momentum="off", local_steps=6), storm(8))
    plain, found = (update_of_stopped_client(replace(job, stack=each), tmp_path) for each in (1, 3))
    assert found == pytest.approx(plain, abs=1e-6)


def test_coded_work_takes_no_engines():
    with pytest.raises(BadSetting, match="saw engines for coded work"):
        Job(TASK, RunConfig(rounds=1, work="coded"), storm(1), engines=lambda *_: None)


def test_too_few_samples_for_data_injection_are_refused():
    changes = {"placement": "cyclic", "replicas": 1, "inject_clients": 0.7, "inject_share": 0.3}
    with pytest.raises(EdgeFailed, match=r"stack: saw \d+ samples of client \d, needed 64 for a batch"):
        train(Job(TASK, config(batch_size=64, **changes), storm(8), stack=3))
