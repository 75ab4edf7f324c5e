"""What README.md says is true: its code runs, its commands exist and run, its links lead somewhere."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from fedgc.cli.commands import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
TYPED = [line[2:] for block in BLOCKS for line in block.splitlines() if line.startswith("$ ")]
DIFF = re.search(r"```diff\n(.*?)```", README, re.DOTALL)
MOST_CHANGED = 10


def commands(group, prefix: str = "fedgc"):
    """Every command with its name as typed."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


COMMANDS = dict(commands(get_command(app)))


def script(left_out: str) -> str:
    """The script of the diff, without the lines that begin so and without marks."""
    assert DIFF is not None
    lines = [line for line in DIFF.group(1).splitlines() if not line.startswith(left_out)]
    return "\n".join(line[1:] for line in lines) + "\n"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_its_code_runs():
    names: dict[str, object] = {"__name__": "readme"}
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(block, "README.md", "exec"), names)  # noqa: S102  our own page
    assert names["task"].evaluate is not None


def test_converting_a_script_changes_no_more_lines_than_it_says():
    assert DIFF is not None
    changed = [line for line in DIFF.group(1).splitlines() if re.match(r"[+-]\s*\S", line)]
    assert "six lines" in README
    assert len(changed) == 6 <= MOST_CHANGED


@pytest.mark.parametrize("without", ["+", "-"], ids=["before", "after"])
def test_the_script_trains_by_itself_before_and_after(without: str, tmp_path: Path):
    (tmp_path / "train.py").write_text(script(without))
    said = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert said.returncode == 0, said.stderr
    assert float(said.stdout.removeprefix("accuracy ")) > 0.8


@pytest.mark.contract
@pytest.mark.slow  # starts federations one after the other: minutes
@pytest.mark.timeout(1800)
def test_its_commands_run_one_after_the_other(tmp_path: Path):
    """All but the first two, which set up and test this checkout itself."""
    (tmp_path / "train.py").write_text(script("-"))
    told = ["set -ex", "trap 'fedgc down || true' EXIT", *TYPED[2:], "trap - EXIT"]
    apart = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "FEDGC_DB": str(tmp_path / "fedgc.db"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "FLWR_HOME": str(tmp_path / "flwr"),
    }
    said = subprocess.run(
        ["bash", "-c", "\n".join(told)],
        cwd=tmp_path,
        env=apart,
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    runs = [line for line in TYPED if line.startswith("fedgc run ")]
    assert len(re.findall("^round 3: synced", said.stdout, re.MULTILINE)) == len(runs)
    assert (tmp_path / "ward" / "ward.safetensors").exists()


def test_what_is_typed_in_it_exists():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in TYPED:
        program, *words = itertools.dropwhile(lambda word: "=" in word, line.split())
        if program == "make":
            assert set(words) <= set(targets)
        elif program == "fedgc":
            assert f"fedgc {words[0]}" in COMMANDS or f"fedgc {words[0]} {words[1]}" in COMMANDS
        else:
            assert program in ("cd", "python", "flower-superlink", "flower-supernode")


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_its_links_lead_somewhere(link: str):
    assert (ROOT / link).exists()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_a_line_in_it_and_an_example_in_its_help(name: str):
    *group, last = name.split()
    line = next(
        (line for line in README.splitlines() if line.startswith("|") and " ".join(group) in line), ""
    )
    assert f"`{name}`" in README or (f"`{last}`" in line)
    assert f"Example: {name}" in (COMMANDS[name].help or "")


def test_every_command_that_it_names_exists():
    named = set(re.findall(r"`(fedgc [a-z]+(?: [a-z]+)?)", README))
    assert named <= set(COMMANDS)


def test_the_exit_codes_in_it_are_those_of_the_program():
    from fedgc import cli

    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert listed == {0, cli.FAILED, cli.USAGE, cli.INTERRUPTED}


def test_it_opens_with_the_two_commands():
    assert TYPED[:2] == ["make demo", "make test"]
