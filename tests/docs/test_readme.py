"""What README.md says is true: its code runs, its commands exist, its links lead somewhere."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from fedgc.cli.commands import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def commands(group, prefix: str = "fedgc"):
    """Every command with its name as typed."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


COMMANDS = dict(commands(get_command(app)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_its_code_runs():
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(block, "README.md", "exec"), names)  # noqa: S102  our own page
    assert names["task"].evaluate is not None


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


def test_it_opens_with_the_two_commands():
    first = re.search(r"```console\n(.*?)```", README, re.DOTALL)
    assert first is not None
    assert first.group(1).split("\n")[:2] == ["$ make demo", "$ make test"]
