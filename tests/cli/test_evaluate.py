"""Test `fedgc evaluate`: its options and its output; a contract test starts a real one."""

import json
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgc.cli import run as running
from fedgc.cli.commands import app
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, EdgeFailed, Unusable
from fedgc.flower.scoring import RESULT
from fedgc.store.database import Store
from fedgc.store.records import Begun
from tests.cli.test_model import CONFIG, apart, models, told  # noqa: F401  fixtures

ANSWER = {
    "version": 2,
    "round": 2,
    "clients": [
        {"client": "aa", "name": "north", "samples": 10, "metrics": {"accuracy": 0.5}},
        {"client": "bb", "name": "south", "samples": 30, "metrics": {"accuracy": 0.9}},
    ],
    "mean": {"accuracy": 0.8},
    "problems": {"west": "it has no function `validate` to score models with"},
}


class Stand:
    """A SuperLink whose server logs an answer."""

    def __init__(self, folder: Path, said: str) -> None:
        self.folder, self.said = folder, said
        self.settings: dict[str, object] = {}

    def submit(self, written: Path) -> int:
        self.settings = tomllib.loads((written / "pyproject.toml").read_text())["tool"]["flwr"]["app"][
            "config"
        ]
        self.log(1).write_text(self.said)
        return 1

    def log(self, run: int) -> Path:
        return self.folder / f"run-{run}.log"

    def running(self, run: int) -> bool:
        return False

    def close(self) -> None:
        pass


@pytest.fixture
def stand(apart: Path, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    def make(said: str = f"INFO :      {RESULT}{json.dumps(ANSWER)}\n") -> Stand:
        made = Stand(apart, said)
        monkeypatch.setattr(running, "named", lambda name, folder: made)
        return made

    return make


def fedgc(*words: str) -> str:
    line = ["evaluate", "r", "--superlink", "ward", *words]
    return CliRunner().invoke(app, line, catch_exceptions=False, env={"COLUMNS": "200"}).stdout


def test_figures_and_mean_are_printed(models, stand):  # noqa: F811
    stand()
    said = fedgc("--version", "2")
    assert "Version 2 of r, round 2" in said
    rows = [line.replace("│", " ").split() for line in said.splitlines()]
    assert ["north", "2", "10", "0.5"] in rows
    assert ["south", "2", "30", "0.9"] in rows
    assert ["mean", "2", "40", "0.8"] in rows
    assert "west: it has no function `validate`" in said
    assert json.loads(fedgc("--version", "2", "--json")) == {"run": "r", **ANSWER}


def test_settings_of_run_and_version_are_sent(models, stand):  # noqa: F811
    sent = stand()
    fedgc()
    assert (sent.settings["resume"], sent.settings["validate.only"]) == ("r", 3)
    assert sent.settings["task"] == CONFIG.task
    fedgc("--version", "1", "--clients", "7")
    assert (sent.settings["validate.only"], sent.settings["min-clients"]) == (1, 7)


def test_reason_of_server_is_error(models, stand):  # noqa: F811
    stand("INFO : begins\nERROR : no client returned figures; west: it was lost\n")
    with pytest.raises(
        EdgeFailed, match="the model was not scored: no client returned figures; west: it was"
    ):
        fedgc()


def test_running_run_and_missing_version_are_refused(models, stand):  # noqa: F811
    stand()
    with pytest.raises(Unusable, match="needed 9"):
        fedgc("--version", "9")
    with Store.open() as store:
        store.write(Begun(time.time(), "r", CONFIG.table()))
    with pytest.raises(Unusable, match="saw it running"):
        fedgc()


def test_masked_run_is_refused(apart: Path, stand):  # noqa: F811
    stand()
    told(apart / "fedgc", RunConfig(secrecy="masked", federation="all.fed"), [np.zeros(3, np.float32)])
    with pytest.raises(BadSetting, match=r"needed open \(no figure of a single site leaves it\)"):
        fedgc()
