"""Test training of simulated clients: the same numbers for any number of processes, and any model."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedgc.errors import BadSetting, EdgeFailed
from fedgc.sim import workers
from fedgc.sim.clock import working
from fedgc.sim.fleet import Fleet
from fedgc.sim.training import Job, _Training, train
from fedgc.training.client_file import ClientFile, Extent
from fedgc.training.tasks import Task, over
from tests.sim.uneven_clients import CLIENTS, data, loss, settings, uneven


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def make() -> Task:
    made = over(data(), settings(), model=network, loss=loss)
    return replace(made, private=("4.*",))


def job(**changes) -> Job:
    return Job(make(), settings(**changes), uneven(), make=make, owned=True)


def rows(trained):
    return [
        (point.row.outcome, point.row.loss, [(each.steps, each.counted) for each in point.row.clients])
        for point in trained.points
    ]


@pytest.fixture(scope="module")
def alone():
    return train(job(codec="int8"))


@pytest.mark.contract
@pytest.mark.slow
def test_numbers_do_not_depend_on_number_of_processes(alone):
    assert any(0 < each.steps < 4 for point in alone.points for each in point.row.clients), "partial work"
    several = train(replace(job(codec="int8"), workers=2))
    assert np.array_equal(several.model, alone.model)
    assert rows(several) == rows(alone)


@pytest.mark.contract
@pytest.mark.slow
def test_late_clients_are_led_alike_in_processes():
    up_s = [0.1] * (CLIENTS - 1) + [5.0]
    scenario = (working([[1.0]] * CLIENTS, up_s=up_s, control_s=0.01),) * 12
    config = settings(late_updates="count", gate_period=1, quorum=0.5, rounds=12)
    late = replace(job(), config=config, scenario=scenario)
    one, several = (train(replace(late, workers=count)) for count in (1, 2))
    assert any("earlier round" in point.row.reason for point in one.points)
    assert np.array_equal(several.model, one.model)
    assert rows(several) == rows(one)


@pytest.mark.contract
@pytest.mark.slow
def test_numbers_do_not_depend_on_killed_processes(alone, monkeypatch):
    killed = []

    class Killing(workers.Workers):
        def order(self, stretch):
            if len(killed) < stretch.work.round // 2:
                killed.append(next(iter(self._pool._processes)))
                os.kill(killed[-1], signal.SIGKILL)
            return super().order(stretch)

    monkeypatch.setattr("fedgc.sim.fleet.Workers", Killing)
    several = train(replace(job(codec="int8"), workers=2))
    assert len(killed) == 2
    assert np.array_equal(several.model, alone.model)
    assert rows(several) == rows(alone)


def test_client_keeps_its_private_layers(tmp_path):
    done = job()
    fleet = Fleet(done, tmp_path, 0)
    before = fleet._workers._trainer._states._own
    train(replace(done, engines=lambda *_: fleet))
    kept = {client: each.kept for client, each in fleet._trajectories.items()}
    assert set(before) == {"4.weight", "4.bias"}
    assert all(kept.values())
    places = {each.offset for each in kept.values()}
    assert len(places) == CLIENTS
    assert (tmp_path / "clients").stat().st_size <= 4 * CLIENTS * max(each.room for each in kept.values())


def test_threads_do_not_depend_on_number_of_processes(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _Training(replace(job(), workers=2), tmp_path, print, print)._fleet.close()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_model_that_cannot_be_written_ends_training_in_one_line(tmp_path):
    fleet = Fleet(replace(job(), workers=2), tmp_path, 0)
    (tmp_path / "model-3").symlink_to("/dev/full")
    with pytest.raises(EdgeFailed, match="training: a model cannot be written: "):
        fleet.load(3, np.zeros(5000, np.float32))
    fleet.close()


def test_models_are_written_for_other_processes_alone(tmp_path):
    for count in (1, 2):
        fleet = Fleet(replace(job(), workers=count), tmp_path, 0)
        fleet.load(count, np.zeros(8, np.float32))
        fleet.close()
    assert [each.name for each in tmp_path.glob("model-*")] == ["model-2"]


def test_states_that_cannot_be_written_or_read_are_one_line(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(EdgeFailed, match="the states of clients cannot be written: No space"):
        ClientFile(tmp_path / "full").write(Extent(0, 4096), b"state")
    with pytest.raises(EdgeFailed, match="the states of clients cannot be read: "):
        ClientFile(tmp_path / "short").read(Extent(4096, 4096, 100))
    unopened = r"the states of clients cannot be opened: .*clients: No such file or directory"
    with pytest.raises(EdgeFailed, match=unopened):
        ClientFile(tmp_path / "missing" / "clients")


def lost_file():
    raise FileNotFoundError("no file ward.csv")


@pytest.mark.contract
@pytest.mark.slow
def test_task_that_no_process_can_make_is_named():
    with pytest.raises(EdgeFailed, match="cannot be made in a process: FileNotFoundError: no file"):
        train(replace(job(), make=lost_file, workers=2))


def test_failure_of_task_names_client_and_round():
    def broken(module, batch):
        raise ValueError("no batch")

    failing = replace(job(), task=replace(make(), loss=broken))
    with pytest.raises(EdgeFailed, match=r"training: client \d, round 1: ValueError: no batch"):
        train(failing)


def test_processes_need_function_that_makes_task():
    with pytest.raises(BadSetting, match="needed a function that makes the task"):
        Job(make(), settings(), uneven(), workers=2)
