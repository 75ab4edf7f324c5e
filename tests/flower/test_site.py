"""Test sites: a fleet with a server of its own is one client of a consortium."""

from pathlib import Path

import numpy as np

from tests.site_fleet import Fleet


def site(folder: Path, *chunks: int, **settings: object) -> Fleet:
    return Fleet(folder, chunks, {"site_gateway": str(folder), **settings})


def test_site_gives_mean_of_its_fleet(tmp_path: Path) -> None:
    pooled = Fleet(tmp_path / "pooled", [0, 1, 2, 3], {"rounds": 2})
    pooled.run()
    north = site(tmp_path / "north", 0, 1, 2)
    both = Fleet(tmp_path / "both", [north, 3], {"rounds": 2})
    both.run()
    assert [row.outcome for row in both.sink.rows] == ["synced", "synced"]
    assert [row.outcome for row in north.sink.rows] == ["synced", "synced"]
    np.testing.assert_allclose(both.driver.model, pooled.driver.model, atol=2e-5)
