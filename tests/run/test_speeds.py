"""Test speed estimates from earlier rounds, and the detection of unpredictable speeds."""

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


def test_stable_clients_keep_own_pace():
    pace = told({"a": [0.1] * 4, "b": [0.2] * 4, "c": [0.4] * 4})
    assert pace.step_s() == pytest.approx({"a": 0.1, "b": 0.2, "c": 0.4})


def test_redrawn_speeds_give_nearly_equal_estimates():
    rng = np.random.default_rng(0)
    fleet = {f"client {d}": (1.0 + rng.exponential(1.0, 5)).tolist() for d in range(50)}
    plain = [math.exp(np.mean(np.log(rounds))) for rounds in fleet.values()]
    guesses = list(told(fleet).step_s().values())
    assert np.ptp(guesses) < 0.5 * np.ptp(plain)


def test_persistent_and_transient_differences_are_separated():
    rng = np.random.default_rng(1)
    fleet = {f"client {d}": (0.1 * (1 + d % 4) * rng.lognormal(0.0, 0.05, 5)).tolist() for d in range(40)}
    guesses = told(fleet).step_s()
    for client, rounds in fleet.items():
        assert guesses[client] == pytest.approx(np.mean(rounds), rel=0.1)


def test_single_round_is_taken_at_face_value():
    assert told({"a": [0.1], "b": [0.4], "c": [0.2]}).step_s() == pytest.approx(
        {"a": 0.1, "b": 0.4, "c": 0.2}
    )


def test_only_recent_rounds_count():
    pace = told({"a": [9.0] * 20 + [0.1] * RECENT_ROUNDS})
    assert pace.step_s()["a"] == pytest.approx(0.1)


def test_missing_measurement_and_stopped_clock_are_harmless():
    assert shrunk({}) == {}
    assert told({"a": [0.0]}).step_s()["a"] > 0


def test_measurements_of_this_run_override_history():
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


def test_abandoned_upload_bounds_uplink_speed():
    pace = MeasuredSpeeds(Speeds({"b": Speed("b", 1.0, up_bytes_s=5.0)}))
    pace.delayed("a", 100, 10.0)
    assert pace.up_bytes_s("a") == 10.0
    pace.delayed("a", 100, 5.0)
    pace.delayed("b", 100, 10.0)
    assert (pace.up_bytes_s("a"), pace.up_bytes_s("b")) == (10.0, 5.0), "no slower than is known already"
    for _ in range(RECENT_ROUNDS):
        pace.sent("a", 100, 1.0)
    assert pace.up_bytes_s("a") == 100.0, "it has come since"


def test_transfer_in_no_time_gives_finite_speed() -> None:
    measured = MeasuredSpeeds(Speeds())
    measured.worked("a", 0.1)
    measured.sent("a", 10**15, 5e-324)
    measured.received("a", 10**15, 5e-324)
    speed = measured.speeds().known["a"]
    assert 0 < speed.up_bytes_s < 1e30
    assert 0 < speed.down_bytes_s < 1e30
