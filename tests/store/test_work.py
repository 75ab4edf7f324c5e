"""Test what the totals of a run say of discarded work: how much, why and in which rounds."""

import pytest

from fedgc.history import ClientRow
from fedgc.store.views import Round
from fedgc.store.work import AGAIN, AT_END, NOT_IN_SUM, OTHERS, WorkTotals, settled
from tests.web.run_of_four import round_of


def totals_of(*rounds, local: bool = True) -> WorkTotals:
    work = WorkTotals(local=local)
    for row in rounds:
        work.add(row, row.clients)
    return work


@pytest.mark.parametrize(
    ("outcome", "row", "why"),
    [
        ("skipped", ClientRow("aa", 16, 0, 16), AGAIN),
        ("synced", ClientRow("aa", 48, 32, 32), AGAIN),
        ("synced", ClientRow("aa", 16, 0, 16), NOT_IN_SUM),
        ("skipped", ClientRow("aa", 16, 0, 16, failure="no disk"), "no disk"),
        ("stopped", ClientRow("aa", 16, 0, 16), "the round was stopped: every round"),
    ],
    ids=["skipped", "counted in part", "not counted", "failed", "stopped"],
)
def test_discarded_steps_have_reason_of_their_round(outcome: str, row: ClientRow, why: str):
    work = totals_of(round_of(7, outcome, [row]))
    work.close(ended=True)
    assert [(key, each.amount, each.rounds) for key, each in work.discarded.items()] == [
        (("aa", why), 16, [7])
    ]
    own = work.clients["aa"]
    assert (own.rounds, own.finished, own.discarded) == (1, row.finished, 16)


def test_open_steps_are_discarded_only_when_run_has_ended():
    work = totals_of(
        round_of(1, "synced", [ClientRow("aa", 16, 16, 16)]),
        round_of(2, "skipped", [ClientRow("aa", 0, 0, 9)]),
    )
    work.close(ended=False)
    assert (work.clients["aa"].finished, work.at_end) == (16, 0)
    work.close(ended=True)
    assert (work.clients["aa"].finished, work.clients["aa"].discarded, work.at_end) == (25, 9, 9)
    assert work.discarded["aa", AT_END].rounds == [2]


def test_skipped_round_of_coded_work_settles_nothing():
    rows = [
        round_of(1, "skipped", [ClientRow("aa", 8, 0, 32)]),
        round_of(2, "synced", [ClientRow("aa", 8, 6, 32)]),
    ]
    work = totals_of(*rows, local=False)
    work.close(ended=True)
    assert (work.clients["aa"].finished, work.clients["aa"].counted) == (8, 6)
    assert work.discarded["aa", OTHERS].amount == 2
    rounds = [Round(row, 1, row.clients[0].finished, row.clients[0].counted, 0, 0, 0) for row in rows]
    assert settled(rounds, local=False) == (8, 6)
    assert settled(rounds, local=True) == (16, 6)
