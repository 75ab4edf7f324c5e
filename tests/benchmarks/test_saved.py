"""Test results files: what they tell of a run, what they leave out, and when none is written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import Report, machine, saved
from fedgc.errors import EdgeFailed

REPORT = Report({"ratio": 1.5, "never": float("inf")}, [{"a": 1}, {"a": 2}], machine(), range(2))
SHIPPED = sorted(saved.FOLDER.glob("*.json"))


def test_results_file_tells_commit_command_and_seeds(tmp_path: Path):
    path = saved.save(REPORT, ["benchmarks", "codes", "--save", "--traces", "/data/of/mine/traces"], tmp_path)
    table = json.loads(path.read_text())
    assert path.name == "codes.json"
    assert list(table)[:6] == ["name", "command", "commit", "dirty", "load", "date"]
    assert table["command"] == "python -m benchmarks codes --save --traces traces"
    assert len(table["commit"]) == 40
    assert table["figures"] == {"ratio": 1.5, "never": "inf"}
    assert table["rows"] == [{"a": 1}, {"a": 2}]
    assert (table["seeds"], table["rows_left_out"]) == ([0, 1], 0)
    assert table["machine"] == machine()


def test_results_file_of_example_has_name_of_its_module(tmp_path: Path):
    path = saved.save(REPORT, ["examples.hospitals", "--save"], tmp_path)
    table = json.loads(path.read_text())
    assert path.name == "hospitals.json"
    assert (table["name"], table["command"]) == ("hospitals", "python -m examples.hospitals --save")


def test_results_file_keeps_first_rows_of_long_report():
    table = {"figures": {"a": 1}, "rows": [{"at": at} for at in range(100)]}
    kept = json.loads(saved.text({}, table, largest=500))
    assert kept["rows"] == table["rows"][: len(kept["rows"])]
    assert 30 < len(kept["rows"]) < 60
    assert kept["rows_left_out"] == 100 - len(kept["rows"])


def test_changed_sources_are_dirty_and_pages_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(saved, "FOLDER", tmp_path / "benchmarks" / "results")
    with pytest.raises(EdgeFailed, match="--save: saw no git repository, needed one"):
        saved.start.__wrapped__()
    git("init")
    for name in ("fedgc/a.py", "benchmarks/results/codes.json", "benchmarks/b.py", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("first")
    git("add", ".")
    git("commit", "-m", "first")
    for name, dirty in (("README.md", False), ("benchmarks/results/codes.json", False), ("fedgc/a.py", True)):
        (tmp_path / name).write_text("second")
        assert saved.start.__wrapped__().dirty is dirty


def test_quick_benchmark_is_not_saved():
    said = subprocess.run(
        [sys.executable, "-m", "benchmarks", "codes", "--save", "--quick"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert (said.returncode, said.stdout) == (2, "")
    assert "saw --quick, needed the whole benchmark" in said.stderr
    assert said.stderr.count("\n") == 1


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_results_are_of_committed_sources(path: Path):
    table = json.loads(path.read_text())
    assert table["name"] == path.stem
    commands = tuple(f"python -m {module}" for module in (f"benchmarks {path.stem}", f"examples.{path.stem}"))
    assert table["command"].startswith(commands)
    assert not table["dirty"]
    assert "/" not in table["command"]
    assert set(table["machine"]) == set(machine())
    assert path.stat().st_size < 1.2 * saved.LARGEST
