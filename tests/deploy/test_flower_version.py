"""Test the supported range of flwr: one source, and the values derived from it."""

import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from fedgc.cli.new_app import write_new
from fedgc.config import RunConfig
from fedgc.deploy import flower_version
from fedgc.deploy.local_federation import write_app

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BOUND = re.compile(r"flwr\s*[<>=~!]=?\s*\d")


def test_version_range_comes_from_project_file():
    assert flower_version.supported() in PROJECT["dependencies"]


def test_installed_flower_is_supported():
    assert flower_version.supports(version("flwr"))


@pytest.mark.parametrize(
    ("seen", "supported"),
    [("1.40.0", False), ("1.41.0", True), ("1.42.0", True), ("1.43.0", False), ("2.0", False)],
)
def test_version_range_has_bounds(seen, supported):
    assert flower_version.supports(seen) is supported


def test_version_range_is_stated_in_one_file():
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.toml", "*.md", "*.yaml", "Makefile", "docker/*Dockerfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    stating = {name for name in listed if (ROOT / name).exists() and BOUND.search((ROOT / name).read_text())}
    stating -= {"pyproject.toml", str(Path(__file__).relative_to(ROOT)), "CHANGELOG.md"}
    assert {name for name in stating if not name.startswith("tests/")} == set()


def test_written_apps_require_version_range(tmp_path):
    write_new(tmp_path / "ward")
    write_app(tmp_path / "app", RunConfig(work="coded").table())
    for folder in ("ward", "app"):
        project = tomllib.loads((tmp_path / folder / "pyproject.toml").read_text())["project"]
        assert flower_version.supported() in project["dependencies"]
