"""Test a user's app: its manifest, and the copy that lists every setting."""

import tomllib
from pathlib import Path

import pytest

from fedgc.config import RunConfig
from fedgc.deploy.app_folder import app_in
from fedgc.errors import Unusable

MANIFEST = """
[project]
name = "ward"
version = "1.0"

[tool.flwr.app.components]
serverapp = "ward.server:app"
clientapp = "ward.client:app"

[tool.flwr.app.config]
rounds = 7
"""


def folder(tmp_path: Path, manifest: str = MANIFEST) -> Path:
    (tmp_path / "ward").mkdir()
    (tmp_path / ".venv").mkdir()
    for name in ("ward/server.py", "ward/data.csv", ".venv/lib.py", "README.md"):
        (tmp_path / name).write_text(name)
    (tmp_path / "pyproject.toml").write_text(manifest)
    return tmp_path


def test_copy_lists_every_setting_and_has_only_code(tmp_path: Path):
    app = app_in(folder(tmp_path))
    assert app is not None
    written = app.write(tmp_path / "copy", {**app.settings, "data.chunks": 5})
    manifest = tomllib.loads((written / "pyproject.toml").read_text())
    assert RunConfig.read(manifest["tool"]["flwr"]["app"]["config"]) == RunConfig(rounds=7, chunks=5)
    assert manifest["project"]["name"] == "ward"
    assert manifest["tool"]["flwr"]["app"]["config"].keys() == RunConfig().table().keys()
    found = {str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()}
    assert found == {"pyproject.toml", "README.md", "ward/server.py"}


def test_declared_bundle_content_is_copied(tmp_path: Path):
    said = MANIFEST.replace(
        "[tool.flwr.app.components]",
        '[tool.flwr.app]\nfab-include = ["ward/*"]\n\n[tool.flwr.app.components]',
    )
    app = app_in(folder(tmp_path, said))
    written = app.write(tmp_path / "copy", {})
    assert {path.name for path in written.rglob("*") if path.is_file()} == {
        "pyproject.toml", "server.py", "data.csv",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "[project]\nname = 'x'\n", "[tool.flwr.app]\npublisher = 'x'\n"])
def test_folder_with_other_files_is_no_app(tmp_path: Path, text: str):
    (tmp_path / "pyproject.toml").write_text(text)
    assert app_in(tmp_path) is None


def test_folder_without_manifest_is_no_app(tmp_path: Path):
    assert app_in(tmp_path) is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("rounds = 7", "round = 7"), "did you mean rounds"),
        (("[project]", "[project"), "cannot be read"),
        (("app.config]", "app.confg]"), "unknown key 'confg'; did you mean config"),
        (
            ("[tool.flwr.app.config]", "[tool.fedgc]\ntask = 3\n[tool.flwr.app.config]"),
            r"\[tool.fedgc.task\]: saw 3",
        ),
    ],
)
def test_manifest_error_is_reported_with_path(tmp_path: Path, change, sentence: str):
    with pytest.raises(Unusable, match=f"pyproject.toml: .*{sentence}"):
        app_in(folder(tmp_path, MANIFEST.replace(*change)))


@pytest.mark.parametrize("text", ["tool = 3", "[tool]\nflwr = 3", "[tool.flwr]\napp = [1]"])
def test_value_in_place_of_table_is_named(tmp_path: Path, text: str):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(Unusable, match=r"pyproject.toml: \[tool.*\]: saw .*, needed a table"):
        app_in(tmp_path)
