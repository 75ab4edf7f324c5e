"""Test the JSON log: one line per round, with the fields of the store's row."""

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest

from fedgc.flower.json_lines import Lines, line_of_record
from fedgc.history import ClientRow, RoundRow
from fedgc.store.records import Appended, Audited, Begun, Decided, Ended, Evaluated, Present, Scored, Seen

ROW = RoundRow(
    7, 6, 1.0, 2.0, 0.5, "synced", 8, 8, (), 2, 2, 3, 1.5, None, math.nan, 64, 1, 2, 3, 0, "covered",
    clients=(
        ClientRow("aa", finished=4, counted=3, up_bytes=100),
        ClientRow("bb", finished=2, failure="lost", up_bytes=50),
    ),
)  # fmt: skip
TOLD = [
    Begun(1.0, "may", {"task": "digits"}),
    Seen(1.0, "aa"),
    Audited(1.5, "refused", "bb", "a foreign token", "may"),
    Decided(2.0, "may", 1, "plan", {"replicas": 2, "loads": {"aa": 4}}, "shared out by speed"),
    Present(3.0, "may", {"round": 7}),
    Appended(4.0, "may", ROW),
    Evaluated(5.0, "may", 7, {"accuracy": 0.5, "odd": math.inf}),
    Scored(5.5, "may", 7, "aa", 10, {"accuracy": 0.5}),
    Decided(5.5, "may", 7, "best", {"figure": "accuracy", "version": 7, "round": 7, "value": 0.5}),
    Ended(6.0, "may", "completed"),
]


def test_log_fields_are_written_as_one_line_each(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    lines = Lines(str(path), pytest.fail)
    for record in TOLD:
        lines.tell(record)
    read = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = ["begun", "refused", "plan", "round", "measured", "scored", "best", "ended"]
    assert [line["kind"] for line in read] == kinds
    assert {line["run"] for line in read} == {"may"}
    assert (read[5]["client"], read[5]["samples"], read[5]["metrics"]) == ("aa", 10, {"accuracy": 0.5})
    assert read[0]["at"] == "1970-01-01T00:00:01.000+00:00"


def test_round_has_row_fields_and_client_sums():
    line = json.loads(line_of_record(Appended(4.0, "may", ROW)) or "")
    for each in fields(RoundRow):
        if each.name not in ("clients", "metrics", "short", "loss"):
            assert line[each.name] == getattr(ROW, each.name)
    assert (line["clients"], line["finished"], line["counted"], line["up_bytes"]) == (2, 6, 3, 150)
    assert line["failures"] == {"bb": "lost"}
    assert line["loss"] is None  # not a number


def test_logged_plan_omits_per_client_details():
    line = json.loads(line_of_record(TOLD[3]) or "")
    assert (line["replicas"], line["reason"]) == (2, "shared out by speed")
    assert "loads" not in line


def test_unwritable_log_warns_once_and_does_not_stop_run(tmp_path: Path):
    warnings: list[str] = []
    lines = Lines(str(tmp_path / "none" / "run.jsonl"), warnings.append)
    for record in TOLD:
        lines.tell(record)
    assert len(warnings) == 1
    assert "No such file or directory" in warnings[0]


def test_no_log_is_written_without_file_name(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Lines("", pytest.fail).tell(TOLD[0])
    assert list(tmp_path.iterdir()) == []
