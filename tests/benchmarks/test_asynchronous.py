"""Test asynchronous training against hand-computed runs and plain loops."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benchmarks.asynchronous import Bounded, Buffered, train_asynchronously
from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.sim.clock import working
from fedgc.sim.training import Job, train
from fedgc.training import CommonModel
from fedgc.training.data import batch_rows
from fedgc.training.randomness import key
from fedgc.training.tasks import Task
from tests.six_chunks import SIZES, TASK, load

BATCH, STEPS, RATE = 4, 3, 0.3


def accuracy(module):
    inputs, labels = load("c2")
    return {"accuracy": float((module(inputs).argmax(1) == labels).float().mean())}


def task(clients: int) -> Task:
    """One chunk for each client."""
    return replace(TASK, chunks=dict(list(SIZES.items())[:clients]), evaluate=accuracy)


def config(**changes) -> RunConfig:
    values = {
        "work": "local", "rounds": 4, "local_steps": STEPS, "batch_size": BATCH, "learning_rate": RATE,
        "shared_momentum": "off", "device": "cpu", "gate": "every", "quorum": 1.0,
        "lockstep": "on",
    }  # fmt: skip
    return RunConfig(**{"work": "coded", **values, **changes})


def job(paces, *, stack=True, links=None, **changes) -> Job:
    settings = config(min_clients=len(paces), **changes)
    scenario = (working([[pace] for pace in paces], **(links or {})),) * settings.rounds
    return Job(task(len(paces)), settings, scenario, stack=8 if stack else 1)


def piece(model: np.ndarray, client: int, first: int, seed: int = 0) -> np.ndarray:
    """Slow reference for one piece of work: plain gradient steps from this model."""
    inputs, labels = load(f"c{client}")
    now = model.copy()
    for step in range(first, first + STEPS):
        rows = batch_rows(len(labels), BATCH, step, key(seed, f"client {client}", "order"))
        weight = torch.tensor(now[:10].reshape(2, 5), requires_grad=True)
        bias = torch.tensor(now[10:], requires_grad=True)
        value = nn.functional.cross_entropy(inputs[rows] @ weight.T + bias, labels[rows])
        parts = torch.autograd.grad(value, (weight, bias))
        now -= RATE * np.concatenate([part.numpy().reshape(-1) for part in parts])
    return model - now


def first_model(of: Job) -> np.ndarray:
    return CommonModel(of.task, of.config).first()


@pytest.mark.parametrize("rule", [Buffered(1), Bounded(0), Bounded(7)])
@pytest.mark.parametrize("stack", [False, True])
def test_single_client_trains_as_without_server(rule, stack):
    of = job([1.0], stack=stack)
    model = first_model(of)
    for number in range(of.config.rounds):
        model = model - piece(model, 0, number * STEPS)
    went = train_asynchronously(of, rule)
    assert went.model == pytest.approx(model, abs=1e-6)
    assert [moment.seconds for moment in went.moments] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("stack", [False, True])
def test_bound_of_0_is_bulk_synchronous_training(stack):
    of = job([1.0, 2.5, 1.5], stack=stack)
    went, common = train_asynchronously(of, Bounded(0)), train(of)
    assert went.model == pytest.approx(common.model, abs=1e-6)
    seconds = [point.seconds for point in common.points]
    assert [moment.seconds for moment in went.moments] == pytest.approx(seconds)
    assert [moment.pushed for moment in went.moments] == [3, 6, 9, 12]


@pytest.mark.parametrize("stack", [False, True])
def test_buffer_of_two_matches_hand_computation(stack):
    """Client 0 takes 2 s, client 1 takes 3 s.

    2 s  0 sends its piece of model 0, and takes that again
    3 s  1 sends its own of model 0: model 1
    4 s  0 sends one of model 0, age 1
    6 s  1 sends one of model 1, age 0: model 2; then 0 one of model 1, age 1
    8 s  0 sends one of model 2, age 0: model 3
    """
    of = job([2.0, 3.0], stack=stack, rounds=3)
    zero = first_model(of)
    one = zero - (piece(zero, 0, 0) + piece(zero, 1, 0)) / 2
    two = one - (piece(zero, 0, STEPS) / math.sqrt(2) + piece(one, 1, STEPS)) / 2
    three = two - (piece(one, 0, 2 * STEPS) / math.sqrt(2) + piece(two, 0, 3 * STEPS)) / 2
    went = train_asynchronously(of, Buffered(2))
    assert went.model == pytest.approx(three, abs=1e-6)
    assert [(moment.seconds, moment.version) for moment in went.moments] == [(3.0, 1), (6.0, 2), (8.0, 3)]
    assert [moment.pulled for moment in went.moments] == [3, 5, 7], "who sends takes a model with it"


def test_client_waits_only_if_too_far_ahead():
    """A client of 1 s beside one of 4 s, with a bound of 1: it has two and waits for the other's first."""
    went = train_asynchronously(job([1.0, 4.0], rounds=3), Bounded(1))
    assert [moment.seconds for moment in went.moments] == [2.0, 5.0, 9.0]
    free = train_asynchronously(job([1.0, 4.0], rounds=3), Bounded(100))
    assert [moment.seconds for moment in free.moments] == [2.0, 4.0, 5.0]


def test_links_and_commands_have_latency_once_each_way():
    links = {"up_s": 0.5, "down_s": 0.25, "control_s": 0.125}
    went = train_asynchronously(job([1.0], links=links, rounds=2), Buffered(1))
    assert [moment.seconds for moment in went.moments] == [2.0, 4.0]


def test_dead_client_is_not_awaited_and_restarts_on_return():
    of = job([1.0, 1.0], rounds=4)
    calm = of.scenario[0]
    storm = replace(calm, dies_s_w=np.array([np.inf, 0.5]), returns_s_w=np.array([np.inf, 3.5]))
    went = train_asynchronously(replace(of, scenario=(storm, calm, calm, calm)), Bounded(0))
    assert [moment.seconds for moment in went.moments] == [2.0, 4.0, 5.5, 6.5]
    gone = replace(calm, dies_s_w=np.array([0.5, 0.5]), returns_s_w=np.array([np.inf, np.inf]))
    assert train_asynchronously(replace(of, scenario=(gone,) * 4), Buffered(2)).moments == ()


@settings(max_examples=25)
@given(
    st.lists(st.floats(0.5, 4.0), min_size=3, max_size=3),
    st.sampled_from([Buffered(1), Buffered(3), Bounded(0), Bounded(2)]),
    st.integers(0, 3),
)
def test_asynchronous_run_is_deterministic_and_equals_engine(paces, rule, seed):
    of = job(paces, rounds=2, seed=seed)
    first, again, slow = (train_asynchronously(each, rule) for each in (of, of, replace(of, stack=1)))
    np.testing.assert_array_equal(first.model, again.model)
    assert first.moments == again.moments
    assert slow.model == pytest.approx(first.model, abs=1e-6)
    assert [moment.seconds for moment in slow.moments] == [moment.seconds for moment in first.moments]
    assert first.moments[-1].pushed == 6


def test_training_ends_when_caller_has_seen_enough():
    of = job([1.0, 2.0], rounds=4)
    went = train_asynchronously(of, Buffered(1), until=lambda moment: moment.pushed >= 4)
    assert [moment.pushed for moment in went.moments] == [2, 4]
    assert len(train(of, until=lambda point: point.row.round == 2).points) == 2


def test_other_seed_gives_other_run():
    one, other = (train_asynchronously(job([1.0, 2.0], seed=seed), Buffered(2)).model for seed in (0, 1))
    assert (one != other).any()


def test_asynchronous_training_reaches_accuracy():
    went = train_asynchronously(job([1.0, 1.7, 3.1], rounds=25), Buffered(2))
    assert went.moments[-1].metrics["accuracy"] > 0.85


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"work": "coded"}, "setting work: saw coded, needed local"),
        ({"shared_momentum": 0.1}, "setting optimizer.shared-momentum: saw 0.1, needed off"),
        ({"codec": "int8"}, "setting links.codec: saw int8, needed float32"),
        ({"download_codec": "int8"}, "setting links.download-codec: saw int8, needed float32"),
        (
            {"placement": "cyclic", "replicas": 1, "inject_clients": 0.5},
            "setting data.inject-clients: saw some, needed 0",
        ),
    ],
)
def test_method_that_needs_common_model_is_refused(changes, says):
    with pytest.raises(BadSetting, match=says):
        train_asynchronously(job([1.0, 1.0], stack=False, **changes), Buffered(2))


@pytest.mark.parametrize(
    ("make", "says"), [(partial(Buffered, 0), "buffer of 0"), (partial(Bounded, -1), "-1")]
)
def test_invalid_rules_are_refused(make, says):
    with pytest.raises(BadSetting, match=says):
        make()
