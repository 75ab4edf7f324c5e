"""Test when a model counts as collapsed, and which one the run goes back to."""

import math

import pytest

from fedgc.run.collapse import MOST_RETURNS, CollapseWatch

RISING = (0.1, 0.5, 0.7, 0.8, 0.9)


def watched(*values: float, figure: str = "accuracy") -> list[int | None]:
    watch = CollapseWatch()
    return [watch.enter(version, {figure: value}) for version, value in enumerate(values)]


@pytest.mark.parametrize(
    ("value", "back"), [(0.49, 4), (0.51, None), (0.89, None), (math.nan, 4), (math.inf, None)]
)
def test_collapse_is_loss_of_half_of_gain(value: float, back: int | None) -> None:
    assert watched(*RISING, value)[-1] == back


@pytest.mark.parametrize(("value", "back"), [(1.4, 4), (1.2, None), (math.inf, 4)])
def test_collapse_of_loss_is_rise(value: float, back: int | None) -> None:
    assert watched(2.3, 2.0, 1.0, 0.5, 0.3, value, figure="loss")[-1] == back


def test_early_figures_may_fall() -> None:
    assert watched(0.1, 0.3, 0.1) == [None] * 3


def test_returns_to_one_model_are_limited() -> None:
    found = watched(*RISING, *[0.1] * (MOST_RETURNS + 2))
    assert found[5:] == [4] * MOST_RETURNS + [None] * 2


def test_loss_is_followed_before_other_figures() -> None:
    watch = CollapseWatch()
    watch.enter(1, {"accuracy": 0.1, "loss": 2.0})
    assert watch.figure == "loss"
    assert watch.enter(2, {"accuracy": 0.2}) is None


def test_figure_of_unknown_direction_is_not_followed() -> None:
    assert watched(*RISING, 0.1, figure="off") == [None] * 6


def test_figure_of_settings_has_their_direction() -> None:
    watch = CollapseWatch("nll", "lowest")
    found = [watch.enter(version, {"nll": 2.4 - value}) for version, value in enumerate((*RISING, 0.1))]
    assert found == [None] * 5 + [4]
