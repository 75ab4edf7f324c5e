"""Test the drift gate: it keeps any budget, and drift decides within the budget."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.gates import Report, Reports
from fedgc.gates.budget import rising
from fedgc.gates.drift import Drift, DriftState

CHECKS = 300
MODEL_BYTES = 2_000_000
CHECK_BYTES = 800
STEPS = 16  # local steps from one check to the next

# How fast the clients drift, over the course of a run
COURSES = {
    "steady": lambda at: 1.0,
    "growing": lambda at: 100.0**at,
    "shrinking": lambda at: 0.01**at,
    "jumping": lambda at: 1.0 if at < 0.5 else 30.0,
    "dropping": lambda at: 1.0 if at < 0.5 else 1 / 30,
    "waving": lambda at: math.exp(2 * math.sin(20 * at)),
    "dying": lambda at: 1.0 if at < 0.3 else 0.0,
}


class Clients:
    """Synthetic clients: squared distances that grow as gap ** power, with noise, skew and absences."""

    def __init__(self, course: str, power: float, seed: int, *, noise=0.4, skew=1.0, missing=0.3):
        self.course, self.power, self.noise, self.missing = COURSES[course], power, noise, missing
        self.chance = np.random.default_rng(seed)
        self.speed = np.exp(skew * self.chance.standard_normal(8))

    def report(self, check: int, gap: int) -> tuple[Report, ...]:
        noise = np.exp(self.noise * self.chance.standard_normal(8))
        moved = self.course(check / CHECKS) * self.speed * gap**self.power * noise
        here = self.chance.random(8) >= self.missing
        return tuple(Report(w, gap * STEPS, 10, float(moved[w]), 0.0) for w in range(8) if here[w])


def drive(gate: Drift, clients: Clients, *, end_known: bool = True, through_json: int = -1):
    """Run the gate over all checks; return the gaps of its syncs and the reason of every decision."""
    state, gap, gaps, reasons = gate.init(), 0, [], []
    for check in range(CHECKS):
        gap += 1
        if check == through_json:
            state = json.loads(json.dumps(state, allow_nan=False))
        reports = Reports(
            clients.report(check, gap),
            sync_bytes=MODEL_BYTES,
            sync_seconds=3.0,
            check_bytes=CHECK_BYTES,
            rounds_left=CHECKS - 1 - check if end_known else None,
        )
        state, decision = gate.step(state, reports)
        reasons.append(decision.reason)
        if decision.sync:
            gaps.append(gap)
            gap = 0
    return gaps, reasons


every_course = pytest.mark.parametrize("course", COURSES)
powers = st.sampled_from([0.5, 1.0, 2.0])
seeds = st.integers(0, 2**32 - 1)


@every_course
@settings(max_examples=15)
@given(share=st.floats(0.02, 1), power=powers, seed=seeds)
def test_share_of_checks_is_spent_whole_and_never_exceeded(course, share, power, seed):
    gaps, _ = drive(Drift(share, max_gap=None), Clients(course, power, seed))
    assert share * CHECKS - 1 < len(gaps) <= share * CHECKS + 1e-6


@every_course
@settings(max_examples=10)
@given(megabytes=st.floats(14, 500), power=powers, seed=seeds)
def test_megabyte_budget_includes_checks(course, megabytes, power, seed):
    gaps, _ = drive(Drift(megabytes, None, unit="megabytes"), Clients(course, power, seed))
    spent = (len(gaps) * MODEL_BYTES + CHECKS * CHECK_BYTES) / 1e6
    assert 0.85 * megabytes < spent <= megabytes + 1e-5


@every_course
@settings(max_examples=10)
@given(seconds=st.floats(25, 800), power=powers, seed=seeds)
def test_second_budget_is_kept(course, seconds, power, seed):
    gaps, _ = drive(Drift(seconds, None, unit="seconds"), Clients(course, power, seed))
    assert 0.85 * seconds < len(gaps) * 3.0 <= seconds + 1e-5


@every_course
@settings(max_examples=15)
@given(share=st.floats(0.07, 1), power=powers, seed=seeds)
def test_share_holds_without_known_end(course, share, power, seed):
    gaps, _ = drive(Drift(share, max_gap=None), Clients(course, power, seed), end_known=False)
    assert abs(len(gaps) / (share * CHECKS) - 1) <= 0.15


@pytest.mark.parametrize("course", [name for name in COURSES if name != "dying"])
@pytest.mark.parametrize("seed", range(3))
def test_gate_decides_by_drift_not_pace(course, seed):
    _, reasons = drive(Drift(0.1), Clients(course, 1.0, seed))
    reached = sum("reached" in reason for reason in reasons)
    assert reached > 2 * sum("but the budget pays" in reason for reason in reasons)


def test_rising_drift_brings_sync_forward_and_falling_delays_it():
    def gap_over_the_middle(course: str) -> int:
        gaps, _ = drive(Drift(0.1), Clients(course, 1.0, 0, noise=0.0, missing=0.0))
        return next(gap for gap, end in zip(gaps, np.cumsum(gaps), strict=True) if end > CHECKS / 2)

    steady = gap_over_the_middle("steady")
    assert gap_over_the_middle("jumping") <= steady / 1.5
    assert gap_over_the_middle("dropping") >= steady * 1.5


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_syncs_become_denser_towards_known_end(share):
    gaps, _ = drive(Drift(share, max_gap=None), Clients("steady", 1.0, 0, noise=0.0, missing=0.0))
    early, late = (sum(end <= at * CHECKS for end in np.cumsum(gaps)) for at in (0.5, 1.0))
    assert early < 0.35 * late  # a straight line from nothing leaves a quarter for the first half
    even, _ = drive(Drift(share, None), Clients("steady", 1.0, 0, noise=0.0, missing=0.0), end_known=False)
    assert sum(end <= CHECKS / 2 for end in np.cumsum(even)) > 0.4 * len(even)


@given(share=st.floats(0, 1), checks=st.integers(2, 400))
def test_rising_rate_spends_budget_and_never_falls(share, checks):
    rates: list[float] = []
    for check in range(checks):
        left = max(share * checks - sum(rates), 0.0)
        rates.append(rising((check + 0.5) / checks, min(left / checks, 1 - check / checks)))
    assert sum(rates) == pytest.approx(share * checks, abs=0.5)
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(rates))


def test_least_gap_limits_rising_rate():
    gaps, _ = drive(Drift(0.3, max_gap=None, min_gap=3), Clients("steady", 1.0, 0, noise=0.0, missing=0.0))
    assert len(gaps) > 0.95 * 0.3 * CHECKS
    assert set(gaps[len(gaps) // 2 : -1]) == {3}


@given(scale=st.sampled_from([2.0**-40, 0.5, 4.0, 2.0**60]), seed=seeds)
@settings(max_examples=15)
def test_scale_of_drift_does_not_matter(scale, seed):
    class Scaled(Clients):
        def report(self, check, gap):
            return tuple(
                Report(item.source, item.steps, item.samples, item.squared_norm * scale, item.loss)
                for item in super().report(check, gap)
            )

    assert (
        drive(Drift(0.2), Scaled("waving", 1.0, seed))[0]
        == drive(Drift(0.2), Clients("waving", 1.0, seed))[0]
    )


@given(stop=st.integers(0, CHECKS - 1), seed=seeds)
@settings(max_examples=15)
def test_state_resumes_after_json_round_trip(stop, seed):
    resumed = drive(Drift(0.1), Clients("growing", 1.0, seed), through_json=stop)
    assert resumed == drive(Drift(0.1), Clients("growing", 1.0, seed))


def test_share_of_1_syncs_at_every_check():
    assert drive(Drift(1.0), Clients("steady", 1.0, 0))[0] == [1] * CHECKS


def test_max_gap_holds_even_without_budget():
    gaps, _ = drive(Drift(4.5, max_gap=30, unit="megabytes"), Clients("steady", 1.0, 0))
    assert len(gaps) == 10


@pytest.mark.parametrize("share", [0.001, 0.1])
def test_last_check_syncs_to_keep_work(share):
    gaps, _ = drive(Drift(share, max_gap=None), Clients("steady", 1.0, 0))
    assert sum(gaps) == CHECKS


def mean_drift(*items: Report) -> float:
    """The gate's drift: the lowest threshold without a sync."""
    reports = Reports(items, rounds_left=99)
    _, decision = Drift(0.1).step(DriftState(gap=9, checks=9, spent=0.0, threshold=1e300), reports)
    return float(decision.reason.split()[1])


def test_drift_is_mean_over_working_clients():
    idle, silent = Report("idle", 0, 0, 0.0, 0.0), Report("silent", 9, 9, math.nan, 0.0)
    assert mean_drift(Report("a", 5, 9, 2.0, 0.0), Report("b", 9, 9, 6.0, 0.0), idle, silent) == 4.0


def test_every_decision_has_reason():
    _, reasons = drive(Drift(0.1), Clients("steady", 1.0, 0, noise=0.0, missing=0.0))
    assert reasons[0].endswith("no threshold yet")
    assert any(" is below " in reason for reason in reasons)
    assert any(" reached " in reason for reason in reasons)
    assert "pays for a sync wherever one may be" in reasons[-1]
    _, reasons = drive(Drift(0.1), Clients("waving", 1.0, 0))
    assert any("but the budget only pays for one sync in" in reason for reason in reasons)
    _, reasons = drive(Drift(1.0, max_gap=None, unit="megabytes"), Clients("steady", 1.0, 0))
    assert set(reasons) == {"the budget has no sync to spare"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"budget": 0.0}, "saw a budget of 0.0 \\(share\\), needed above 0"),
        ({"budget": -1.0, "unit": "seconds"}, "saw a budget of -1.0 \\(seconds\\), needed above 0"),
        ({"budget": math.nan, "unit": "megabytes"}, "saw a budget of nan \\(megabytes"),
        ({"budget": math.inf, "unit": "megabytes"}, "saw a budget of inf \\(megabytes"),
        ({"budget": 1.1}, "saw a budget of 1.1 of all checks, needed at most 1"),
        (
            {"budget": 0.5, "unit": "hours"},
            "saw budget unit 'hours', needed one of share, megabytes, seconds",
        ),
        ({"budget": 0.01, "max_gap": 32}, "with max_gap 32, needed at least 0.0312 or max_gap at least 100"),
        ({"budget": 0.5, "min_gap": 3}, "with min_gap 3, needed at most 0.333"),
    ],
)
def test_impossible_budgets_are_refused(asked, says):
    with pytest.raises(BadSetting, match=f"gate drift: .*{says}"):
        Drift(**asked)


@pytest.mark.parametrize(
    ("unit", "reports", "says"),
    [
        (
            "megabytes",
            Reports((), sync_bytes=9),
            "a budget in megabytes needs to know how many checks are left",
        ),
        ("megabytes", Reports((), rounds_left=9), "saw a sync of 0.0 megabytes, needed above 0"),
        ("seconds", Reports((), rounds_left=9), "saw a sync of 0.0 seconds, needed above 0"),
    ],
)
def test_budget_without_prices_or_end_is_refused(unit, reports, says):
    gate = Drift(5.0, unit=unit)
    with pytest.raises(BadSetting, match=f"gate drift: {says}"):
        gate.step(gate.init(), reports)
