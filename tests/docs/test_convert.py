"""Test the converted script of the how-to page: by itself, before and after the conversion."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_pages import PAGES

PAGE = PAGES["docs/how-to/convert-a-script.md"]


def script(left_out: str) -> str:
    """The page's script, without the lines that begin so and without marks."""
    (block,) = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for line in block.splitlines() if not line.startswith(left_out)]
    return "\n".join(line[1:] for line in lines) + "\n"


def write_readings(path: Path, rows: int) -> None:
    """Write rows in which the column with the largest number is the class."""
    lines = [
        ",".join([*("3" if column == n % 5 else "0" for column in range(5)), str(n % 5)]) for n in range(rows)
    ]
    path.write_text("\n".join(lines))


@pytest.mark.parametrize("left_out", ["+", "-"], ids=["before", "after"])
def test_script_trains_by_itself(tmp_path: Path, left_out: str):
    (tmp_path / "train.py").write_text(script(left_out))
    write_readings(tmp_path / "readings.csv", 400)
    done = subprocess.run(
        [sys.executable, "train.py", "--epochs", "15"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(done.stdout.split()[-1]) > 0.9
    assert (tmp_path / "model.pt").exists()


def test_files_of_page_have_class_in_last_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "page", "exec"), {})  # noqa: S102  our own page
    for name in re.findall(r"\w+\.csv", PAGE):
        rows = [line.split(",") for line in (tmp_path / name).read_text().splitlines()]
        assert {len(row) for row in rows} == {6}
        assert {row[-1] for row in rows} <= {"0", "1", "2", "3", "4"}
