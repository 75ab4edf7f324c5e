"""Test the groups benchmark: what is planned for whom, ratios of medians, and one real run."""

import math
from dataclasses import replace

import pytest

from benchmarks.grid import Modelled
from benchmarks.groups import ARMS, PLACED, UNEVEN, Measured, Run, clients_of, figures, report, text_lines
from benchmarks.report import Report

EVEN, LINKED = UNEVEN
CALM = Modelled("homogeneous")
PLANNED = ARMS["planned"][0]


PLACEMENT = Report({PLACED: 1.01}, [{"clients": 20}], "", [0])


def made(arm: str, seed: int, seconds: float) -> Measured:
    return Measured(Run(EVEN, arm, ARMS[arm][0], 0.4, seed, 100.0), seconds)


def test_figures_are_ratios_of_medians_over_seeds():
    times = {"sync": (9.0, 10.0, math.inf), "partial": (4.0, 5.0, 6.0), "FedBuff": (8.0,) * 3}
    times |= {"groups": (1.0, 7.0, 8.0), "late": (3.0, 4.0, 9.0), "planned": (6.0, 5.5, 5.0)}
    of = report(
        [made(arm, seed, seconds) for arm, each in times.items() for seed, seconds in enumerate(each)],
        PLACEMENT,
    )
    assert next(iter(of.figures)) == "groups_over_sync", "0.7 is more than asked, so it is printed first"
    assert of.figures["groups_over_sync"] == {EVEN.name: 0.7}
    assert of.figures["planned_over_sync"] == {EVEN.name: 0.55}
    assert of.figures["worst_over_best"] == pytest.approx(1.1)
    assert of.figures["groups_over_best"] == {EVEN.name: 1.4}
    assert of.figures["late_over_best"] == {EVEN.name: 0.8}
    assert of.figures["placement_over_line"] == 1.01
    assert of.seeds == [0, 1, 2]
    assert len(list(text_lines(of))) == 1 + 18


def test_arm_that_never_arrives_has_infinite_ratio():
    seconds = {"sync": math.inf, "partial": 4.0, "FedBuff": math.inf, "groups": math.inf}
    seconds |= {"late": 4.0, "planned": 4.0}
    of = figures([made(arm, 0, each) for arm, each in seconds.items()])
    assert (of["groups_over_best"], of["worst_over_best"]) == ({EVEN.name: math.inf}, 1.0)
    assert of["groups_over_sync"] == {EVEN.name: 1.0}


def test_planned_arm_is_partial_rounds_or_late_updates():
    even, linked = (PLANNED.resolved(clients_of(source, 0)) for source in UNEVEN)
    assert (even.rule, even.partial, even.quorum, even.late) == (None, True, 0.375, False)
    assert (linked.rule, linked.partial, linked.late) == (None, True, True)


def test_groups_are_quicker_than_same_quorum_of_all_clients():
    grouped = ARMS["groups"][0]
    seconds = [
        Run(EVEN, "groups", each, 0.4, 0, 100.0).seconds()
        for each in (grouped, replace(grouped, groups=False))
    ]
    assert seconds[0] < 0.9 * seconds[1] < math.inf


def test_run_is_given_up_after_its_time():
    run = Run(LINKED, "groups", ARMS["groups"][0], 0.4, 0, 8.0)
    assert math.isinf(run.seconds())


def test_run_reaches_target_in_simulated_seconds():
    run = Run(EVEN, "partial", ARMS["partial"][1], 0.4, 0, 40.0)
    assert 2.2 < run.seconds() < 40.0
