"""Test the sum of a round: what a late update counts for in parameters and in buffers."""

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.messages import Add
from fedgc.training.round_sum import RoundSum

PARAMETERS, BUFFERS = 3, 2
SIZE = PARAMETERS + BUFFERS
SHAPES = (("all", (SIZE,)),)


def vector(parameters: float, buffers: float) -> np.ndarray:
    return np.array([parameters] * PARAMETERS + [buffers] * BUFFERS, np.float32)


@pytest.fixture
def total() -> RoundSum:
    config = RunConfig(late_updates="count", aggregator="weighted-mean")
    return RoundSum(config, SIZE, parameters=PARAMETERS)


def test_late_buffers_are_those_of_client_and_late_steps_are_added(total: RoundSum):
    """The client's buffers are 0.25 after training from a model with 1.0; the newest model has 0.3."""
    total.begin(0, vector(5.0, 1.0), SHAPES)
    total.begin(1, vector(4.0, 0.3), SHAPES)
    sent = vector(2.0, 0.75)
    total.add(Add("a", 1, 0, (1.0,), late_from=0), sent)
    mean = total.mean(1.0, 2)
    assert mean is not None
    assert mean.tolist() == pytest.approx(vector(2.0, 0.3 - 0.25).tolist(), abs=1e-6)
    assert sent.tolist() == vector(2.0, 0.75).tolist(), "the vector belongs to its link"


def test_update_from_newest_model_is_taken_as_it_is(total: RoundSum):
    total.begin(0, vector(5.0, 1.0), SHAPES)
    total.begin(1, vector(4.0, 0.3), SHAPES)
    total.add(Add("a", 2, 0, (1.0,)), vector(2.0, 0.1))
    mean = total.mean(1.0, 2)
    assert mean is not None
    assert mean.tolist() == vector(2.0, 0.1).tolist()


def test_buffers_of_models_without_clients_are_forgotten(total: RoundSum):
    for version in range(6):
        total.begin(version, vector(0.0, float(version)), SHAPES, oldest=max(0, version - 2))
    assert sorted(total._known) == [3, 4, 5]
