from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgc.config import RunConfig
from fedgc.errors import BadVector, TaskFailed
from fedgc.training import CommonModel


def test_every_process_of_run_starts_from_same_vector(small):
    first = CommonModel(small, RunConfig(seed=3, work="coded")).first()
    torch.manual_seed(77)
    assert np.array_equal(first, CommonModel(small, RunConfig(seed=3, work="coded")).first())
    assert not np.array_equal(first, CommonModel(small, RunConfig(seed=4, work="coded")).first())


def test_evaluation_uses_eval_mode_without_gradients(small):
    seen = []

    def evaluate(module):
        seen.append((module.training, torch.is_grad_enabled(), module[0].weight[0, 0].item()))
        return {"half": np.float32(0.5), "one": torch.tensor(1)}

    common = CommonModel(replace(small, evaluate=evaluate), RunConfig(work="coded"))
    vector = np.full(common.size, 0.25, np.float32)
    assert common.evaluate(vector) == {"half": 0.5, "one": 1.0}
    assert seen == [(False, False, 0.25)]
    assert not np.array_equal(common.first(), vector)


def test_task_without_evaluation_has_no_metrics(small):
    common = CommonModel(small, RunConfig(work="coded"))
    assert common.evaluate(common.first()) == {}


def test_failing_evaluation_is_reported_in_one_line(small):
    def evaluate(module):
        raise ValueError("no labels\nat all")

    common = CommonModel(replace(small, evaluate=evaluate), RunConfig(work="coded"))
    with pytest.raises(TaskFailed, match=r"evaluate\(\) raised ValueError: no labels at all$"):
        common.evaluate(common.first())


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (0.5, r"evaluate\(\) returned 0.5, needed a mapping"),
        ({"accuracy": "good"}, r"evaluate\(\) returned accuracy = 'good', needed a number"),
        (
            {"accuracy": torch.ones(99)},
            r"evaluate\(\) returned accuracy = tensor\(\[1.{,80}, needed a number",
        ),
        ({"accuracy": None}, "accuracy = None, needed a number"),
    ],
)
def test_evaluation_without_numbers_is_reported_in_one_line(small, figures, said):
    common = CommonModel(replace(small, evaluate=lambda _: figures), RunConfig(work="coded"))
    with pytest.raises(TaskFailed, match=said):
        common.evaluate(common.first())


def test_vector_of_wrong_size_is_refused(small):
    common = CommonModel(small, RunConfig(work="coded"))
    with pytest.raises(BadVector, match="needed float32 of shape"):
        common.module(common.first()[1:])
