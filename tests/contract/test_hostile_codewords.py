"""Test that a codeword that is far too large never enters the sum, over real TLS."""

from pathlib import Path

import numpy as np
import pytest

from fedgc.run.fruitless_waits import MOST_ROUNDS
from tests.contract import crooked
from tests.contract.test_faults import one_machine

pytestmark = pytest.mark.contract

ROUNDS = 8


def test_hostile_codeword_is_replaced_and_its_client_excluded(tmp_path: Path) -> None:
    sink = crooked.Rows()
    driver, rows, _ = crooked.run(
        tmp_path, crooked.straight, sink, lambda vector: vector * np.float32(1e30), rounds=ROUNDS
    )
    assert [row.outcome for row in rows] == ["synced"] * ROUNDS
    np.testing.assert_array_equal(driver.model, ROUNDS * one_machine(tmp_path))
    ((_, hostile, told),) = [each for each in sink.audits if each[0] == "excluded"]
    assert f"in {MOST_ROUNDS} rounds in a row" in told
    assert "its codeword has norm" in told
    assert hostile not in {each.client for row in rows for each in row.clients if each.counted}
