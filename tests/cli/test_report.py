"""Test `fedgc report` on a store with a run of four clients."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.cli.follow import Follower, print_tables
from fedgc.config import RunConfig
from fedgc.errors import Unusable
from fedgc.history import ClientRow
from fedgc.store.database import Store
from fedgc.store.records import Appended, Begun, Ended
from tests.web.run_of_four import NAMES, START, round_of, tell_a_run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    with Store.open() as opened:
        tell_a_run(opened)


def fedgc(*words: str) -> str:
    return CliRunner().invoke(app, list(words), catch_exceptions=False).stdout


def test_report_command_writes_page_and_prints_figures(store, tmp_path: Path):
    path = tmp_path / "report.html"
    said = json.loads(fedgc("report", "latest", "--html", str(path), "--json"))
    assert set(said) == {"figures", "rows", "machine"}
    assert said["figures"]["run"] == "spring"
    assert said["figures"]["lost"] == sum(row["lost"] for row in said["rows"]) == 11
    assert {row["name"] for row in said["rows"]} == set(NAMES.values())
    assert said["figures"]["measures"]["accuracy"] == 1 - 1 / 12, "all digits"
    assert path.read_text().startswith("<!doctype html>")
    assert path.stat().st_mode & 0o777 == 0o600, "it has figures of single clients"
    assert fedgc("report", "spring", "--html", str(path)) == f"{path}\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("latest",), "saw neither --html FILE nor --json"),
        (("latest", "--html", "/none/report.html"), "saw no folder /none"),
        (("autumn", "--json"), "saw no run 'autumn'"),
    ],
    ids=["no form", "no folder", "no run"],
)
def test_report_command_refuses_bad_input(store, words, sentence: str):
    with pytest.raises(Unusable, match=sentence):
        fedgc("report", *words)


def test_tables_of_terminal_and_report_agree_on_discarded_work(tmp_path: Path, monkeypatch):
    """A script is killed, a client is lost, one begins anew, and steps follow the last exchange."""
    killed = "the script ended: killed by SIGKILL"
    rounds = [
        ("synced", [ClientRow("aa", 40, 40, 40), ClientRow("bb", 40, 0, 40, failure=killed)]),
        ("skipped", [ClientRow("aa", 7, 0, 40), ClientRow("bb", 48, 0, 48, failure="lost")]),
        ("synced", [ClientRow("aa", 73, 73, 40), ClientRow("bb", 16, 16, 16)]),
        ("skipped", [ClientRow("aa", 0, 0, 9)]),
    ]
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    out = io.StringIO()
    with Store.open() as opened:
        opened.write(Begun(START, "r", RunConfig(work="local").table()))
        for number, (outcome, rows) in enumerate(rounds, start=1):
            opened.write(Appended(START + number, "r", round_of(number, outcome, rows)))
        opened.write(Ended(START + 9, "r", "stopped"))
        print_tables(Console(file=out, width=120), Follower(opened, "r").whole(), 9.0)
    said = json.loads(fedgc("report", "r", "--json"))
    figures, clients = said["figures"], {row["client"]: row for row in said["rows"]}
    assert (figures["finished"], figures["counted"], figures["lost"]) == (233, 129, 104)
    assert sum(each["amount"] for each in figures["lost_by_reason"]) == 104
    assert "129 of 233 local steps done" in out.getvalue()
    assert f"{104 / 233:.1%}" in out.getvalue()
    names = ("rounds", "finished", "counted", "lost")
    for client, row in clients.items():
        shown = next(line for line in out.getvalue().splitlines() if line.startswith(f"│ {client} "))
        assert [int(each) for each in re.findall(r"│ +(\d+) ", shown)[:4]] == [row[name] for name in names]
