"""Test that a client for which several rounds waited without result is excluded."""

from dataclasses import fields, replace

import pytest

from fedgc.history import ClientRow, RoundRow
from fedgc.run.fruitless_waits import LEAST_BYTES_S, LEAST_S, MOST_ROUNDS, FruitlessWaits

ZERO = {each.name: 0 for each in fields(RoundRow)}
MUTE, HONEST = ClientRow("mute", failure="no progress for 30 s"), ClientRow("honest", counted=3)


def row(mute: ClientRow = MUTE, seconds: float = 30.0) -> RoundRow:
    return RoundRow(**{**ZERO, "working_s": seconds, "outcome": "approximate", "clients": (mute, HONEST)})


def test_client_is_excluded_after_several_rounds_in_succession():
    waits = FruitlessWaits()
    found = [waits.excluded(row(), {"mute", "honest"}) for _ in range(MOST_ROUNDS)]
    why = "in 3 rounds in a row the others waited for it, and it gave nothing (no progress for 30 s)"
    assert found == [{}, {}, {"mute": why}]
    assert [waits.excluded(row(), {"mute"}) for _ in range(MOST_ROUNDS)] == [{}, {}, {"mute": why}]


@pytest.mark.parametrize(
    "between",
    [
        (row(), set()),
        (row(replace(MUTE, counted=1)), {"mute"}),
        (row(replace(MUTE, up_bytes=int(30 * LEAST_BYTES_S))), {"mute"}),
        (replace(row(), clients=(HONEST,)), set()),
    ],
    ids=["not awaited", "counted", "sends", "absent"],
)
def test_rounds_that_did_not_wait_begin_count_again(between):
    waits = FruitlessWaits()
    for _ in range(MOST_ROUNDS - 1):
        assert not waits.excluded(row(), {"mute"})
    absent = "mute" not in {each.client for each in between[0].clients}
    assert not waits.excluded(*between)
    found = [waits.excluded(row(), {"mute"}) for _ in range(MOST_ROUNDS)]
    assert [bool(each) for each in found] == ([True, False, False] if absent else [False, False, True])


def test_short_rounds_exclude_only_after_least_time():
    waits = FruitlessWaits()
    found = [waits.excluded(row(seconds=10.0), {"mute"}) for _ in range(int(LEAST_S / 10))]
    assert [bool(each) for each in found] == [False] * (len(found) - 1) + [True]


WORKED = ClientRow("mute", finished=16, failure="sent nothing within 2 s")


def test_client_that_reports_work_is_excluded_after_short_rounds():
    waits = FruitlessWaits()
    found = [waits.excluded(row(WORKED, seconds=0.1), {"mute"}) for _ in range(MOST_ROUNDS)]
    why = "in 3 rounds in a row the others waited for it, and it gave nothing (sent nothing within 2 s)"
    assert found == [{}, {}, {"mute": why}]


def test_excluded_client_that_gives_nothing_again_has_one_round():
    waits = FruitlessWaits()
    for _ in range(MOST_ROUNDS):
        waits.excluded(row(WORKED), {"mute"})
    why = "a round waited for it again, and it gave nothing (sent nothing within 2 s)"
    assert waits.excluded(row(WORKED), {"mute"}) == {"mute": why}
    waits.excluded(row(replace(WORKED, counted=16)), set())
    assert not waits.excluded(row(WORKED), {"mute"}), "it has given something since"


def test_bytes_that_were_refused_are_nothing_given():
    waits, sent = FruitlessWaits(), replace(WORKED, up_bytes=10**9, refused=1)
    assert [bool(waits.excluded(row(sent), {"mute"})) for _ in range(MOST_ROUNDS)] == [False, False, True]
