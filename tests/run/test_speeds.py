"""Guessing tomorrow's speed from today's, and knowing when that is no use."""

import math

import numpy as np
import pytest

from fedgc.history import Speed, Speeds
from fedgc.run.speeds import RECENT_ROUNDS, MeasuredSpeeds, shrunk


def told(fleet: dict[str, list[float]], history: Speeds | None = None) -> MeasuredSpeeds:
    pace = MeasuredSpeeds(history or Speeds())
    for client, rounds in fleet.items():
        for step_s in rounds:
            pace.worked(client, step_s)
    return pace


def test_clients_that_stay_as_they_are_keep_their_own_pace():
    pace = told({"a": [0.1] * 4, "b": [0.2] * 4, "c": [0.4] * 4})
    assert pace.step_s() == pytest.approx({"a": 0.1, "b": 0.2, "c": 0.4})


def test_where_every_round_draws_anew_all_get_nearly_the_same():
    rng = np.random.default_rng(0)
    fleet = {f"client {d}": (1.0 + rng.exponential(1.0, 5)).tolist() for d in range(50)}
    plain = [math.exp(np.mean(np.log(rounds))) for rounds in fleet.values()]
    guesses = list(told(fleet).step_s().values())
    assert np.ptp(guesses) < 0.5 * np.ptp(plain)


def test_persistent_and_transient_differences_are_told_apart():
    rng = np.random.default_rng(1)
    fleet = {f"client {d}": (0.1 * (1 + d % 4) * rng.lognormal(0.0, 0.05, 5)).tolist() for d in range(40)}
    guesses = told(fleet).step_s()
    for client, rounds in fleet.items():
        assert guesses[client] == pytest.approx(np.mean(rounds), rel=0.1)


def test_one_round_is_believed_as_it_is():
    assert told({"a": [0.1], "b": [0.4], "c": [0.2]}).step_s() == pytest.approx(
        {"a": 0.1, "b": 0.4, "c": 0.2}
    )


def test_only_the_last_rounds_count():
    pace = told({"a": [9.0] * 20 + [0.1] * RECENT_ROUNDS})
    assert pace.step_s()["a"] == pytest.approx(0.1)


def test_nothing_measured_is_no_guess_and_a_clock_that_stood_still_no_harm():
    assert shrunk({}) == {}
    assert told({"a": [0.0]}).step_s()["a"] > 0


def test_what_this_run_measured_lies_over_the_history():
    history = Speeds({"a": Speed("a", 1.0, failures=0.25, up_bytes_s=7.0), "z": Speed("z", 3.0)})
    pace = told({"a": [0.5], "b": [0.2]}, history)
    pace.sent("b", 100, 2.0)
    pace.received("b", 100, 4.0)
    pace.sent("b", 0, 2.0)
    pace.sent("b", 100, 0.0)
    known = pace.speeds().known
    assert (known["a"].step_s, known["a"].failures, known["a"].up_bytes_s) == (pytest.approx(0.5), 0.25, 7.0)
    assert (known["b"].step_s, known["b"].up_bytes_s) == (pytest.approx(0.2), 50.0)
    assert [known[client].down_bytes_s for client in "abz"] == [None, 25.0, None]
    assert known["z"].step_s == 3.0


def test_an_upload_that_was_given_up_says_how_quick_its_line_is_at_most():
    pace = MeasuredSpeeds(Speeds({"b": Speed("b", 1.0, up_bytes_s=5.0)}))
    pace.delayed("a", 100, 10.0)
    assert pace.up_bytes_s("a") == 10.0
    pace.delayed("a", 100, 5.0)
    pace.delayed("b", 100, 10.0)
    assert (pace.up_bytes_s("a"), pace.up_bytes_s("b")) == (10.0, 5.0), "no slower than is known already"
    for _ in range(RECENT_ROUNDS):
        pace.sent("a", 100, 1.0)
    assert pace.up_bytes_s("a") == 100.0, "it has come since"
