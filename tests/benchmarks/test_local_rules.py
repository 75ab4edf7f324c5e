"""Test the local steps of FedProx, SCAFFOLD and TimelyFL against plain loops."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.arm_fleet import ArmFleet, Extras
from benchmarks.images import MODELS, mlp_losses
from benchmarks.local_rules import LocalRule, Proximal, Scaffold, Timely, parts_of, sending
from fedgc.config import RunConfig
from fedgc.sim.clock import working
from fedgc.sim.training import Job, Trained, train
from fedgc.training import CommonModel
from fedgc.training.data import batch_rows
from fedgc.training.randomness import key
from fedgc.training.tasks.shipped import cross_entropy
from tests.six_chunks import SIZES, TASK, load

BATCH, STEPS, RATE = 4, 3, 0.3
CHUNKS = dict(list(SIZES.items())[:2])
SHARES = np.array(list(CHUNKS.values())) / sum(CHUNKS.values())


def job(rounds: int, paces=((1.0,), (1.0,)), task=TASK) -> Job:
    config = RunConfig(
        rounds=rounds, local_steps=STEPS, batch_size=BATCH, learning_rate=RATE, shared_momentum="off",
        device="cpu", gate="every", quorum=1.0, lockstep="on", min_clients=2, aggregator="weighted-mean",
        largest_share=1.0,
    )  # fmt: skip
    return Job(replace(task, chunks=CHUNKS), config, (working(paces),) * rounds)


def trained(of: Job, rule: LocalRule) -> Trained:
    rules = rule.steps(parts_of(of.task, RATE), of.scenario)
    engines = partial(ArmFleet, extras=Extras(rule=rules))
    return train(replace(of, scenario=rule.scenario(of.scenario), engines=engines))


def first_model(of: Job) -> np.ndarray:
    return CommonModel(of.task, of.config).first()


def gradient(model: np.ndarray, client: int, step: int, make=TASK.model) -> np.ndarray:
    """The gradient of a client's batch at this model."""
    inputs, labels = load(f"c{client}")
    rows = batch_rows(len(labels), BATCH, step, key(0, f"client {client}", "order"))
    module = make()
    nn.utils.vector_to_parameters(torch.tensor(model, dtype=torch.float32), module.parameters())
    loss = nn.functional.cross_entropy(module(inputs[rows]), labels[rows])
    return nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(module.parameters()))).numpy()


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_proximal_term_pulls_towards_common_model(mu):
    of = job(2)
    model = first_model(of)
    for number in range(2):
        ends = [model.copy(), model.copy()]
        for client, end in enumerate(ends):
            for step in range(number * STEPS, (number + 1) * STEPS):
                end -= RATE * (gradient(end, client, step) + mu * (end - model))
        model = SHARES @ np.array(ends)
    assert trained(of, Proximal(mu)).model == pytest.approx(model, abs=1e-6)


def test_control_variates_match_plain_loop():
    of = job(3)
    model = first_model(of)
    common, own = np.zeros(12), np.zeros((2, 12))
    for number in range(3):
        updates = np.zeros((2, 12))
        for client in range(2):
            end = model.copy()
            for step in range(number * STEPS, (number + 1) * STEPS):
                end -= RATE * (gradient(end, client, step) + common - own[client])
            updates[client] = model - end
        after = own - common + updates / (STEPS * RATE)
        common, own = common + SHARES @ (after - own), after
        model = model - SHARES @ updates
    assert trained(of, Scaffold()).model == pytest.approx(model, abs=1e-5)
    assert np.abs(common).max() > 0.01


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2))


def test_slow_client_trains_outer_layer_alone():
    of = job(1, paces=((4.0,), (1.0,)), task=replace(TASK, model=two_layers))
    start = first_model(of)
    outer = np.arange(26) >= 18
    ends = [start.copy(), start.copy()]
    for client, end in enumerate(ends):
        for step in range(STEPS):
            end -= RATE * gradient(end, client, step, two_layers) * (outer if client == 0 else 1.0)
    run = trained(of, Timely(1))
    assert run.model[outer] == pytest.approx((SHARES @ np.array(ends))[outer], abs=1e-6)
    assert run.model[~outer] == pytest.approx(ends[1][~outer], abs=1e-6), "the mean of those that trained it"
    assert run.points[0].seconds == 1.0, "nobody is slower than the interval"
    assert [each.counted for each in run.points[0].row.clients] == [STEPS, STEPS]


def test_interval_of_slowest_client_is_plain_training():
    of = job(2, paces=((4.0,), (1.0,)), task=replace(TASK, model=two_layers))
    plain = train(replace(of, stack=2))
    assert trained(of, Timely(2)).model == pytest.approx(plain.model, abs=1e-6)


def test_transfers_of_two_vectors_take_twice_as_long():
    links = working([[1.0]], up_s=3.0, down_s=1.0)
    (both,) = sending((links,), Scaffold.vectors)
    assert (both.up_s_w.tolist(), both.down_s_w.tolist()) == ([6.0], [2.0])


def test_batched_losses_equal_task_loss():
    models = [MODELS["mlp"](4, 3) for _ in range(2)]
    inputs, labels = torch.randn(2, 5, 4, 4), torch.randint(0, 3, (2, 5))
    stack = [torch.stack(each) for each in zip(*(model.parameters() for model in models), strict=True)]
    apart = [cross_entropy(model, (inputs[at], labels[at])) for at, model in enumerate(models)]
    assert mlp_losses(stack, (inputs, labels)).tolist() == pytest.approx([each.item() for each in apart])
