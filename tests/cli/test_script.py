"""Test where a training script is looked for, and what is refused before anything is started."""

from pathlib import Path

import pytest

from fedgc.cli.new_app import write_new
from fedgc.cli.script import placed_script
from fedgc.cli.settings import trained
from fedgc.deploy.app_folder import app_in
from fedgc.errors import BadSetting, Unusable
from fedgc.flower.app_bundle import bundle_of
from fedgc.policy.digests import files_in_bundle


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "digits").mkdir()
    return tmp_path


def test_script_here_becomes_absolute(folder: Path):
    placed = placed_script("train.py --data digits --lr 0.1", folder, None, here=True)
    assert placed == f"{folder}/train.py --data digits --lr 0.1"


def test_launched_script_becomes_absolute(folder: Path):
    placed = placed_script("python -u train.py './digits'", folder, None, here=True)
    assert placed == f"python -u {folder}/train.py {folder}/digits"


def test_script_of_remote_clients_is_unchanged(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert placed_script("/srv/train.py", folder, None, here=False) == "/srv/train.py"
    assert placed_script("", folder, None, here=True) == ""
    assert capsys.readouterr().err == ""
    assert placed_script("train.py --lr 1", folder, None, here=False) == "train.py --lr 1"
    said = capsys.readouterr().err
    assert said.startswith("script train.py: does not travel, as it is in no app of this folder (`fedgc new`")


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        ("trian.py", r"setting script: saw trian.py, which is not in .*, needed a file that exists"),
        ("no-such-launcher train.py", "saw 'no-such-launcher', which is not installed here"),
        ("train.py 'x", "needed a command line"),
    ],
)
def test_script_that_cannot_start_is_refused(folder: Path, script: str, seen: str):
    with pytest.raises(BadSetting, match=seen):
        placed_script(script, folder, None, here=True)


def test_script_in_app_is_relative_and_travels(folder: Path):
    write_new(folder / "ward")
    app = app_in(folder / "ward")
    assert app is not None
    (app.folder / "train.py").write_text("")
    (app.folder / "data.py").write_text("")
    assert placed_script(f"{app.folder}/train.py", app.folder, app, here=False) == "train.py"
    assert placed_script("train.py", app.folder, app, here=True) == f"{app.folder}/train.py"
    written = app.write(folder / "copy", {}, "train.py")
    assert (written / "train.py").is_file()
    assert (written / "data.py").is_file()
    assert {"train.py", "data.py", "ward/task.py"} <= files_in_bundle(bundle_of(written)).keys()


@pytest.mark.parametrize("name", ["train.ipynb", "secrets.py", "test_train.py"])
def test_script_that_flower_leaves_out_is_refused(folder: Path, name: str):
    write_new(folder / "ward")
    app = app_in(folder / "ward")
    assert app is not None
    (app.folder / name).write_text("")
    (app.folder / ".gitignore").write_text("secrets.py\n")
    with pytest.raises(
        BadSetting, match=rf"setting script: saw {name} in the app, needed a file that Flower"
    ):
        placed_script(name, app.folder, app, here=False)
    assert placed_script(name, app.folder, app, here=True) == f"{app.folder}/{name}"


def test_task_and_script_together_are_refused():
    assert trained(None, "train.py") == {"script": "train.py"}
    assert trained("digits", None) == {"task": "digits", "script": ""}
    with pytest.raises(Unusable, match="--task and --script: saw both, needed one"):
        trained("digits", "train.py")
