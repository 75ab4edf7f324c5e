"""Test record clipping: one record moves an update at most by the bound."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, TaskFailed
from fedgc.training.record_clipping import clipped_gradients, limit_of
from fedgc.training.tasks import Task
from fedgc.training.trainer import LocalStep, Trainer
from tests.config_of import config_of

SAMPLES, BATCH = 12, 4
NAMES = ("all",)


def task_of(inputs: torch.Tensor, **more: object) -> Task:
    return Task(
        model=lambda: nn.Linear(3, 1),
        chunks={"all": len(inputs)},
        load=lambda _: (inputs, inputs.sum(dim=1, keepdim=True)),
        loss=lambda module, batch: (module(batch[0]) - batch[1]).square().mean(),
        **more,  # type: ignore[arg-type]
    )


def config(**more: object) -> RunConfig:
    table = {"work": "local", "gate": "every", "local_steps": 1, "batch_size": BATCH, "learning_rate": 0.5}
    return config_of(
        {"work": "coded", **table, "shared_momentum": "off", "threads": 1, "device": "cpu", **more}
    )


def moved(inputs: torch.Tensor, reach: float | None, **more: object) -> np.ndarray:
    trainer = Trainer(task_of(inputs), config(**more))
    if reach is not None:
        trainer.clip_records(reach)
    trainer.load(NAMES)
    start = trainer.flat.read()
    trainer.begin(start)
    trainer.step(NAMES, LocalStep((0, 0), 0))
    return start - trainer.flat.read()


INPUTS = torch.linspace(-1, 1, 3 * SAMPLES).reshape(SAMPLES, 3)


@given(row=st.integers(0, SAMPLES - 1), value=st.floats(-1e6, 1e6, width=32), reach=st.floats(1e-3, 1.0))
def test_replacing_one_record_moves_update_within_bound(row, value, reach):
    other = INPUTS.clone()
    other[row] = value
    difference = moved(INPUTS, reach) - moved(other, reach)
    assert np.linalg.norm(difference) <= reach * (1 + 1e-4)


def test_bound_above_every_record_changes_nothing():
    assert np.allclose(moved(INPUTS, 1e6), moved(INPUTS, None), atol=1e-6)


def test_partial_batch_of_records_is_divided_by_full_batch():
    few = INPUTS[:2]
    assert np.allclose(moved(few, 1e6), moved(few, None) * 2 / BATCH, atol=1e-6)


def test_sum_equals_individually_clipped_gradients():
    weight = torch.zeros(2, requires_grad=True)
    records = [torch.tensor([3.0, 4.0]), torch.tensor([0.3, 0.4]), torch.tensor([0.0, 0.0])]
    loss = clipped_gradients([weight], [lambda x=x: (weight * x).sum() + 1 for x in records], 1.0, 2)
    assert loss == pytest.approx(1.0)
    assert weight.grad.tolist() == pytest.approx([(0.6 + 0.3) / 2, (0.8 + 0.4) / 2])
    assert limit_of(1.0, BATCH, 0.5) == 4.0


def test_non_finite_gradient_is_named():
    weight = torch.zeros(1, requires_grad=True)
    with pytest.raises(TaskFailed, match="not finite"):
        clipped_gradients([weight], [lambda: (weight * float("nan")).sum()], 1.0, 1)


@pytest.mark.parametrize(
    "more", [{"work": "coded"}, {"local_steps": 2}, {"gate": "drift"}, {"gate_period": 2}]
)
def test_unsupported_settings_are_refused(more, tmp_path: Path):
    with pytest.raises(BadSetting, match="privacy: needed work = local"):
        Trainer(task_of(INPUTS), config(**more)).clip_records(1.0)


def test_stateful_optimizer_is_refused():
    chosen = task_of(INPUTS, optimizer=lambda parameters, rate: torch.optim.Adam(parameters, lr=rate))
    with pytest.raises(BadSetting, match="needed plain SGD"):
        Trainer(chosen, config()).clip_records(1.0)
