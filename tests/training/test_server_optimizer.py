import io
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, BadVector, EdgeFailed
from fedgc.large_vectors import THREADED, TILE
from fedgc.training import ServerOptimizer
from fedgc.training import server_optimizer as optimizer
from fedgc.training.next_model import NextModel
from fedgc.training.server_optimizer import RULES, averaged

NAMES = sorted(RULES)


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that torch makes."""

    numbers = 0

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        made = operation(*arguments, **(named or {}))
        sizes = [each.numel() for each in tree_flatten(made)[0] if isinstance(each, torch.Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return made


def vectors(count, size=7, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)


@given(st.integers(0, 1000))
@settings(max_examples=10)
def test_sgd_at_rate_1_is_averaging(seed):
    vector, mean = vectors(2, seed=seed)
    new = ServerOptimizer(RunConfig(work="coded"), 5).apply(vector, mean.copy())
    assert np.array_equal(new, vector - mean)


@pytest.mark.parametrize("part", [3, 5, optimizer.PART])
@pytest.mark.parametrize("name", NAMES)
def test_every_rule_matches_torch_and_subtracts_buffers(name, part, monkeypatch):
    monkeypatch.setattr(optimizer, "PART", part)
    config = RunConfig(server_optimizer=name, server_learning_rate=0.1, work="coded")
    server = ServerOptimizer(config, 5)
    vector, *means = vectors(4)
    parameter = torch.nn.Parameter(torch.tensor(vector[:5]))
    plain = RULES[name]([parameter], lr=0.1)
    buffers = vector[5:].copy()
    for mean in means:
        vector = server.apply(vector, mean.copy())
        parameter.grad = torch.tensor(mean[:5])
        plain.step()
        buffers -= mean[5:]
    np.testing.assert_allclose(
        vector[:5], parameter.detach().numpy(), rtol=1e-6
    )  # torch may fuse the last step
    assert np.array_equal(vector[5:], buffers)


@pytest.mark.parametrize("name", NAMES)
def test_restored_optimizer_continues_identically(name, monkeypatch):
    monkeypatch.setattr(optimizer, "PART", 3)
    momentum = 0.9 if name == "sgd" else 0.0
    config = RunConfig(
        server_optimizer=name, server_learning_rate=0.1, server_momentum=momentum, work="coded"
    )
    one, other = ServerOptimizer(config, 5), ServerOptimizer(config, 5)
    vector, *means = vectors(4)
    for mean in means[:2]:
        vector = one.apply(vector, mean.copy())
    other.restore(one.state())
    assert np.array_equal(one.apply(vector, means[2]), other.apply(vector, means[2]))


@pytest.mark.parametrize("name", NAMES)
def test_step_allocates_only_optimizer_state(name, monkeypatch):
    monkeypatch.setattr(optimizer, "PART", 10_000)
    server = ServerOptimizer(
        RunConfig(server_optimizer=name, server_learning_rate=0.1, work="coded"), 1_000_000
    )
    vector, *means = vectors(3, size=1_000_000)
    server.apply(vector, means[0])  # its state is made
    tracemalloc.start()
    with Largest() as made:
        assert server.apply(vector, means[1]) is means[1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < vector.nbytes / 2
    assert made.numbers <= 10_000


def test_resumed_run_takes_rate_from_own_settings():
    old = ServerOptimizer(RunConfig(server_learning_rate=1.0, work="coded"), 5)
    new = ServerOptimizer(RunConfig(server_learning_rate=0.5, work="coded"), 5)
    vector, mean = vectors(2)
    old.apply(vector, mean.copy())
    new.restore(old.state())
    assert np.allclose(new.apply(vector, mean.copy())[:5], (vector - 0.5 * mean)[:5])


def test_averaging_server_does_not_load_torch_compiler():
    code = """
import sys
import numpy as np
from fedgc.config import RunConfig
from fedgc.training import ServerOptimizer

one, other = ServerOptimizer(RunConfig(), 1), ServerOptimizer(RunConfig(), 1)
other.restore(one.state())
print(other.apply(np.float32([3, 5]), np.float32([1, 2])).tolist(), "torch._dynamo" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert said.stdout.strip() == "[2.0, 3.0] False", said.stderr


def test_resume_with_or_without_momentum_is_accepted():
    plain, heavy = (
        ServerOptimizer(RunConfig(work="coded"), 5),
        ServerOptimizer(RunConfig(server_momentum=0.9, work="coded"), 5),
    )
    vector, mean = vectors(2)
    heavy.apply(vector, mean.copy())
    fresh = ServerOptimizer(RunConfig(server_momentum=0.9, work="coded"), 5)
    fresh.restore(plain.state())
    plain.restore(heavy.state())
    assert np.allclose(fresh.apply(vector, mean.copy()), vector - mean)
    assert np.array_equal(plain.apply(vector, mean.copy()), vector - mean)


def test_state_of_other_rule_or_model_is_refused():
    state = ServerOptimizer(RunConfig(server_optimizer="adam", work="coded"), 5).state()
    with pytest.raises(BadSetting, match=r"optimizer\.server: saw sgd, needed the checkpoint's, adam"):
        ServerOptimizer(RunConfig(work="coded"), 5).restore(state)
    other = "the model differs from the checkpoint's: saw 6 parameters, needed 5"
    with pytest.raises(BadSetting, match=other):
        ServerOptimizer(RunConfig(server_optimizer="adam", work="coded"), 6).restore(state)


def test_invalid_state_bytes_are_refused(tmp_path):
    server = ServerOptimizer(RunConfig(work="coded"), 5)
    state = server.state()
    torch.save({"rule": print}, tmp_path / "code")  # a name that would be looked up and could be called
    for spoilt in (b"", b"nonsense", state[: len(state) // 2], (tmp_path / "code").read_bytes()):
        with pytest.raises(EdgeFailed, match="server optimizer"):
            server.restore(spoilt)
    with pytest.raises(EdgeFailed, match=r"cannot be read: Unsupported global: GLOBAL \S*print was not"):
        server.restore((tmp_path / "code").read_bytes())
    torch.save([1], tmp_path / "list")
    with pytest.raises(EdgeFailed, match="saw a list"):
        server.restore((tmp_path / "list").read_bytes())


@pytest.mark.parametrize(
    ("vector", "mean"),
    [
        (np.zeros(7, np.float32), np.zeros(6, np.float32)),
        (np.zeros(7, np.float32), np.zeros(7)),
        (np.zeros(4, np.float32), np.zeros(4, np.float32)),
        (np.zeros(7, np.float32), np.full(7, np.nan, np.float32)),
        (np.full(7, 3e38, np.float32), np.full(7, -3e38, np.float32)),
    ],
)
def test_invalid_vectors_are_refused(vector, mean):
    with pytest.raises(BadVector):
        ServerOptimizer(RunConfig(work="coded"), 5).apply(vector, mean.copy())


@pytest.mark.parametrize("huge", [1e21, -3e38])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_huge_number_is_refused_and_next_steps_are_as_without(rule, huge):
    """Its square would be infinite in the state, and the number of the model would not move again."""
    server, other = (
        ServerOptimizer(RunConfig(server_optimizer=rule, server_learning_rate=0.1), 2) for _ in range(2)
    )
    model, ones = np.zeros(2, np.float32), np.ones(2, np.float32)
    for each in (server, other):
        each.apply(model.copy(), ones.copy())
    if server._optimizer is not None:  # averaging has no state
        with pytest.raises(BadVector, match=r"the mean update: saw a number of .*, needed at most 1e\+18"):
            server.apply(model.copy(), np.float32([huge, 1]))
    after = [each.apply(model.copy(), ones.copy()) for each in (server, other)]
    np.testing.assert_array_equal(*after)
    assert (after[0] != 0).all()


@pytest.mark.parametrize("at", [0, TILE, THREADED])
def test_number_that_is_not_finite_is_found_in_any_tile(at: int):
    mean = np.zeros(THREADED + 1, np.float32)
    mean[at] = np.nan
    with pytest.raises(BadVector, match=f"saw 1 of .* the first nan at {at};"):
        ServerOptimizer(RunConfig(work="coded"), 5).apply(np.ones_like(mean), mean)


def test_momentum_is_refused_for_rule_without_momentum():
    with pytest.raises(BadSetting, match="server-momentum: saw it with adam"):
        ServerOptimizer(RunConfig(server_optimizer="adam", server_momentum=0.9, work="coded"), 5)


def damaged(state, name):
    """Return states of this rule whose form is not its own."""
    kept = torch.load(io.BytesIO(state), weights_only=True)
    parts = kept["state"]["state"]
    whole = parts.get(0, {})
    key = sorted(whole)[0]
    return {
        "no parts": {},
        "parts are a list": {**kept["state"], "state": [whole]},
        "another part": {**kept["state"], "state": {7: whole}},
        "a name is lacking": {**kept["state"], "state": {0: {k: v for k, v in whole.items() if k != key}}},
        "a name too many": {**kept["state"], "state": {0: {**whole, "more": torch.zeros(1)}}},
        "another size": {**kept["state"], "state": {0: {**whole, key: torch.zeros(3)}}},
        "text for numbers": {**kept["state"], "state": {0: {**whole, key: "text"}}},
    }


@pytest.mark.parametrize("name", NAMES)
def test_optimizer_state_of_other_form_is_refused(name):
    momentum = 0.9 if name == "sgd" else 0.0
    config = RunConfig(
        server_optimizer=name, server_learning_rate=0.1, server_momentum=momentum, work="coded"
    )
    one = ServerOptimizer(config, 5)
    vector, mean = vectors(2)
    one.apply(vector, mean)
    for state in damaged(one.state(), name).values():
        written = io.BytesIO()
        torch.save({"rule": name, "parameters": 5, "state": state}, written)
        other = ServerOptimizer(config, 5)
        with pytest.raises(EdgeFailed, match=r"saw a state of part .* of another form"):
            other.restore(written.getvalue())


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_schedule_free_is_plain_loop_over_three_sequences(momentum, monkeypatch):
    monkeypatch.setattr(optimizer, "PART", 2)
    config = RunConfig(
        server_optimizer="schedule-free", server_learning_rate=0.7, server_momentum=momentum, work="coded"
    )
    server, beta = ServerOptimizer(config, 5), momentum or 0.9
    y, *means = vectors(6)
    assert server.average(y) is y
    x = z = y.astype(np.float64)
    buffers = y[5:].copy()
    for step, mean in enumerate(means, start=1):
        z = z - 0.7 * mean
        x = x + (z - x) / step
        buffers -= mean[5:]
        y = server.apply(y, mean.copy())
        np.testing.assert_allclose(y[:5], ((1 - beta) * z + beta * x)[:5], atol=1e-5)
        np.testing.assert_allclose(server.average(y)[:5], x[:5], atol=1e-5)
    assert np.array_equal(server.average(y)[5:], buffers)
    assert np.array_equal(y[5:], buffers)
    assert np.array_equal(averaged(config, server.state(), y), server.average(y))
    assert averaged(RunConfig(work="coded"), b"", y) is y


def test_schedule_free_averages_fragments_that_were_stepped():
    config = RunConfig(server_optimizer="schedule-free", fragments=2, link="session")
    server, y = NextModel(config, 6, 6), np.ones(6, np.float32)
    for _ in range(2):
        y = server.apply(y, np.ones(3, np.float32), 0)[0]
    expected = [-0.5, -0.5, -0.5, 1, 1, 1]
    np.testing.assert_allclose(server.average(y), expected, atol=1e-6)
    np.testing.assert_allclose(averaged(config, server.state(), y), expected, atol=1e-6)


def test_schedule_free_average_reaches_minimum_that_sgd_misses():
    """At a rate at which SGD swings for ever, the average converges."""
    found = {}
    for rule in ("sgd", "schedule-free"):
        config = RunConfig(server_optimizer=rule, server_learning_rate=1.0, work="coded")
        server, model = ServerOptimizer(config, 2), np.float32([1, 1])
        for _ in range(200):
            model = server.apply(model, np.sign(model - np.float32([0.25, 0.5])).astype(np.float32))
        found[rule] = np.abs(server.average(model) - np.float32([0.25, 0.5])).max()
    assert found["schedule-free"] < 0.05 < found["sgd"]
