"""Test how much better one model is than another, by its figures."""

import math

import pytest

from fedgc.run.outlier_gain import gain_of


@pytest.mark.parametrize(
    ("figures", "others", "gain"),
    [
        ({"loss": 0.5}, {"loss": 0.75}, 0.25),
        ({"loss": 0.5}, {"loss": 0.25}, -0.25),
        ({"accuracy": 0.75}, {"accuracy": 0.5}, 0.25),
        ({"accuracy": 0.75, "loss": 0.5}, {"accuracy": 0.5, "loss": 1.0}, 0.5),
        ({"accuracy": 0.75, "loss": math.nan}, {"accuracy": 0.5, "loss": 1.0}, -2.0),
        ({"accuracy": 0.75, "loss": math.nan}, {"accuracy": 0.5, "loss": math.inf}, 0.25),
        ({"aux_loss": 0.5, "loss": 1.0, "mae": 2.0}, {"aux_loss": 1.0, "loss": 0.5, "mae": 4.0}, -0.5),
        ({"kl_loss": 0.5, "mse": 1.0}, {"kl_loss": 1.0, "mse": 0.5}, -0.5),
        ({"accuracy": 0.75, "loss": 1.0}, {"accuracy": 0.5}, 0.25),
        ({"loss": 0.5}, {"loss": math.inf}, 1.5),
        ({"loss": math.nan}, {"loss": math.inf}, None),
        ({"parameters": 5.0}, {"parameters": 4.0}, None),
        ({}, {}, None),
    ],
)
def test_gain_is_by_error_or_else_by_another_figure(figures, others, gain) -> None:
    assert gain_of(figures, others) == gain
