"""Test the sum of a round: what a late update counts for in parameters and in buffers."""

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.errors import Refused, Unexpected
from fedgc.fragments import fragment_of
from fedgc.messages import Add
from fedgc.plugins import available
from fedgc.training.next_model import NextModel
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


@pytest.mark.parametrize(
    "rule", [each for each in available("fedgc.aggregators") if each != "lora-mixed-ranks"]
)
@pytest.mark.parametrize("fragments", [1, 4])
def test_no_client_makes_variance_negative(rule: str, fragments: int):
    config = RunConfig(aggregator=rule, fragments=fragments, link="session")
    total, variances = RoundSum(config, SIZE, parameters=PARAMETERS), [slice(PARAMETERS, SIZE)]
    server, model = NextModel(config, PARAMETERS, SIZE, variances), vector(5.0, 0.3)
    rng = np.random.default_rng(0)
    for version in range(12):
        total.begin(version, model, SHAPES)
        part = fragment_of(version, fragments, SIZE)
        for client in range(6):
            update = model - vector(5.0, 0.3) + vector(1.0, 0.01) * rng.normal(size=SIZE).astype(np.float32)
            if not client:
                update[-1] += 1e3
            total.add(Add(str(client), 1, 0, (1.0,)), update[part].astype(np.float32))
        mean = total.mean(6.0, version)
        assert mean is not None
        model, _ = server.apply(model, mean, version)
        assert (model[PARAMETERS:] >= 0).all()
    if rule != "weighted-mean":
        assert model[PARAMETERS:].tolist() == pytest.approx([0.3, 0.3], abs=0.1)


def test_round_with_vector_that_rule_refused_has_no_mean(monkeypatch: pytest.MonkeyPatch):
    total = RoundSum(RunConfig(aggregator="weighted-mean"), SIZE)
    add, refused = total.rules[0].add, [True]

    def fails_once(client: str, weight: float, update: np.ndarray) -> None:
        if refused and client == "north":
            refused.clear()
            raise RuntimeError("boom")
        add(client, weight, update)

    monkeypatch.setattr(total.rules[0], "add", fails_once)
    total.add(Add("south", 1, 0, (1.0,)), vector(1.0, 1.0))
    with pytest.raises(Unexpected, match=r"aggregation.rule weighted-mean \(north\): saw RuntimeError: boom"):
        total.add(Add("north", 1, 0, (1.0,)), vector(2.0, 2.0))
    with pytest.raises(Refused, match=r"^the vector of client north could not be added: aggregation.rule"):
        total.mean(1.0, 1)
    total.clear()
    for client in ("south", "north"):
        total.add(Add(client, 1, 0, (1.0,)), vector(2.0, 2.0))
    assert (total.mean(2.0, 2) == 2.0).all()
