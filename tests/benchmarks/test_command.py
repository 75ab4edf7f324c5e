"""Test the command line of the benchmarks, once in a separate process."""

import subprocess
import sys

import pytest

from benchmarks.__main__ import app
from fedgc.cli import run_program

NO_FOLDER = "saw no folder /no/such, needed one that is there"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("gate", "--png", "/no/such/x.png"), 2, NO_FOLDER),
        (("gate", "--data", "/no/such.npz"), 1, "needed an npz file with x_train, y_train, writer"),
        (("gate", "--png", "."), 2, ".: saw a folder, needed the name of a file"),
        (("accuracy", "--quick", "--traces", "/no/such"), 1, "traces /no/such: saw no folder"),
    ],
)
def test_failed_start_is_reported_in_one_line(
    monkeypatch, capsys, words: tuple[str, ...], code: int, sentence: str
):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    with pytest.raises(SystemExit) as ended:
        run_program(lambda: app)
    said = capsys.readouterr()
    assert ended.value.code == code
    assert said.out == ""
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_module_ends_with_exit_code_of_its_command():
    words = [sys.executable, "-m", "benchmarks", "gate", "--png", "/no/such/x.png"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert (said.returncode, said.stdout) == (2, "")
    assert NO_FOLDER in said.stderr
    assert said.stderr.count("\n") == 1
