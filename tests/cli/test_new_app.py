"""Test the app written by `fedgc new` without running it; the README's commands run it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedgc.cli.new_app import package_of, write_new
from fedgc.config import RunConfig
from fedgc.deploy.app_folder import app_in
from fedgc.errors import EdgeFailed, Unusable


@pytest.fixture
def app(tmp_path: Path) -> Path:
    write_new(tmp_path / "Ward-3")
    return tmp_path / "Ward-3"


def test_new_app_has_known_settings_and_names_its_task(app: Path):
    found = app_in(app)
    assert found is not None
    assert RunConfig.read(found.settings).task == "ward_3.task:task"


def test_generated_files_are_valid_python_without_placeholders(app: Path):
    for path in app.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert "PACKAGE" not in text
            assert "NAME" not in text
            if path.suffix == ".py":
                ast.parse(text)


def would_make(app: Path) -> str:
    """Return the commands of `make test` in the app, even if these tests run under `make`."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", "-n", "test"], cwd=app, env=outside, capture_output=True, text=True, timeout=60
    ).stdout


def test_makefile_uses_creating_interpreter_which_git_ignores(app: Path):
    assert would_make(app).startswith(f'"{sys.executable}" -m unittest')
    (app / ".python").unlink()
    assert would_make(app).startswith('"python3" -m unittest')
    assert ".python" in (app / ".gitignore").read_text().split()


def test_printed_commands_work_for_any_folder_name(tmp_path: Path, capsys):
    folder = tmp_path / "two words, it's" / "ward"
    write_new(folder)
    typed = capsys.readouterr().out.split("`")[1].removesuffix(" && make test")
    said = subprocess.run(["sh", "-c", f"{typed} && pwd"], capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == str(folder)


def test_empty_folder_is_accepted_and_full_folder_unchanged(tmp_path: Path):
    (tmp_path / "ward").mkdir()
    write_new(tmp_path / "ward")
    with pytest.raises(Unusable, match="saw something there"):
        write_new(tmp_path / "ward")


def test_unwritable_folder_gives_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EdgeFailed, match=r"cannot be written: Not a directory"):
        write_new(tmp_path / "file" / "ward")


def test_name_of_other_signs_is_refused_with_those_it_may_have():
    with pytest.raises(Unusable, match="needed letters, digits, - and _, the first a letter, and no keyword"):
        package_of("3rd")


@pytest.mark.parametrize("name", ["json", "torch", "fedgc", "tests", "class", "3rd", "a.b", "Größe", ""])
def test_invalid_or_shadowing_package_name_is_refused(name: str):
    with pytest.raises(Unusable, match="name"):
        package_of(name)
