"""Test the hospitals' deployments: fedgc is at a target no later than Flower's FedAvg."""

import pytest

from examples.hospitals.deployed import FLOWER, NEEDS, NVFLARE, OURS, Ends, compare

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(900)]

ENDS = Ends(target=0.6, rounds=60, limit_s=300.0)


def test_fedgc_is_not_slower_than_deployed_fedavg():
    found = compare(ENDS, None, print)
    rows = {row["arm"]: row for row in found.rows}
    for arm in (OURS, FLOWER):
        assert not rows[arm]["failed"]
        assert rows[arm]["seconds"] > 0
        assert rows[arm]["start_s"] > 0
    assert rows[OURS]["reached"]
    assert found.figures["deployed_time_over_flower"] <= 1
    assert rows[NVFLARE]["failed"] == NEEDS
    assert found.figures["deployed_time_over_nvflare"] is None
