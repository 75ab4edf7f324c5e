"""Test local work under simulated time against plain loops: averages, steps and losses."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedgc.codecs import make_codec, share_of
from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.sim.clock import NEVER, Line, working
from fedgc.sim.training import Job, Trained, train
from fedgc.training import CommonModel, ServerOptimizer
from fedgc.training.data import batch_rows
from fedgc.training.randomness import key
from fedgc.training.tasks import Task, named
from tests.six_chunks import SIZES, TASK, load

SHARES = {"client 0": ("c0", "c1"), "client 1": ("c2", "c3"), "client 2": ("c4", "c5")}
BATCH = 4


def config(**changes) -> RunConfig:
    values = {
        "work": "local", "rounds": 6, "local_steps": 3, "gate": "every", "quorum": 1.0, "batch_size": BATCH,
        "learning_rate": 0.3, "min_clients": 3, "shared_momentum": "off", "device": "cpu", "max_gap": 0,
        "aggregator": "weighted-mean",
    }  # fmt: skip
    return RunConfig(**{"work": "coded", **values, **changes})


def trained(settings: RunConfig, paces=(1.0, 1.0, 1.0), task: Task = TASK) -> Trained:
    scenario = (working([[pace] for pace in paces]),) * settings.rounds
    return train(Job(task, settings, scenario))


def outcomes(of: Trained) -> list[str]:
    return [point.row.outcome for point in of.points]


def gradient(settings: RunConfig, model: np.ndarray, client: str, step: int) -> np.ndarray:
    """The plain gradient of a client's batch of this step of the run."""
    inputs, labels = (torch.cat(parts) for parts in zip(*map(load, SHARES[client]), strict=True))
    rows = batch_rows(len(labels), BATCH, step, key(settings.seed, client, "order"))
    weight = torch.tensor(model[:10].reshape(2, 5), requires_grad=True)
    bias = torch.tensor(model[10:], requires_grad=True)
    loss = nn.functional.cross_entropy(inputs[rows] @ weight.T + bias, labels[rows])
    return np.concatenate([each.numpy().reshape(-1) for each in torch.autograd.grad(loss, (weight, bias))])


def by_hand(settings: RunConfig, gaps: list[int]) -> np.ndarray:
    """Slow reference: clients train alone, then models are averaged; FedCM for alpha below 1."""
    model = CommonModel(TASK, settings).first()
    samples = {client: sum(SIZES[name] for name in names) for client, names in SHARES.items()}
    common, begun = np.zeros_like(model), 0
    for gap in gaps:
        ends = []
        for client in SHARES:
            own = model.copy()
            for step in range(begun, begun + gap):
                rate = settings.learning_rate * settings.rate_share(step)
                own -= rate * (
                    settings.alpha * gradient(settings, own, client, step) + (1 - settings.alpha) * common
                )
            ends.append(own)
        before, model = model, np.average(ends, axis=0, weights=list(samples.values())).astype(np.float32)
        rates = [settings.learning_rate * settings.rate_share(step) for step in range(begun, begun + gap)]
        common, begun = (before - model) / sum(rates), begun + gap
    return model


def test_relative_change_with_threshold_0_is_bulk_synchronous():
    settings = config(gate="relative-change", gate_options="delta=0", local_steps=1, rounds=12)
    done = trained(settings)
    assert outcomes(done) == ["synced"] * 12
    assert done.model == pytest.approx(by_hand(settings, [1] * 12), abs=1e-6)


def test_relative_change_with_infinite_threshold_never_syncs():
    settings = config(gate="relative-change", gate_options="delta=inf")
    done = trained(settings)
    assert outcomes(done) == ["skipped"] * 5 + ["synced"]
    assert done.points[-2].sent == 0
    assert done.model == pytest.approx(by_hand(settings, [18]), abs=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_shared_momentum_is_fedcm_for_sgd_under_any_schedule(schedule):
    settings = config(shared_momentum=0.3, schedule=schedule, gate_period=2, warmup_steps=2)
    done = trained(settings)
    assert outcomes(done) == ["skipped", "synced"] * 3
    assert done.model == pytest.approx(by_hand(settings, [6, 6, 6]), abs=1e-5)


def test_steps_of_slow_client_count_and_it_is_not_awaited():
    settings = config(quorum=0.6, patience=0.0, local_steps=8)
    done = trained(settings, (1.0, 1.0, 4.0))
    assert [[client.counted for client in point.row.clients] for point in done.points] == [[8, 8, 2]] * 6
    assert done.points[-1].seconds == pytest.approx(6.0)
    waited = trained(config(local_steps=8), (1.0, 1.0, 4.0))
    assert waited.points[-1].seconds == pytest.approx(24.0)


def test_straggler_continues_through_skipped_rounds():
    done = trained(config(quorum=0.6, patience=0.0, local_steps=8, gate_period=3), (1.0, 1.0, 4.0))
    assert [[client.counted for client in point.row.clients] for point in done.points[2::3]] == [
        [24, 24, 6]
    ] * 2
    assert [point.row.discarded for point in done.points] == [0] * 6
    assert sum(client.steps for point in done.points for client in point.row.clients) == 2 * (24 + 24 + 6)


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({"lockstep": "on"}, [8, 8, 8]),
        ({"max_gap": 2}, [16, 16, 8]),
        ({"max_gap": 4}, [32, 32, 8]),
        ({"max_gap": 0}, [32, 32, 8]),
    ],
)
@pytest.mark.parametrize("stack", [1, 3])
def test_clients_run_ahead_of_verdict_up_to_longest_gap(changes, counted, stack):
    settings = config(quorum=1.0, local_steps=8, rounds=4, **changes)
    scenario = (working([[1.0], [1.0], [4.0]]),) * 4
    done = train(Job(TASK, settings, scenario, stack=stack))
    assert [[client.counted for client in point.row.clients] for point in done.points] == [counted] * 4
    assert done.points[-1].seconds == pytest.approx(16.0), "and nobody waits for it"
    assert done.points[0].row.clients[2].busy_s == pytest.approx(4.0)


def test_client_ahead_after_skipped_round_is_at_next_target():
    settings = config(quorum=1.0, local_steps=8, rounds=4, gate_period=2)
    scenario = (working([[1.0], [1.0], [1.5]]),) * 4
    done = train(Job(TASK, settings, scenario))
    assert outcomes(done) == ["skipped", "synced"] * 2
    assert [point.seconds for point in done.points] == pytest.approx([1.5, 3.0, 4.5, 6.0])
    assert [[client.counted for client in point.row.clients] for point in done.points[1::2]] == [
        [24, 24, 16]
    ] * 2


def test_client_without_state_restarts_with_no_steps():
    settings = config(quorum=0.6, patience=0.0, local_steps=8, gate_period=2, rounds=4)
    calm = working([[1.0], [1.0], [1.0]])
    storm = replace(
        calm, dies_s_w=np.array([np.inf, np.inf, 0.5]), returns_s_w=np.array([np.inf, np.inf, 0.75])
    )
    done = train(Job(TASK, settings, (calm, storm, calm, calm)))
    assert [[client.counted for client in point.row.clients] for point in done.points[1::2]] == [
        [16, 16, 2],
        [16, 16, 16],
    ]


def test_low_precision_reaches_similar_model():
    plain = trained(config(rounds=20))
    for wire in ("int8", "int4"):
        short = trained(config(rounds=20, codec=wire))
        assert short.points[-1].sent == pytest.approx(
            plain.points[-1].sent * share_of(wire, plain.model.size)
        )
        assert np.linalg.norm(short.model - plain.model) < 0.02 * np.linalg.norm(plain.model)
        assert (short.model != plain.model).any()


@pytest.mark.parametrize("wire", ["int4", "top-k"])
def test_bytes_of_codec_are_those_of_model_with_float32_buffers(wire):
    task = replace(TASK, model=lambda: nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2)))
    settings, parameters, buffers = config(rounds=2, codec=wire, download_codec="int8"), 16, 4
    last, whole = trained(settings, task=task).points[-1], 4 * (parameters + buffers)
    up, change = (make_codec(each).expected(parameters) + 4 * buffers for each in (wire, "int8"))
    assert last.sent * whole == pytest.approx(3 * 2 * up)
    assert last.down * whole == pytest.approx(3 * (whole + change))


def test_figures_are_shown_in_rounds_that_evaluate():
    done = trained(config(rounds=5, evaluate_every=2))
    assert [bool(point.metrics) for point in done.points] == [False, True, False, True, True], (
        "and in the last"
    )


def test_average_of_schedule_free_server_is_evaluated(monkeypatch):
    servers, stepped = [], []

    class Spied(ServerOptimizer):
        def apply(self, *given):
            servers.append(self)
            stepped.append(super().apply(*given).copy())
            return stepped[-1]

    monkeypatch.setattr("fedgc.training.next_model.ServerOptimizer", Spied)
    settings = config(rounds=3, server_optimizer="schedule-free")
    task = replace(TASK, evaluate=lambda module: {"bias": float(module.bias.abs().sum())})
    done = trained(settings, task=task)
    assert np.array_equal(done.model, servers[-1].average(stepped[-1]))
    assert not np.array_equal(done.model, stepped[-1])
    assert done.points[-1].metrics["bias"] == pytest.approx(np.abs(done.model[10:]).sum())


def test_death_is_noticed_after_grace_time():
    calm = working([[1.0]] * 3)
    storm = replace(calm, dies_s_w=np.array([np.inf, np.inf, 0.5]))
    job = Job(TASK, config(rounds=1), (storm,))
    at_once, later = (train(replace(job, grace_s=grace_s)).points[-1].seconds for grace_s in (0.0, 9.0))
    assert at_once < 9.0 < later


@pytest.mark.parametrize("momentum", ["off", 0.1])
def test_adam_learns_with_and_without_shared_momentum(momentum):
    adam = replace(TASK, optimizer=lambda parameters, rate: torch.optim.Adam(parameters, lr=rate))
    done = trained(config(rounds=25, learning_rate=0.05, shared_momentum=momentum), task=adam)
    assert done.points[-1].metrics["accuracy"] > 0.85


def test_drift_budget_is_kept_and_reason_is_reported():
    done = trained(config(rounds=40, gate="drift", gate_budget=0.2, shared_momentum=0.1, max_gap=32))
    assert outcomes(done).count("synced") == 8
    assert sum("drift" in point.row.reason for point in done.points) > 20


def test_megabyte_budget_counts_models_updates_and_checks():
    share, numbers, clients = 0.5, 12, 3
    sync = clients * 2 * 4 * numbers
    look = clients * 300
    budget = (sync * 40 * share + look * 40) / 1e6
    settings = config(rounds=40, gate="drift", gate_budget=budget, gate_budget_unit="megabytes", max_gap=32)
    assert outcomes(trained(settings)).count("synced") == pytest.approx(20, abs=2)


@pytest.mark.parametrize(
    ("placement", "holders"), [("private", 1), ("shuffled-once", 1), ("scattered", 2), ("cyclic", 2)]
)
def test_data_is_placed_as_configured(placement, holders):
    done = trained(config(rounds=1, placement=placement, replicas=2))
    assert done.points[0].row.replicas == holders
    assert done.points[0].row.outcome == "synced"


def test_fixed_data_is_not_moved():
    with pytest.raises(
        BadSetting, match="placement: saw scattered, needed private: the task's data may not move"
    ):
        trained(config(placement="scattered", replicas=2), task=replace(TASK, may_move=False))


def test_injected_samples_change_training_and_not_sample_counts():
    values = {"placement": "cyclic", "replicas": 1, "batch_size": 8}
    plain, given = (trained(config(**values, inject_clients=share)) for share in (0.0, 0.5))
    again = trained(config(**values, inject_clients=0.5))
    np.testing.assert_array_equal(given.model, again.model)
    assert (given.model != plain.model).any()
    assert [point.row.samples for point in given.points] == [point.row.samples for point in plain.points]


def test_samples_of_fixed_data_are_not_shared():
    with pytest.raises(BadSetting, match="needed private: the task's data may not move"):
        trained(
            config(placement="cyclic", replicas=1, inject_clients=0.5), task=replace(TASK, may_move=False)
        )


# ---- uplinks


def counted(of: Trained) -> list[list[str]]:
    return [[each.client for each in point.row.clients if each.counted] for point in of.points]


def with_uplinks(up_s: list[float], line: Line, rounds: int = 12) -> Trained:
    settings = config(rounds=rounds, min_clients=4)
    conditions = working([[1.0]] * 4, up_s=np.array(up_s), down_s=0.1)
    return train(Job(TASK, settings, (conditions,) * rounds, line))


@pytest.mark.parametrize("line", [Line(), Line(update_s=0.05)], ids=["own links", "shared link"])
def test_slow_uplink_is_waited_for_in_every_round(line: Line):
    assert [len(each) for each in counted(with_uplinks([0.1, 0.1, 0.1, 20.0], line))] == [4] * 12


@pytest.mark.parametrize("line", [Line(), Line(update_s=0.05)], ids=["own links", "shared link"])
def test_client_that_never_sends_is_excluded_and_comes_back(line: Line):
    found = with_uplinks([0.1, 0.1, 0.1, NEVER], line)
    assert all(each == ["client 0", "client 1", "client 2"] for each in counted(found))
    present = [len(point.row.clients) for point in found.points]
    assert present[:4] == [4] * 4, "the fourth round was begun with it"
    assert present[4:6] == [3, 3]
    assert 4 in present[6:], "its first pause is over"
    assert found.points[-1].seconds < 40.0


def test_sample_of_clients_sends_its_share_and_reaches_all():
    def played(count: int) -> Trained:
        settings = RunConfig(
            partition="dirichlet:1", chunks=20, rounds=4, local_steps=1, gate="every", quorum=1.0,
            batch_size=4, min_clients=20, device="cpu", clients_per_round=count, shared_momentum="off",
        )  # fmt: skip
        scenario = (working([[1.0]] * 20),) * settings.rounds
        return train(Job(named("digits", settings), settings, scenario, owned=True))

    every, some = played(0), played(5)
    assert 4 * some.points[-1].sent == every.points[-1].sent == 80
    asked = [client.client for point in some.points for client in point.row.clients if client.counted]
    assert len(asked) == len(set(asked)) == 20


def test_late_updates_keep_running_variances_positive():
    """One client's link is so slow that its updates come rounds later; the model has BatchNorm."""
    up_s = [0.1] * 3 + [6.0]
    scenario = (working([[1.0]] * 4, up_s=up_s, control_s=0.01),) * 12
    settings = RunConfig(
        work="local", rounds=12, min_clients=4, chunks=4, local_steps=8, device="cpu", threads=1, quorum=0.5,
        late_updates="count", partition="dirichlet:0.3", evaluate_every=1,
    )  # fmt: skip
    trained = train(Job(named("digits", settings), settings, scenario, owned=True))
    late = [point for point in trained.points if "earlier round" in point.row.reason]
    assert late
    assert all(math.isfinite(point.metrics["loss"]) for point in trained.points)
    assert trained.points[-1].metrics["accuracy"] > 0.8
    assert trained.points[-1].seconds < 6 * 6.0, "rounds do not wait for the slow link"


def test_run_with_spent_privacy_ends_early():
    settings = config(gate="every", aggregator="auto", privacy_noise=2.0, privacy_epsilon=4.5)
    done = trained(settings)
    epsilons = [point.metrics["epsilon"] for point in done.points]
    assert 0 < len(epsilons) < settings.rounds
    assert outcomes(done) == ["synced"] * len(epsilons)
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] <= 4.5
    assert done.spent.startswith("the privacy budget is spent: with one more exchange epsilon would be ")
    assert not done.ended


def test_budget_spent_in_last_round_leaves_run_whole():
    done = trained(config(gate="every", aggregator="auto", privacy_epsilon=8.0))
    assert len(done.points) == 6
    assert not done.spent
