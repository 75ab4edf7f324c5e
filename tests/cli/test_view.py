"""What a person is told of local work, and of clients that call themselves as they like."""

from io import StringIO

from rich.console import Console

from fedgc.cli import view
from fedgc.history import ClientRow, RoundRow
from fedgc.store.views import Round


def round_of(
    number: int, outcome: str, *, blocks: int = 0, up: int = 0, down: int = 0, counted: int = 0
) -> Round:
    row = RoundRow(
        round=number, version=0, started=0.0, working_s=1.0, collecting_s=0.5, outcome=outcome,  # type: ignore[arg-type]
        chunks=4, covered=4, short=(), replicas=1, blocks=blocks, needed=2, amplification=None, error=None,
        loss=None, samples=40, skips=0, takes=0, pruned=0, repairs=0, reason="",
    )  # fmt: skip
    return Round(row, 2, counted, counted, up, down, 10)


def cells(table) -> list[list[str]]:
    return [list(column.cells) for column in table.columns]


def test_what_local_work_saved_is_counted_from_its_exchanges():
    rounds = [
        round_of(1, "skipped"),
        round_of(2, "synced", up=3_000, down=1_000, counted=40),
        round_of(3, "skipped"),
        round_of(4, "approximate", up=1_000, down=1_000, counted=37),
    ]
    rows = {
        "a": [(1, ClientRow("a")), (2, ClientRow("a", 32, 32)), (4, ClientRow("a", 35, 35))],
        "b": [(1, ClientRow("b")), (2, ClientRow("b", 8, 8)), (4, ClientRow("b", 5, 5))],
    }
    names, values = cells(view.gate_table(rounds, rows, round_steps=16))
    assert values == ["2 of 4", "6.00 kB", "13"]
    assert "dropping server" in names[2]


def test_a_line_of_a_round_counts_what_the_round_is_made_of():
    assert "4 of 4 local steps counted" in view.round_line(round_of(1, "synced", counted=4))
    assert "4 of 4 finished chunks counted, 2 blocks" in view.round_line(
        round_of(1, "synced", blocks=2, counted=4)
    )
    assert "counted" not in view.round_line(round_of(1, "skipped"))


def test_work_is_counted_in_steps_where_an_exchange_has_no_blocks():
    assert view.unit_of([round_of(1, "skipped")]) == "chunks"
    assert view.unit_of([round_of(1, "synced", blocks=1)]) == "chunks"
    assert view.unit_of([round_of(1, "skipped"), round_of(2, "synced")]) == "local steps"


def test_a_client_may_be_called_anything():
    said = StringIO()
    rows = {"a": [ClientRow("a", 3, 2, failure="[/bold] no disk")], "b": [ClientRow("b")]}
    Console(file=said, width=200).print(view.clients_table(rows, {"a": "[/x]", "b": "[red]b"}))
    assert all(each in said.getvalue() for each in ("[/x]", "[red]b", "[/bold] no disk"))
