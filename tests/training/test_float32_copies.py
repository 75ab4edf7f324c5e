"""Test training in half precision: small steps of an optimizer or a loop are not lost."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from fedgc.config import RunConfig
from fedgc.training.flat import FlatModel
from fedgc.training.loop.model_state import ModelState
from fedgc.training.loop.ranks import Ranks
from fedgc.training.tasks import Task
from fedgc.training.trainer import LocalStep, Trainer

HALVES = [torch.bfloat16, torch.float16]
STEPS = 200
FIRST = 1.0
RATE = 1e-5  # of steps that are far below half a unit of the last place
OPTIMIZERS: dict[str, Callable] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=RATE, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=RATE),
    "one at a time": lambda parameters: torch.optim.Adam(parameters, lr=RATE, foreach=False),
}


def weight(dtype: torch.dtype) -> nn.Module:
    module = nn.Linear(3, 1, bias=False)
    nn.init.constant_(module.weight, FIRST)
    return module.to(dtype)


def loss_of(module: nn.Module) -> torch.Tensor:
    """A loss whose gradient is the same in all precisions."""
    return module(torch.ones(1, 3, dtype=module.weight.dtype)).sum()


@contextmanager
def joined(module: nn.Module) -> Iterator[ModelState]:
    """The state of a script's model, as `fedgc.join` makes it."""
    state = ModelState(module)
    handles = state.step_in_float32()
    yield state
    for each in handles:
        each.remove()


def read(state: ModelState) -> np.ndarray:
    into = np.zeros(state.layout.size, np.float32)
    state.read(into)
    return into


def trained(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> nn.Module:
    for _ in range(steps):
        loss_of(module).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tiny_steps_of_script_add_up_as_in_float32(dtype: torch.dtype, name: str):
    exact = weight(torch.float32)
    trained(exact, OPTIMIZERS[name](exact.parameters()))
    half = weight(dtype)
    with joined(half) as state:
        trained(half, OPTIMIZERS[name](half.parameters()))
        assert np.array_equal(read(state), exact.weight.detach().numpy().ravel())
    assert torch.equal(half.weight, exact.weight.to(dtype))
    assert half.weight.grad is None
    alone = trained(weight(dtype), (plain := OPTIMIZERS[name](weight(dtype).parameters())))
    assert plain.param_groups
    assert torch.equal(alone.weight, weight(dtype).weight)  # without copies nothing would have changed


def test_step_with_closure_trains_in_float32():
    exact, half = weight(torch.float32), weight(torch.bfloat16)
    with joined(half) as state:
        for module in (exact, half):
            optimizer = torch.optim.SGD(module.parameters(), lr=RATE)

            def closure(module=module, optimizer=optimizer) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(module)
                loss.backward()
                return loss

            for _ in range(STEPS):
                optimizer.step(closure)
        assert np.array_equal(read(state), exact.weight.detach().numpy().ravel())


def test_common_model_is_handed_back_in_full():
    state = ModelState(weight(torch.bfloat16))
    model = np.float32([1.0001, 0.3333333, -7e-9])
    state.write(model, Ranks())
    assert np.array_equal(read(state), model)
    with torch.no_grad():
        state.module.weight.add_(0.5)  # by a loop of which nothing is known
    done = torch.tensor(model).bfloat16().add_(0.5).float() - torch.tensor(model).bfloat16().float()
    np.testing.assert_allclose(read(state), torch.tensor(model) + done, rtol=1e-7)


class Sent:
    """What rank 0 broadcasts, for another rank of the same script."""

    several = True

    def __init__(self, values: list[torch.Tensor] | None = None) -> None:
        self.values = values or []

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        for number, each in enumerate(tensors):
            if number < len(self.values):
                each.copy_(self.values[number])
            else:
                self.values.append(each.clone())


def test_all_ranks_get_common_model_in_full():
    model, first = np.float32([1.0001, 0.3333333, -7e-9]), Sent()
    ModelState(weight(torch.bfloat16)).write(model, first)
    other = ModelState(weight(torch.bfloat16))
    other.write(None, Sent(first.values))
    assert np.array_equal(read(other), model)
    assert torch.equal(other.module.weight.detach().flatten(), torch.tensor(model).bfloat16())


def test_state_of_optimizer_is_restored_in_float32():
    half = weight(torch.bfloat16)
    with joined(half) as state:
        optimizer = torch.optim.Adam(half.parameters(), lr=RATE)
        trained(half, optimizer, steps=3)
        kept = optimizer.state_dict()
        again = torch.optim.Adam(half.parameters(), lr=RATE)
        state.load_optimizer(again, kept)
        for each in ("exp_avg", "exp_avg_sq"):
            restored = again.state[half.weight][each]
            assert restored.dtype == torch.float32
            assert torch.equal(restored, optimizer.state[half.weight][each])
        plain = torch.optim.Adam(half.parameters(), lr=RATE)
        plain.load_state_dict(kept)  # as a user does it
        trained(half, plain, steps=1)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_model_recovers_from_step_that_is_no_number(dtype: torch.dtype, bad: float):
    half = weight(dtype)
    with joined(half) as state:
        optimizer = torch.optim.SGD(half.parameters(), lr=RATE)
        good = {name: each.clone() for name, each in half.state_dict().items()}
        (loss_of(half) * bad).backward()
        optimizer.step()
        assert not np.isfinite(read(state)).any()
        half.load_state_dict(good)  # as a script does that looks at its loss
        optimizer.zero_grad()
        exact = weight(torch.float32)
        trained(half, optimizer)
        trained(exact, torch.optim.SGD(exact.parameters(), lr=RATE))
        assert np.array_equal(read(state), exact.weight.detach().numpy().ravel())


def test_value_beyond_float16_is_replaced_with_tensor():
    state = ModelState(weight(torch.float16))
    state.write(np.float32([70_000.0, 0.3333333, -70_000.0]), Ranks())
    assert not np.isnan(read(state)).any()
    with torch.no_grad():
        state.module.weight[0, 0] = 2.0
    assert np.array_equal(read(state), np.float32([2.0, 0.3333333, -np.inf]))


def test_optimizer_of_other_model_is_left_alone():
    other = weight(torch.bfloat16)
    optimizer = torch.optim.SGD(other.parameters(), lr=RATE)
    with joined(weight(torch.bfloat16)):
        trained(other, optimizer)
    assert torch.equal(other.weight, weight(torch.bfloat16).weight)
    assert optimizer.param_groups[0]["params"] == [other.weight]


def task_of(dtype: torch.dtype, optimizer: Callable | None = None) -> Task:
    return Task(
        model=lambda: weight(dtype),
        chunks={"one": 4},
        load=lambda _: (torch.ones(4),),
        loss=lambda module, _: loss_of(module),
        optimizer=optimizer,
    )


def trainer(dtype: torch.dtype, optimizer: Callable | None = None) -> Trainer:
    made = Trainer(task_of(dtype, optimizer), RunConfig(learning_rate=RATE, device="cpu", threads=1))
    made.load(("one",))
    made.begin(made.initial())
    return made


def stepped(made: Trainer, first: int, last: int) -> Trainer:
    for number in range(first, last):
        made.step(("one",), LocalStep((0, "one"), number, led=0.5))
    return made


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "optimizer", [None, lambda parameters, rate: torch.optim.Adam(parameters, rate)], ids=["sgd", "adam"]
)
def test_tiny_steps_of_task_add_up_as_in_float32(dtype: torch.dtype, optimizer: Callable | None):
    lead = np.float32([3e-6, 0, 1e-6])
    made, exact = trainer(dtype, optimizer), trainer(torch.float32, optimizer)
    for each in (made, exact):
        each.follow(lead)
        stepped(each, 0, STEPS)
    assert not np.array_equal(exact.flat.read(), exact.initial())
    assert np.array_equal(made.flat.read(), exact.flat.read())


def test_half_precision_trajectory_is_resumed_exactly():
    def adam(parameters, rate):
        return torch.optim.Adam(parameters, rate)

    whole = stepped(trainer(torch.bfloat16, adam), 0, 20).flat.read()
    saved = stepped(trainer(torch.bfloat16, adam), 0, 10).save()
    again = trainer(torch.bfloat16, adam)
    again.resume(saved)
    assert np.array_equal(stepped(again, 10, 20).flat.read(), whole)


def test_running_statistics_in_half_precision_keep_full_values():
    flat = FlatModel(nn.BatchNorm1d(2).bfloat16())
    vector = np.linspace(0.1, 0.9, flat.size, dtype=np.float32)
    flat.write(vector)
    assert np.array_equal(flat.read(), vector)


def test_model_that_is_converted_after_join_steps_in_float32():
    """As Lightning does with precision="bf16-true", when it begins to fit."""
    module = weight(torch.float32)
    with joined(module) as state:
        module.bfloat16()
        trained(module, torch.optim.SGD(module.parameters(), lr=RATE))
        np.testing.assert_allclose(read(state), FIRST - STEPS * RATE, rtol=0, atol=1e-5)


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_on_half_precision_converges(line_search):
    """It keeps its own list of parameters and its state while it calls the closure."""
    torch.manual_seed(0)
    module = nn.Linear(4, 1).to(torch.bfloat16)
    inputs = torch.randn(64, 4)
    targets = inputs.sum(dim=1, keepdim=True)
    optimizer = torch.optim.LBFGS(module.parameters(), lr=0.5, line_search_fn=line_search)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(inputs.bfloat16()).float(), targets)
        loss.backward()
        return loss

    with joined(module):
        first = optimizer.step(closure).item()
        for _ in range(4):
            last = optimizer.step(closure).item()
    assert (first > 1.0, last < 1e-2) == (True, True)
    assert len(optimizer.state) == 1
