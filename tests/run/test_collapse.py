"""Test when a model counts as collapsed, and which one the run goes back to."""

import math
from collections.abc import Sequence

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


FIDS = (300.0, 250.0, 200.0, 150.0, 100.0, 80.0, 60.0, 50.0)
GAN_LOSSES = (1.4, 0.9, 0.5, 0.3, 0.6, 0.8, 1.0, 1.1)
STEADY = (0.1, 0.5, 0.7, 0.8, 0.9, 0.9, 0.9, 0.9)


@pytest.mark.parametrize(
    "figures",
    [
        {"d_loss": GAN_LOSSES, "fid": FIDS},
        {"d_loss": GAN_LOSSES, "g_loss": [-each for each in GAN_LOSSES]},
        {"packet_loss": (9.0, 5.0, 3.0, 2.0, 1.0, 6.0, 7.0, 8.0), "accuracy": STEADY},
        {"val_loss": (2.3, 1.0, 0.5, 0.4, 0.6, 1.4, 1.6, 1.8), "accuracy": STEADY},
    ],
)
def test_figure_alone_is_no_collapse_while_others_are_good(figures: dict[str, Sequence[float]]) -> None:
    watch = CollapseWatch()
    rounds = [dict(zip(figures, values, strict=True)) for values in zip(*figures.values(), strict=True)]
    assert [watch.enter(version, each) for version, each in enumerate(rounds)] == [None] * 8


@pytest.mark.parametrize("other", ["f1", "own", "l2_loss", "seconds"])
def test_collapse_is_loss_of_all_figures_that_had_gained(other: str) -> None:
    watch, others = CollapseWatch(), {"f1": 0.9, "own": 3.0, "l2_loss": -0.1, "seconds": 1.0}
    for version, accuracy in enumerate(RISING):
        figures = {"loss": 2.0 - accuracy, "accuracy": accuracy, other: accuracy * others[other]}
        assert watch.enter(version, figures) is None
    assert watch.enter(5, {"loss": 1.8, "accuracy": 0.15, other: 0.2 * others[other]}) == 4


def test_figure_of_settings_is_followed_alone() -> None:
    watch = CollapseWatch("val_loss")
    losses = (2.3, 2.0, 1.0, 0.5, 0.3, 1.4)
    found = [
        watch.enter(version, {"val_loss": each, "accuracy": version}) for version, each in enumerate(losses)
    ]
    assert found == [None] * 5 + [4]
