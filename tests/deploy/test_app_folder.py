"""Test a user's app: its manifest, and the copy that lists every setting."""

import os
import tomllib
from pathlib import Path

import pytest

from fedgc.config import RunConfig
from fedgc.deploy.app_folder import app_in
from fedgc.errors import Unusable
from fedgc.flower.app_bundle import bundle_of
from fedgc.policy.digests import app_digest, files_in_bundle

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


FILES = (
    "ward/__init__.py", "ward/server.py", "ward/conf.yaml", "ward/labels.json", "ward/secrets.py",
    "ward/data.csv", "ward/data/big.json", "ward/test_it.py", ".venv/lib.py", "venv/lib.py", "README.md",
    "LICENSE",
)  # fmt: skip


def folder(tmp_path: Path, manifest: str = MANIFEST) -> Path:
    for name in FILES:
        (tmp_path / "ward-app" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ward-app" / name).write_text(name)
    (tmp_path / "ward-app" / "pyproject.toml").write_text(manifest)
    return tmp_path / "ward-app"


def with_app_keys(keys: str) -> str:
    heading = "[tool.flwr.app.components]"
    return MANIFEST.replace(heading, f'[tool.flwr.app]\npublisher = "me"\n{keys}\n{heading}')


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_copy_lists_every_setting(tmp_path: Path):
    app = app_in(folder(tmp_path))
    assert app is not None
    written = app.write(tmp_path / "copy", {**app.settings, "data.chunks": 5})
    manifest = tomllib.loads((written / "pyproject.toml").read_text())
    assert RunConfig.read(manifest["tool"]["flwr"]["app"]["config"]) == RunConfig(rounds=7, chunks=5)
    assert manifest["project"]["name"] == "ward"
    assert manifest["tool"]["flwr"]["app"]["config"].keys() == RunConfig().table().keys()


@pytest.mark.parametrize(
    "keys",
    [
        "",
        'fab-include = ["/ward/**/*.py", "ward/conf.yaml"]',
        'fab-include = ["ward/*.py", "LICENSE"]',
        'fab-include = ["*.py"]\nfab-exclude = ["ward/server.py"]',
        'fab-include = ["**/*.json", "*.py"]\nfab-exclude = ["ward/data/*.json"]',
    ],
)
def test_copy_is_bundled_as_app_is(tmp_path: Path, keys: str):
    place = folder(tmp_path, with_app_keys(keys))
    (place / ".gitignore").write_text("secrets.py\n*.log\n")
    (place / "ward" / "linked.py").symlink_to(place / "ward" / "server.py")
    (place / "linked").symlink_to(place / "ward", target_is_directory=True)
    app = app_in(place)
    assert app is not None
    written = app.write(tmp_path / "copy", {})
    asked, sent = (files_in_bundle(bundle_of(each)) for each in (place, written))
    code = [{name: asked[name] for name in asked if name.startswith("ward/")} for asked in (asked, sent)]
    assert "ward/__init__.py" in code[0] == code[1]
    assert asked.keys() == sent.keys()
    assert names_in(written) == {name for name in sent if not name.startswith(".info/")}
    assert app_digest(asked) == app_digest(sent)
    assert "ward/secrets.py" not in sent


def make_unreadable(folder: Path) -> None:
    """Make folders in it whose paths are longer than the system reads, for any user."""
    place = os.open(folder, os.O_RDONLY)
    for _ in range(17):
        os.mkdir("d" * 255, dir_fd=place)
        outer, place = place, os.open("d" * 255, os.O_RDONLY, dir_fd=place)
        os.close(outer)
    os.close(place)


def test_folder_that_cannot_be_read_is_passed_over(tmp_path: Path):
    app = app_in(place := folder(tmp_path, with_app_keys("")))
    assert app is not None
    files, sent = app.files(), files_in_bundle(bundle_of(place))
    make_unreadable(place)
    assert app.files() == files
    assert files_in_bundle(bundle_of(place)) == sent


def test_script_travels_with_its_neighbours_only(tmp_path: Path):
    place = folder(tmp_path, with_app_keys('fab-include = ["LICENSE"]\nfab-exclude = ["ward/server.py"]'))
    (place / ".gitignore").write_text("secrets.py\n")
    (place / "task.fedgc.json").write_text("{}")
    app = app_in(place)
    assert app is not None
    written = app.write(tmp_path / "copy", {}, "ward/__init__.py")
    assert names_in(written) == {"LICENSE", "pyproject.toml", "task.fedgc.json", "ward/__init__.py"}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ('fab-include = ["wrad/*.py"]', 'did not match any files: "wrad/'),
        ('fab-include = ["ward/*.py", ".gitignore"]', "removed by .* constraints.* - .gitignore"),
        ('fab-exclude = "x"', "fab-exclude"),
    ],
)
def test_pattern_that_flower_refuses_is_refused(tmp_path: Path, keys: str, sentence: str):
    place = folder(tmp_path, with_app_keys(keys))
    (place / ".gitignore").touch()
    app = app_in(place)
    assert app is not None
    with pytest.raises(Unusable, match=rf"ward-app: Flower cannot bundle this app: .*{sentence}"):
        app.write(tmp_path / "copy", {})


def test_settings_without_app_are_taken(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text(
        "[tool.flwr.app.config]\nrounds = 7\n[tool.fedgc.task]\nwidth = 8\n"
    )
    app = app_in(tmp_path)
    assert app is not None
    assert (app.is_whole, app.settings) == (False, {"rounds": 7, "task.width": 8})


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
        (("serverapp", "serverap"), r"components\]: saw serverap, clientapp, needed serverapp and clientapp"),
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
