"""Test the benchmark of kills: its figures by hand, and that it counts the steps of processes that end."""

import signal
import sys

import pytest

from benchmarks.kills import Cell, figures, moments
from benchmarks.kills_arms import Fedgc, eventually, lacks

ROWS = [
    {"framework": "fedgc", "signal": "SIGTERM", "kills": 0, "kill_every_s": None, "useful_percent": 99.0},
    {
        "framework": "fedgc",
        "signal": "SIGTERM",
        "kills": 2,
        "kill_every_s": 15.0,
        "useful_percent": 90.0,
        "at_stake": 100,
        "kept": 100,
        "kill_costs_steps": 135.0,
    },
    {
        "framework": "fedgc",
        "signal": "SIGTERM",
        "kills": 2,
        "kill_every_s": 60.0,
        "useful_percent": 98.0,
        "at_stake": 60,
        "kept": 20,
        "kill_costs_steps": 60.0,
    },
    {
        "framework": "torchft",
        "signal": "SIGTERM",
        "kills": 2,
        "kill_every_s": 15.0,
        "useful_percent": 60.0,
        "at_stake": 200,
        "kept": 0,
        "kill_costs_steps": 585.0,
    },
    {"framework": "flower", "skipped": "it is missing"},
]


def test_figures_follow_from_rows():
    found = figures(ROWS)
    assert found["useful_over_torchft"] == {"SIGTERM 15 s": 1.5}
    assert found["useful_over_flower"] == {}
    assert found["kept_percent"] == {"fedgc SIGTERM": 75.0, "torchft SIGTERM": 0.0}
    assert found["kill_costs_steps"] == {"fedgc SIGTERM": 135.0, "torchft SIGTERM": 585.0}


def test_moments_are_within_part():
    cell = Cell(8.0, 50)
    found = list(moments(cell))
    assert found == list(moments(cell))
    assert all(8.0 * at <= after_s <= 8.0 * at + 4.0 for at, (after_s, _) in enumerate(found))
    assert {slot for _, slot in found} == {0, 1, 2, 3}


def test_missing_framework_is_named():
    assert (
        lacks(sys.executable, "no_such_framework")
        == f"no_such_framework cannot be imported by {sys.executable}"
    )
    assert "no-such-python" in lacks("no-such-python", "json")


@pytest.mark.slow
def test_fedgc_keeps_steps_at_sigterm_only():
    with Fedgc() as arm:
        arm.wait()
        arm.exchange()
        asked, killed = arm.kill(0, signal.SIGTERM), arm.kill(1, signal.SIGKILL)
        arm.exchange()
        assert eventually(lambda: asked.kept == asked.at_stake, 10.0)
        assert (asked.at_stake > 0, killed.at_stake > 0, killed.kept) == (True, True, 0)
        arm.wait()
