"""Test the exported rows of a run against the rows of its store."""

import re
from pathlib import Path

import fedgc.export
from fedgc.export.rows import measures, scored_measures, tables
from fedgc.store import parts
from fedgc.store.records import Evaluated, Scored, Seen
from tests.web.run_of_four import NAMES, START


def test_every_client_of_every_round_is_one_row(told, monkeypatch):
    monkeypatch.setattr(parts, "PART", 5)
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


def test_row_values_are_in_their_columns(told):
    for table in tables(told, told.run()):
        for part in table.parts:
            for line in part:
                for column, cell in zip(table.columns, line, strict=True):
                    wanted = (int, float) if column.kind is float else column.kind
                    assert cell is None or isinstance(cell, wanted), column


def test_readme_lists_columns(told):
    readme = Path(fedgc.export.__file__).with_name("README.md").read_text()
    listed = dict(re.findall(r"^\| `(rounds|clients)` \| (.*?) \|$", readme, re.MULTILINE))
    for table in tables(told, told.run()):
        plain = [column.name for column in table.columns if not column.name.startswith("measured_")]
        named = re.findall(r"`(\w+)`", listed[table.name])
        assert [name for name in named if not name.startswith("measured_")] == plain


def test_metrics_omit_unmeasured_values(told):
    told.write(Evaluated(START, "spring", 2, {"accuracy": 0.5}))
    first, second = told.rounds()[:2]
    assert "measured/accuracy" not in measures(first)
    assert measures(second)["measured/accuracy"] == 0.5
    assert measures(first)["train/loss"] == first.row.loss
    assert measures(first)["bytes/up"] == first.up_bytes
    assert "code/error" not in measures(first)


def test_figures_of_clients_are_table_of_their_own(told):
    assert [table.name for table in tables(told, told.run())] == ["rounds", "clients"]
    (one, name), (two, other) = list(NAMES.items())[:2]
    told.write(Evaluated(START, "spring", 0, {"accuracy": 0.1}))
    told.write(Scored(START, "spring", 0, one, 10, {"accuracy": 0.1}))
    told.write(Scored(START, "spring", 2, two, 30, {"accuracy": 0.5, "f1": 0.4}))
    scores = tables(told, told.run())[2]
    (lines,) = scores.parts
    assert [column.name for column in scores.columns][-4:] == [
        "client", "samples", "measured_accuracy", "measured_f1",
    ]  # fmt: skip
    assert lines == [
        ["spring", 0, name, "north", one, 10, 0.1, None],
        ["spring", 2, other, "north", two, 30, 0.5, 0.4],
    ]
    assert scored_measures(told, told.run()) == {
        0: {"measured/accuracy": 0.1, f"clients/accuracy/{name}": 0.1},
        2: {f"clients/accuracy/{other}": 0.5, f"clients/f1/{other}": 0.4},
    }


def test_figures_of_clients_of_one_name_are_all_there(told):
    for client, value in (("aa", 0.1), ("bb", 0.5), ("cc", 0.9)):
        told.write(Seen(START, client, "other" if client == "cc" else "laptop"))
        told.write(Scored(START, "spring", 2, client, 10, {"f1": value}))
    assert scored_measures(told, told.run())[2] == {
        "clients/f1/laptop aa": 0.1, "clients/f1/laptop bb": 0.5, "clients/f1/other": 0.9,
    }  # fmt: skip
