"""Test `fedgc report` on a store with a run of four clients."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.errors import Unusable
from fedgc.store.database import Store
from tests.web.run_of_four import NAMES, tell_a_run


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
