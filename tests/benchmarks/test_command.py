"""Test the command line of the benchmarks in a separate process."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("gate", "--png", "/no/such/x.png"), 2, "saw no folder /no/such, needed one that is there"),
        (("gate", "--data", "/no/such.npz"), 1, "needed an npz file with x_train, y_train, writer"),
        (("gate", "--png", "."), 2, ".: saw a folder, needed the name of a file"),
        (("accuracy", "--quick", "--traces", "/no/such"), 1, "traces /no/such: saw no folder"),
    ],
)
def test_failed_start_is_reported_in_one_line(words: tuple[str, ...], code: int, sentence: str):
    said = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words], capture_output=True, text=True, timeout=240
    )
    assert said.returncode == code
    assert said.stdout == ""
    assert sentence in said.stderr
    assert said.stderr.count("\n") == 1
