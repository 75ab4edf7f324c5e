"""Test what the examples share, and the changes that the page of migrations shows, without processes."""

import ast
import json
import shlex
import sys
from pathlib import Path

import pytest
import torch

from examples import __main__ as runner
from examples import federation, sites
from examples.federation import Result, outside
from examples.migrate import changes
from examples.windows.__main__ import NIGHTS, night_of
from fedgc import RunConfig
from fedgc.deploy.app_folder import app_in
from fedgc.errors import EdgeFailed, Unusable

PAGE = (changes.FOLDER / "README.md").read_text()
CHANGES = changes.changes(PAGE)


@pytest.mark.parametrize(
    ("figures", "wrong"),
    [
        ({"a": 0.5, "b": 2}, []),
        ({"a": 1.5, "b": 2}, ["a: saw 1.5, needed 0 to 1"]),
        ({"b": 2}, ["a: saw None, needed 0 to 1"]),
        ({"a": float("nan"), "b": 2}, ["a: saw nan, needed 0 to 1"]),
    ],
    ids=["within", "outside", "missing", "not a number"],
)
def test_figures_outside_their_bands_are_named(figures, wrong):
    assert outside(figures, {"a": (0, 1), "b": (2, 2)}) == wrong


def test_figures_are_one_line_also_by_name():
    figures = {"rounds": 3, "share": {"a": 0.25, "b": None}}
    assert federation.words_of(figures) == "rounds 3, share a 0.25, share b None"


def command(monkeypatch: pytest.MonkeyPatch, words: str, example, bands) -> None:
    monkeypatch.setattr(sys, "argv", ["example", *shlex.split(words)])
    federation.main(example, bands, "tried")


def test_example_command_prints_one_object(monkeypatch, capsys, tmp_path: Path):
    def example(folder: Path) -> Result:
        (folder / "kept").touch()
        return Result({"share": 0.5}, [{"a": 1}])

    command(monkeypatch, f"--json --folder {tmp_path / 'new'}", example, {"share": (0, 1)})
    said = json.loads(capsys.readouterr().out)
    assert (said["figures"], said["rows"]) == ({"share": 0.5}, [{"a": 1}])
    assert (tmp_path / "new" / "kept").exists()


def test_example_command_fails_in_one_line(monkeypatch):
    with pytest.raises(SystemExit, match=r"^tried: share: saw 2, needed 0 to 1$"):
        command(monkeypatch, "", lambda _: Result({"share": 2}), {"share": (0, 1)})

    def broken(_: Path) -> Result:
        raise EdgeFailed("no disk")

    with pytest.raises(SystemExit, match=r"^tried: no disk$"):
        command(monkeypatch, "", broken, {})


def test_unknown_example_is_refused():
    with pytest.raises(SystemExit, match=r"saw winter, needed some of .*windows"):
        runner.main(["winter"])


def test_sites_have_all_training_images_once():
    _, labels = sites.images()
    rows = [sites.rows_of(site, labels) for site in range(sites.SITES)]
    every = torch.cat(rows)
    assert len(every) == len(every.unique()) == sum(at % sites.HELD_OUT != 0 for at in range(len(labels)))
    for site, own in enumerate(rows):
        assert (labels[own] % sites.SITES == site).float().mean() > 0.5


def test_site_counts_its_steps_in_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(sites.STEPS, str(tmp_path))
    task = sites.task(RunConfig(), {"site": 2})
    assert set(task.chunks) == {"site-2"}
    task.loss(sites.network(), task.load("site-2"))
    assert (tmp_path / "2").stat().st_size == 1
    assert not sites.task(RunConfig(), {}).chunks


def test_two_sites_train_at_any_time_between_first_and_last_night():
    nights = [night_of(site, number) for site in range(sites.SITES) for number in range(NIGHTS)]
    for at in (0.3, 0.6, 0.99, 1.3, 1.7):
        assert sum(begin <= at < end for begin, end in nights) == 2


@pytest.mark.parametrize("name", CHANGES)
def test_change_of_page_applies_and_is_python(name: str, tmp_path: Path):
    folder = changes.migrated(name, tmp_path)
    for path in folder.rglob("*.py"):
        ast.parse(path.read_text())
    changed = {file for file in CHANGES[name] if not file.endswith(".toml")}
    for file in changed:
        new, old = folder / Path(*Path(file).parts[1:]), changes.FOLDER / file
        assert new.read_text() != old.read_text()
    joined = "".join(path.read_text() for path in folder.rglob("*.py"))
    assert "fedgc" in joined


@pytest.mark.parametrize("name", CHANGES)
def test_page_states_number_of_changed_lines(name: str):
    lines = [line for places in CHANGES[name].values() for place in places for line in place]
    counts = [sum(line.startswith(mark) and len(line) > 1 for line in lines) for mark in "-+"]
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}`:"))
    assert [int(each) for each in row.split("|")[2:4]] == counts


@pytest.mark.parametrize("name", [name for name in CHANGES if name.startswith("flower")])
def test_settings_of_changed_app_are_accepted(name: str, tmp_path: Path):
    app = app_in(changes.migrated(name, tmp_path))
    assert app is not None
    assert RunConfig.read(app.settings).rounds == 3


def test_change_without_place_is_refused():
    with pytest.raises(Unusable, match=r"train\.py: saw no place for 'old = 1' and what follows"):
        changes.changed("new = 1\n", [["-old = 1", "+new = 1"]], "train.py")
