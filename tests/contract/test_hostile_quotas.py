"""Test that a client that floods the server is excluded, over real TLS, and the others' rounds continue."""

from pathlib import Path

import numpy as np
import pytest

from tests.contract import crooked
from tests.contract.test_faults import one_machine

pytestmark = pytest.mark.contract

ROUNDS = 200  # more than fit into the time of a flood until it is noticed


@pytest.mark.slow  # quick tests exclude a client by its lines without processes
def test_hostile_flood_excludes_client_and_rounds_continue(tmp_path: Path, caplog) -> None:
    sink = crooked.Rows()
    driver, rows, _ = crooked.run(tmp_path, crooked.flood_of_pings, sink, rounds=ROUNDS, lines_per_s=200.0)
    assert [row.outcome for row in rows] == ["synced"] * ROUNDS
    assert len(rows[-1].clients) == 2, "the hostile client is out of the plan"
    np.testing.assert_array_equal(driver.model, ROUNDS * one_machine(tmp_path))
    ((_, hostile, told),) = [each for each in sink.audits if each[0] == "excluded"]
    assert told == "excluded for 5 s: it sent more than 200 lines a second, and more than 2000 at once"
    assert hostile not in {client.client for client in rows[-1].clients}
    lines = [record.getMessage() for record in caplog.records if "is excluded" in record.getMessage()]
    assert lines == [f"client 0 ({hostile}) is {told}"]


def test_hostile_repeats_within_limits_exclude_no_client(tmp_path: Path) -> None:
    sink = crooked.Rows()
    driver, rows, _ = crooked.run(tmp_path, crooked.lines_twice, sink)
    assert [row.outcome for row in rows] == ["synced"] * crooked.ROUNDS
    assert not [each for each in sink.audits if each[0] == "excluded"]
    np.testing.assert_array_equal(driver.model, crooked.ROUNDS * one_machine(tmp_path))
