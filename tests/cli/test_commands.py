"""The command line as a person types it: every command in a process of its own."""

import subprocess
import sys

import pytest

from fedgc.cli.settings import parse
from fedgc.errors import BadSetting


def fedgc(*words: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; sys.argv[0] = 'fedgc'; from fedgc.cli import main; main()"
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)


def test_help_names_every_command_and_loads_nothing_heavy():
    program = (
        "import sys; sys.argv[0] = 'fedgc'\nfrom fedgc.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted(set(sys.modules) & {'torch', 'flwr', 'sqlalchemy', 'sklearn'}))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, "--help"], capture_output=True, text=True, timeout=60
    )
    assert "demo" in said.stdout
    assert said.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("round=3", "unknown setting 'round'; did you mean rounds?"),
        ("replicas=three", "setting replicas: saw 'three', needed int or 'auto'"),
        ("learning-rate=-1", "setting learning_rate: saw -1.0, needed above 0"),
        ("blocks", "setting 'blocks': needed name=value"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_2(word: str, sentence: str):
    said = fedgc("demo", "--set", word)
    assert said.returncode == 2
    assert said.stdout == ""
    assert said.stderr.strip() == f"fedgc: {sentence}"


def test_debug_shows_where_an_error_came_from():
    said = fedgc("demo", "--set", "round=3", "--debug")
    assert "Traceback" in said.stderr
    assert "BadSetting" in said.stderr


def test_words_become_the_values_they_look_like():
    assert parse(["blocks=auto", "rounds=3", "learning_rate=1", "task=my.module:task"]) == {
        "blocks": "auto",
        "rounds": 3,
        "learning-rate": 1,
        "task": "my.module:task",
    }
    with pytest.raises(BadSetting, match="needed name=value"):
        parse(["rounds"])
