"""Test the rule for adapters of different ranks, against the mean of the products in full."""

import numpy as np
import pytest

from fedgc.aggregators import make_rule
from fedgc.errors import BadSetting

SHAPES = (("x.lora_A.default.weight", (3, 5)), ("bias", (4,)), ("x.lora_B.default.weight", (6, 3)))
WEIGHTS = {"a": 30.0, "b": 10.0, "c": 60.0}


def split(vector):
    return vector[:15].reshape(3, 5), vector[15:19], vector[19:].reshape(6, 3)


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_result_is_best_approximation_of_mean_product(clients: int):
    rng = np.random.default_rng(clients)
    model = rng.standard_normal(37).astype(np.float32)
    ends = {each: rng.standard_normal(37).astype(np.float32) for each in list(WEIGHTS)[:clients]}
    rule = make_rule("lora-mixed-ranks", "rank=3")
    rule.begin(model, SHAPES)
    for client, end in ends.items():
        rule.add(client, WEIGHTS[client], model - end)
    a, bias, b = split(model - rule.result())
    total = sum(WEIGHTS[each] for each in ends)
    mean = sum(WEIGHTS[each] / total * split(end)[2] @ split(end)[0] for each, end in ends.items())
    u, values, v = np.linalg.svd(mean.astype(np.float64))
    best = u[:, :3] * values[:3] @ v[:3]
    np.testing.assert_allclose(b @ a, best, atol=1e-5)
    np.testing.assert_allclose(a @ a.T, np.eye(3), atol=1e-5)
    lengths = np.linalg.norm(b, axis=0)
    assert (np.diff(lengths) <= 0).all()  # a client of a lower rank takes the first
    expected = sum(WEIGHTS[each] / total * split(end)[1] for each, end in ends.items())
    np.testing.assert_allclose(bias, expected, atol=1e-5)


def test_component_that_is_zero_can_still_be_trained():
    rule = make_rule("lora-mixed-ranks", "rank=3")
    model = np.zeros(37, np.float32)
    rule.begin(model, SHAPES)
    end = np.zeros(37, np.float32)
    end[:5], end[19] = 1.0, 2.0  # of rank 1
    rule.add("a", 1.0, model - end)
    a, _, b = split(model - rule.result())
    np.testing.assert_allclose(b @ a, split(end)[2] @ split(end)[0], atol=1e-6)
    np.testing.assert_allclose(a @ a.T, np.eye(3), atol=1e-6)


def test_huge_factors_end_no_run():
    rule = make_rule("lora-mixed-ranks", "rank=3")
    rule.begin(np.full(37, 3e38, np.float32), SHAPES)
    rule.add("a", 1.0, np.full(37, -3e38, np.float32))
    assert not np.isfinite(rule.result()).all()  # so the server leaves it out


def test_rank_below_one_is_refused():
    with pytest.raises(BadSetting, match="saw rank=0, needed at least 1"):
        make_rule("lora-mixed-ranks", "rank=0")
