"""Test the pace gate: it keeps any budget, and nothing that clients report changes its decisions."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.gates import GateSettings, Report, Reports, make_gate
from fedgc.gates.pace import Pace

CHECKS = 200
norms = st.lists(st.floats(0, 1e30), min_size=CHECKS, max_size=CHECKS)


def decisions(gate: Pace, squared_norms=None, **costs) -> list[bool]:
    state, decided = gate.init(), []
    for check in range(CHECKS):
        squared = 1.0 if squared_norms is None else squared_norms[check]
        reports = Reports((Report("a", 8, 1, squared, squared),), rounds_left=CHECKS - 1 - check, **costs)
        state, decision = gate.step(json.loads(json.dumps(state)), reports)
        decided.append(decision.sync)
    return decided


@settings(max_examples=20)
@given(squared_norms=norms)
def test_reports_change_no_decision(squared_norms):
    assert decisions(Pace(0.2), squared_norms) == decisions(Pace(0.2))


@given(share=st.floats(0.02, 1))
def test_share_of_checks_is_spent_whole(share):
    assert abs(sum(decisions(Pace(share, max_gap=None))) - share * CHECKS) <= 1


def test_megabytes_are_spent_and_never_exceeded():
    gate = Pace(30.0, max_gap=None, unit="megabytes")
    syncs = sum(decisions(gate, sync_bytes=1_000_000, check_bytes=10_000))
    assert 27 <= syncs <= 28  # two megabytes pay for the checks


def test_gaps_become_shorter_late_in_run():
    at = [check for check, sync in enumerate(decisions(Pace(0.1, max_gap=None))) if sync]
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert sum(gaps[:5]) > 2 * sum(gaps[-5:])
    assert at[-1] == CHECKS - 1


def test_gap_bounds_take_precedence():
    at = [check for check, sync in enumerate(decisions(Pace(0.2, max_gap=7, min_gap=3))) if sync]
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert max(gaps) <= 7
    assert min(gaps) >= 3


def test_budget_that_contradicts_max_gap_is_refused():
    with pytest.raises(
        BadSetting, match=r"gate pace: saw a budget of 0\.1 .* max_gap 5, needed at least 0\.2"
    ):
        make_gate("pace", GateSettings(rounds=CHECKS, budget=0.1, max_gap=5))
