"""The lines of a run, against its rows one by one."""

from hypothesis import given
from hypothesis import strategies as st

from fedgc.export import rows
from fedgc.export.rows import measures, spans, tables
from fedgc.store.records import Evaluated
from tests.web.run_of_four import NAMES, START, round_of


class Sized:
    """A round of which only the number and the count of clients are asked."""

    def __init__(self, number: int, clients: int) -> None:
        self.row = round_of(number, clients=())
        self.clients = clients


@given(st.lists(st.integers(0, 70_000), max_size=30))
def test_parts_hold_whole_rounds_in_order_and_no_more_than_fit(counts: list[int]):
    rounds = [Sized(number, clients) for number, clients in enumerate(counts, start=1)]
    found = list(spans(rounds))
    assert [number for first, last in found for number in range(first, last + 1)] == [
        each.row.round for each in rounds
    ]
    for first, last in found:
        assert first == last or sum(counts[first - 1 : last]) <= rows.PART


def test_every_client_in_every_round_is_one_line(told, monkeypatch):
    monkeypatch.setattr(rows, "PART", 5)
    rounds, clients = tables(told, told.run())
    lines = [
        dict(zip([one.name for one in clients.columns], line, strict=True))
        for part in clients.parts
        for line in part
    ]
    expected = [
        (each.row.round, row, NAMES[row.client])
        for each in told.rounds()
        for row in told.client_rows("spring", each.row.round)
    ]
    assert [
        (line["round"], line["client"], line["name"], line["step_s"], line["failure"]) for line in lines
    ] == [(number, row.client, name, row.step_s, row.failure) for number, row, name in expected]
    (part,) = rounds.parts
    assert [line[1] for line in part] == [each.row.round for each in told.rounds()]


def test_a_line_has_what_stands_in_its_column(told):
    for table in tables(told, told.run()):
        for part in table.parts:
            for line in part:
                for column, cell in zip(table.columns, line, strict=True):
                    wanted = (int, float) if column.kind is float else column.kind
                    assert cell is None or isinstance(cell, wanted), column


def test_measures_leave_out_what_was_not_measured(told):
    told.write(Evaluated(START, "spring", 2, {"accuracy": 0.5}))
    first, second = told.rounds()[:2]
    assert "measured/accuracy" not in measures(first)
    assert measures(second)["measured/accuracy"] == 0.5
    assert measures(first)["train/loss"] == first.row.loss
    assert measures(first)["bytes/up"] == first.up_bytes
    assert "code/error" not in measures(first)
