"""Test where a strategy without a context of Flower finds the name of its run."""

import tomllib
from pathlib import Path

import pytest

from fedgc.flower.app_config import submitted_name

MANIFEST = '[tool.flwr.app.config]\nrounds = 3\nrun = "ward-7"\n'


def test_run_is_named_by_app_and_by_overrides(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text(MANIFEST)
    folders = [str(tmp_path / "none"), "", str(tmp_path)]
    assert submitted_name("run", {}, folders) == "ward-7"
    assert submitted_name("run", {"run": "other"}, folders) == "other"


@pytest.mark.parametrize("text", ["", "[", "[tool]\nflwr = 3", '[tool.flwr.app.config]\nrun = "a/b c"'])
def test_app_without_usable_name_gives_none(tmp_path: Path, text: str):
    (tmp_path / "pyproject.toml").write_text(text)
    assert submitted_name("run", {}, [str(tmp_path)]) == ""


@pytest.mark.parametrize("value", ["true", "false", "7", "0.5"])
def test_value_that_is_no_text_is_no_name(tmp_path: Path, value: str):
    (tmp_path / "pyproject.toml").write_text(f"[tool.flwr.app.config]\nresume = {value}\n")
    assert submitted_name("resume", {}, [str(tmp_path)]) == ""
    assert submitted_name("resume", {"resume": tomllib.loads(f"v = {value}")["v"]}, []) == ""
