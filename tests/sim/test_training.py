"""Test training under simulated time: exact sums under any stragglers, and times of the simulation."""

import numpy as np
import pytest

from benchmarks.bound import fluid_s
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.messages import Mix, Work
from fedgc.sim.clock import MODELS, working
from fedgc.sim.training import Job, train
from fedgc.training import CommonModel, new_engine
from fedgc.training.pace import Pace
from fedgc.training.tasks import Task
from tests.six_chunks import SIZES, TASK, load


def config(**changes) -> RunConfig:
    values = {
        "rounds": 4,
        "local_steps": 2,
        "batch_size": 4,
        "learning_rate": 0.3,
        "replicas": 3,
        "min_clients": 4,
    }
    return RunConfig(**{"work": "coded", **values, "blocks": 1, "device": "cpu", **changes})


def scenario(rounds=4, seed=0, clients=4):
    return MODELS["bimodal"](clients, rounds, np.random.default_rng(seed))


def one_round_by_hand(settings: RunConfig, folder) -> np.ndarray:
    """Slow reference: one client trains all chunks and sends their sum."""
    common = CommonModel(TASK, settings)
    engine = new_engine(TASK, settings, Pace(float, lambda _: None), folder)
    engine.load(0, common.first())
    names = tuple(enumerate(SIZES))
    engine.handle(Work("me", 1, 0, settings.round_steps, tuple(range(6)), names, settings.seed, 60.0))
    while not engine.idle:
        engine.step()
    total = engine.codeword(Mix(tuple(range(6)), ((1.0,),) * 6))
    return common.first() - total / sum(SIZES.values())


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_step_uses_whole_sum_under_any_stragglers(tmp_path, blocks):
    settings = config(rounds=1, blocks=blocks)
    expected = one_round_by_hand(settings, tmp_path)
    for seed in range(3):
        trained = train(Job(TASK, settings, scenario(1, seed)))
        assert trained.points[0].row.outcome == "synced"
        assert trained.model == pytest.approx(expected, abs=1e-5)


def test_time_is_simulated_and_accuracy_is_real():
    trained = train(Job(TASK, config(rounds=8), scenario(8)))
    seconds = [point.seconds for point in trained.points]
    assert seconds == sorted(seconds)
    least = [fluid_s(each, 4.0) for each in scenario(8)]
    assert all(
        point.row.working_s >= bound - 1e-9 for point, bound in zip(trained.points, least, strict=True)
    )
    reached = [point.metrics["accuracy"] for point in trained.points]
    assert reached[-1] > 0.85 > 0.5
    assert trained.points[-1].sent >= 8


def test_slower_machines_change_only_time():
    quick, slow = (train(Job(TASK, config(), (working([[pace]] * 4),) * 4)) for pace in (1.0, 7.0))
    assert (quick.model == slow.model).all()
    assert [point.seconds for point in slow.points] == pytest.approx(
        [7 * point.seconds for point in quick.points]
    )


def test_chunk_cost_follows_its_samples():
    alone = train(Job(TASK, config(rounds=1, replicas=1, min_clients=1), (working([[2.0]]),)))
    assert alone.points[0].row.working_s == pytest.approx(2.0)


def test_skipped_rounds_continue_from_current_model():
    trained = train(Job(TASK, config(gate_period=2), scenario()))
    assert [point.row.outcome for point in trained.points] == ["skipped", "synced"] * 2
    assert trained.points[0].sent == 0


def test_privacy_of_records_is_refused():
    """Simulated clients add no noise in their steps."""
    protected = config(work="local", gate="every", privacy_unit="record", privacy_noise=1.0)
    with pytest.raises(BadSetting, match=r"privacy.unit: saw record, which is not simulated"):
        Job(TASK, protected, scenario())


def test_files_of_killed_simulation_are_removed(tmp_path):
    (tmp_path / "fedgc-simulation-killed").mkdir()
    (tmp_path / "fedgc-simulation-killed" / "states").write_bytes(bytes(9))
    train(Job(TASK, config(rounds=1), scenario(1)), within=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_short_scenario_and_failing_task_end_training():
    with pytest.raises(BadSetting, match="saw 3 rounds of scenario, needed 4"):
        Job(TASK, config(), scenario(3))

    def broken(module, batch):
        raise ValueError("no such luck")

    with pytest.raises(EdgeFailed, match="no such luck"):
        train(Job(Task(model=TASK.model, chunks=SIZES, load=load, loss=broken), config(), scenario()))
