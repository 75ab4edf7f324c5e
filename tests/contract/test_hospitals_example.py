"""Test the example of eight hospitals: the slowest, with half of the data, counts in nearly every round."""

from pathlib import Path

import pytest

from examples.hospitals.federation import AWAY, NAMES, RESTARTED, coverage, play
from examples.hospitals.scene import BIG

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = 60


def test_slow_site_counts_while_others_fail(tmp_path: Path):
    seen = play(tmp_path / "hospitals", ROUNDS)
    assert seen.run is not None
    assert seen.run.state == "completed"
    assert seen.last == ROUNDS
    client = {name: client for client, name in seen.names.items()}
    steps = {name: {at: row.counted for at, row in seen.rows[client[name]]} for name in NAMES}
    slow = steps[NAMES[BIG]]
    assert sum(each > 0 for each in slow.values()) > 0.8 * ROUNDS, "partial steps of the slow site count"
    assert sum(slow.values()) < 0.5 * sum(steps["site-1"].values()), "it is not slow"
    missed = {name: ROUNDS - sum(each > 0 for each in own.values()) for name, own in steps.items()}
    assert missed[AWAY] >= 4
    assert steps[AWAY][ROUNDS] > 0, "it is not back"
    assert steps[RESTARTED][ROUNDS] > 0, "it is not back"
    data = [each.row.coverage or 0.0 for each in seen.rounds]
    assert sum(data) / len(data) > 0.85
    assert seen.rounds[-1].row.metrics["accuracy"] > 0.85
    scores = {seen.names[each.client]: each.metrics["accuracy"] for each in seen.scores}
    assert scores[NAMES[BIG]] > 0.85
    assert len(coverage(seen)) == 2
