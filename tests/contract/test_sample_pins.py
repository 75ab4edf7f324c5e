"""Test that a client counts for the samples that the operator fixed, over real TLS."""

from pathlib import Path

import pytest

from tests.contract import crooked

pytestmark = pytest.mark.contract


def test_pinned_samples_weight_updates_and_mismatch_is_told_once(tmp_path: Path, caplog) -> None:
    _, rows, _ = crooked.run(
        tmp_path, crooked.straight, work="local", samples="0=1000000, nobody=1", quorum=1.0
    )
    assert [row.outcome for row in rows] == ["synced"] * crooked.ROUNDS
    told = [record.getMessage() for record in caplog.records if "aggregation.samples" in record.getMessage()]
    assert told == [
        "round 1: 0 can load 32 samples: its work counts as 1000000 (aggregation.samples)",
        "round 1: aggregation.samples: saw 'nobody', needed a client's name or identity",
    ]
