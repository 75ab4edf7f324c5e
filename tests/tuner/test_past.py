"""Test client history from rounds: gaps, false claims, and rounds without finished work."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.history import ClientRow, PastRound, RoundRow, Speed, Speeds
from fedgc.tuner import ClientHistory, nothing, recall, robust


def row(*clients: ClientRow, working_s: float = 8.0) -> RoundRow:
    return RoundRow(
        *(1, 0, 0.0, working_s, 0.0, "synced", 4, 4, (), 2, 1, 2, None, None, None, 40, 0, 0, 0, 0, ""),
        clients=clients,
    )


def told(*clients: ClientRow, run: str = "spring", number: int = 1) -> PastRound:
    return PastRound(run, replace(row(*clients), round=number))


def test_client_without_finished_work_is_slow_as_round() -> None:
    quick = ClientRow("a", finished=4, steps=8, step_s=0.5)
    past = recall([told(quick, ClientRow("b"))], ["a", "b"])
    assert past.step_rw.tolist() == [[0.5, 4.0]]


def test_failed_or_absent_client_gives_no_speed() -> None:
    quick = ClientRow("a", finished=4, steps=8, step_s=0.5)
    past = recall([told(quick, ClientRow("b", failure="lost"))], ["a", "b", "c"])
    assert np.isnan(past.step_rw[0, 1:]).all()
    assert past.failed_rw.tolist() == [[False, True, False]]


def test_client_of_which_other_chunks_counted_has_not_failed() -> None:
    seen = ClientRow("a", finished=3, counted=3, steps=6, step_s=0.5, failure="chunk 2 (c2), step 1: damaged")
    past = recall([told(seen, replace(seen, client="b", counted=0))], ["a", "b"])
    assert past.failed_rw.tolist() == [[False, True]]


def test_claim_dropped_by_store_is_counted() -> None:
    past = recall([told(ClientRow("a", finished=3, steps=3, step_s=None))], ["a"])
    assert past.contradictory


def test_client_is_listed_with_its_observed_rounds() -> None:
    seen = ClientRow("a", finished=1, steps=1, step_s=0.5)
    past = recall(
        [
            told(seen, number=8),
            told(ClientRow("b", failure="lost"), number=9),
            told(ClientRow("x", finished=1, steps=1, step_s=1.0), number=10),
            told(seen, ClientRow("b"), run="summer"),
        ],
        ["a", "b"],
    )
    assert past.rounds == 3, "a round of other clients says nothing"
    assert past.seen(0) == {"spring": (8,), "summer": (1,)}
    assert past.seen(1) == {"spring": (9,), "summer": (1,)}


def test_predicted_rounds_give_ratios() -> None:
    seen = ClientRow("a", finished=4, steps=8, step_s=0.5)
    rounds = [replace(told(seen), replay_s=replay_s) for replay_s in (None, 4.0, 16.0)]
    impossible = [replace(each, row=replace(each.row, working_s=0.0)) for each in rounds]
    assert recall([*rounds, *impossible], ["a"]).ratios == (2.0, 0.5)


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_history_with_impossible_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(BadSetting, match="needed finite ones above 0"):
        replace(nothing(["a"]), ratios=(1.0, ratio))


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.nan, math.inf])
def test_impossible_time_is_dropped_and_counted(step_s: float) -> None:
    past = recall([told(ClientRow("a", finished=1, steps=1, step_s=step_s))], ["a"])
    assert past.struck == 1
    assert past.contradictory
    assert np.isnan(past.step_rw).all()


@given(st.lists(st.floats(0.01, 100.0), min_size=3, max_size=9))
def test_single_slow_round_does_not_make_client_slow(times: list[float]) -> None:
    usual = robust(ClientHistory(("a",), np.full((5, 1), 2.0), np.zeros((5, 1), bool)), Speeds()).known["a"]
    with_one = np.vstack([np.full((5, 1), 2.0), [[max(times)]]])
    assert (
        robust(ClientHistory(("a",), with_one, np.zeros((6, 1), bool)), Speeds()).known["a"].step_s
        == usual.step_s
    )


def test_client_without_rounds_keeps_its_history() -> None:
    before = Speeds({"a": Speed("a", 3.0, rounds=7)})
    assert robust(nothing(["a"]), before) == before


def test_history_of_wrong_shape_is_refused() -> None:
    with pytest.raises(BadSetting, match="rounds x clients"):
        ClientHistory(("a", "b"), np.ones((2, 1)), np.zeros((2, 1), bool))
