"""`fedgc new`: the app that it writes, without running it (README's own commands do that)."""

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


def test_it_is_an_app_whose_settings_are_some_of_ours_and_name_its_task(app: Path):
    found = app_in(app)
    assert found is not None
    assert RunConfig.read(found.settings).task == "ward_3.task:task"


def test_every_file_is_python_that_can_be_read_and_no_mark_is_left(app: Path):
    for path in app.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert "PACKAGE" not in text
            assert "NAME" not in text
            if path.suffix == ".py":
                ast.parse(text)


def would_make(app: Path) -> str:
    """Return the commands of `make test` there, also where the tests themselves run under a `make`."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", "-n", "test"], cwd=app, env=outside, capture_output=True, text=True, timeout=60
    ).stdout


def test_its_makefile_takes_the_interpreter_that_wrote_it_which_git_does_not_see(app: Path):
    assert would_make(app).startswith(f'"{sys.executable}" -m unittest')
    (app / ".python").unlink()
    assert would_make(app).startswith('"python3" -m unittest')
    assert ".python" in (app / ".gitignore").read_text().split()


def test_what_it_says_to_type_can_be_typed_whatever_the_folder_is_called(tmp_path: Path, capsys):
    folder = tmp_path / "two words, it's" / "ward"
    write_new(folder)
    typed = capsys.readouterr().out.split("`")[1].removesuffix(" && make test")
    said = subprocess.run(["sh", "-c", f"{typed} && pwd"], capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == str(folder)


def test_an_empty_folder_will_do_and_a_full_one_is_left_alone(tmp_path: Path):
    (tmp_path / "ward").mkdir()
    write_new(tmp_path / "ward")
    with pytest.raises(Unusable, match="saw something there"):
        write_new(tmp_path / "ward")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EdgeFailed, match="cannot be written"):
        write_new(tmp_path / "file" / "ward")


@pytest.mark.parametrize("name", ["json", "torch", "fedgc", "tests", "class", "3rd", "a.b", "Größe", ""])
def test_a_name_that_would_hide_a_package_or_is_none_is_refused(name: str):
    with pytest.raises(Unusable, match="name"):
        package_of(name)
