"""Test the savings of code and gate against the sum over every round and client."""

import pytest

from fedgc.web.savings import plain_bytes, saved
from tests.web.run_of_four import MODEL_BYTES


@pytest.mark.parametrize("most", [1, 3, 240])
def test_savings_are_sum_over_rounds_and_clients(told, most: int):
    rounds = told.rounds("spring")
    plain = sum(2 * MODEL_BYTES for each in rounds for _ in told.client_rows("spring", each.row.round))
    by_gate = by_code = 0
    for each in rounds:
        spared = plain_bytes(each.clients, MODEL_BYTES) - each.up_bytes - each.control_bytes
        by_gate += spared if each.row.outcome == "skipped" else 0
        by_code += spared if each.row.outcome != "skipped" else 0
        by_code -= each.down_bytes  # also of a skipped round: the model of the exchange before it
    found = saved(told.stretches("spring", most), MODEL_BYTES)
    assert found is not None
    assert (found.plain, found.by_code, found.by_gate) == (plain, by_code, by_gate)
    assert found.sent == found.plain - found.by_code - found.by_gate


def test_code_with_more_traffic_has_negative_savings(told):
    found = saved(told.stretches("spring"), 1000)
    assert found is not None
    assert found.by_code < 0


@pytest.mark.parametrize("size", [None, 0])
def test_unknown_model_size_gives_no_savings(told, size):
    assert saved(told.stretches("spring"), size) is None
