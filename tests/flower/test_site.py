"""Test sites: a fleet with a server of its own is one client of a consortium."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.site_fleet import Fleet

SECONDS = 30.0


def site(folder: Path, *members: int | Fleet, pace_s: float = 0.0, **settings: object) -> Fleet:
    return Fleet(folder, members, {"site_gateway": str(folder), **settings}, pace_s)


def test_site_in_region_gives_mean_of_all_clients(tmp_path: Path) -> None:
    pooled = Fleet(tmp_path / "pooled", [0, 1, 2, 3], {"rounds": 2})
    pooled.run()
    north = site(tmp_path / "north", 0, 1)
    region = site(tmp_path / "region", north, 2)
    nested = Fleet(tmp_path / "nested", [region, 3], {"rounds": 2})
    nested.run()
    for each in (nested, region, north):
        assert [row.outcome for row in each.sink.rows] == ["synced", "synced"]
    np.testing.assert_allclose(nested.driver.model, pooled.driver.model, atol=2e-5)


@pytest.mark.slow
def test_site_hands_in_partial_rounds_at_deadline(tmp_path: Path) -> None:
    north = site(tmp_path / "north", 0, 1, pace_s=0.2, local_steps=40)
    both = Fleet(tmp_path / "both", [north, 2], {"rounds": 2, "local_steps": 40, "deadline_s": 4.0})
    both.run()
    for row in both.sink.rows:
        assert row.outcome == "synced"
        counted = sorted(client.counted for client in row.clients)
        assert 0 < counted[0] < counted[1] == 40
    assert [row.outcome for row in north.sink.rows] == ["synced", "synced"]


@pytest.mark.slow
def test_returning_gateway_loses_no_round_of_its_site(tmp_path: Path) -> None:
    north = site(tmp_path / "north", 0, 1, pace_s=0.05, local_steps=4)
    settings = {"rounds": 1, "local_steps": 24}
    both = Fleet(tmp_path / "both", [north, 2], settings, pace_s=0.4)
    consortium = threading.Thread(target=both.run)
    consortium.start()
    end = time.monotonic() + SECONDS
    while len(north.saved) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    north.killed.set()
    consortium.join(SECONDS)
    assert sorted(client.counted for client in both.sink.rows[0].clients) == [24, 24]
    steps = [max(c.counted for c in row.clients) for row in north.sink.rows + north.again.sink.rows]
    assert sum(steps[: len(north.saved)]) >= 12
    assert north.again.resume.round + len(north.again.sink.rows) == 6
