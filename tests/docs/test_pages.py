"""Test README.md and docs/: the code runs, the commands exist and run, the links resolve."""

import inspect
import itertools
import os
import re
import subprocess
import sys
import tomllib
from operator import attrgetter
from pathlib import Path

import pytest
from typer.main import get_command

import fedgc
from docs import generate, readme_pages
from fedgc import RunConfig, Task
from fedgc.cli.commands import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
STARTED = (ROOT / "docs" / "getting-started.md").read_text()
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))
}
PAGES |= {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")}
TUTORIALS = {name: (ROOT / name).read_text() for name in readme_pages.tutorials().values()}
PAGES |= TUTORIALS
EXAMPLES = sorted(path.parent.name for path in ROOT.glob("examples/*/__main__.py"))
DIFF = re.search(r"```diff\n(.*?)```", STARTED, re.DOTALL)
MOST_CHANGED = 10
LONGEST_README = 200
OF_FLEETS = ("--superlink hospital",)  # commands that need a SuperLink elsewhere


def typed(page: str) -> list[str]:
    """The commands of a page's console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


TYPED = [line for page in PAGES.values() for line in typed(page)]


def commands(group, prefix: str = "fedgc"):
    """Every command with its name as typed."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


COMMANDS = dict(commands(get_command(app)))


def needs_a_fleet(line: str) -> bool:
    return any(each in line for each in OF_FLEETS) or line.startswith(("FEDGC_BIND", "flower-", "fedgc keys"))


def script(left_out: str) -> str:
    """The script of the diff, without the lines that begin so and without marks."""
    assert DIFF is not None
    lines = [line for line in DIFF.group(1).splitlines() if not line.startswith(left_out)]
    return "\n".join(line[1:] for line in lines) + "\n"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if "```python" in page])
def test_page_code_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", PAGES[name], re.DOTALL):
        exec(compile(block, name, "exec"), names)  # noqa: S102  our own page
        if "fed" in names or "Lines" in names:  # a script of the reader's own, or a sink, needs no task
            return
        made = names.get("task")
        if callable(made):
            takes_client = "client" in inspect.signature(made).parameters
            made = made(RunConfig(), client={}) if takes_client else made(RunConfig())
        assert isinstance(made, Task | None)
    assert "task" in names


def test_readme_is_short():
    assert len(README.splitlines()) <= LONGEST_README


def test_script_conversion_changes_six_lines():
    assert DIFF is not None
    changed = [line for line in DIFF.group(1).splitlines() if re.match(r"[+-]\s*\S", line)]
    assert "six lines" in STARTED
    assert len(changed) == 6 <= MOST_CHANGED


@pytest.mark.parametrize("without", ["+", "-"], ids=["before", "after"])
def test_script_trains_by_itself(without: str, tmp_path: Path):
    (tmp_path / "train.py").write_text(script(without))
    said = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert said.returncode == 0, said.stderr
    assert float(said.stdout.removeprefix("accuracy ")) > 0.8


@pytest.mark.contract
@pytest.mark.slow  # starts federations one after the other: minutes
@pytest.mark.timeout(1800)
def test_page_commands_run_in_sequence(tmp_path: Path):
    """Check the pages of the first steps and of a federation on one machine."""
    (tmp_path / "train.py").write_text(script("-"))
    first = [line for line in typed(STARTED) if not line.startswith("make demo") and "--script" not in line]
    second = [line for line in typed(PAGES["docs/how-to/deployment.md"]) if not needs_a_fleet(line)]
    told = ["set -ex", "trap 'fedgc down || true' EXIT", *first, *second, "trap - EXIT"]
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
    runs = [line for line in (*first, *second) if line.startswith("fedgc run ")]
    assert len(re.findall("^round 3: synced", said.stdout, re.MULTILINE)) == len(runs)
    assert (tmp_path / "ward" / "ward.safetensors").exists()


def test_typed_commands_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in TYPED:
        program, *words = itertools.dropwhile(lambda word: "=" in word, line.split())
        if program == "make":
            assert set(words) <= set(targets)
        elif program == "fedgc":
            assert f"fedgc {words[0]}" in COMMANDS or f"fedgc {words[0]} {words[1]}" in COMMANDS
        else:
            assert program in ("cd", "python", "flower-superlink", "flower-supernode")


def test_every_example_is_tutorial_in_navigation():
    listed = re.findall(r"tutorials/([a-z]+)\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == EXAMPLES == sorted(Path(name).parent.name for name in TUTORIALS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_tutorial_has_command_and_its_parts(name: str):
    page = TUTORIALS[f"examples/{name}/README.md"]
    assert f"python -m examples.{name}" in typed(page)
    for part in ("Why", "What to expect", "How to change it"):
        assert f"## {part}" in page


@pytest.mark.parametrize("name", PAGES)
def test_page_links_exist(name: str):
    links = set(re.findall(r"\]\(([^)#:]+)\)", PAGES[name]))
    assert [link for link in sorted(links) if not ((ROOT / name).parent / link).exists()] == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_has_example_and_reference(name: str):
    assert f"Example: {name}" in (COMMANDS[name].help or "")
    assert f"## `{name}`" in generate.commands_list()


def test_each_example_of_command_can_be_typed():
    blocks = re.findall(r"```console\n(.*?)```", generate.commands_list(), re.DOTALL)
    assert [line for block in blocks for line in block.splitlines() if not line.startswith("$ ")] == []


def test_reference_shows_defaults_and_variables_of_options():
    listed = generate.commands_list()
    assert "| `--rounds` | `20` | How many rounds. |" in listed
    assert "| `--upload-slots` | `0` |" in listed
    assert "| `--json` |  | Print one JSON object. |" in listed
    assert re.search(r"\| `--superlink` \|  \| .* Variable: `FEDGC_SUPERLINK`\. \|", listed)


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if "[tool.flwr.app.config" in page])
def test_settings_of_example_apps_are_accepted(name: str):
    blocks = re.findall(r"```toml\n(.*?)```", PAGES[name], re.DOTALL)
    manifests = [tomllib.loads(each) for each in blocks if "[tool.flwr.app.config" in each]
    assert all(RunConfig.read(each["tool"]["flwr"]["app"]["config"]).rounds for each in manifests)


def test_reference_lists_every_setting():
    listed = generate.settings_table()
    assert [name for name in RunConfig(work="coded").table() if f"| `{name}` |" not in listed] == []


def test_named_commands_exist():
    named = {each for page in PAGES.values() for each in re.findall(r"`(fedgc [a-z]+(?: [a-z]+)?)", page)}
    prefixes = {" ".join(name.split()[:2]) for name in COMMANDS}
    assert [each for each in sorted(named) if each not in COMMANDS and each not in prefixes] == []


def test_documented_exit_codes_match_program():
    from fedgc import cli

    page = PAGES["docs/reference/commands.md"]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert listed == {0, cli.FAILED, cli.USAGE, cli.INTERRUPTED}


def test_readme_opens_with_two_commands():
    assert typed(README)[:2] == ["make demo", "make test"]


def test_markers_of_generated_parts_are_known():
    marked = [name for page in PAGES.values() for name in re.findall(r"<!-- generated: (\w+) -->", page)]
    blocks = [name for page in PAGES.values() for name in generate.BLOCK.findall(page)]
    assert sorted(marked) == sorted(blocks) == sorted(generate.PAGES)


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if generate.BLOCK.search(page)])
def test_committed_text_is_generated_text(name: str):
    assert generate.filled(PAGES[name], generate.PAGES) == PAGES[name], "run `make reference`"


def test_public_names_have_signatures():
    listed = generate.api_list()
    public = generate.public_names()
    assert {"join", "hf.Callback", "lightning.Callback"} < set(public)
    assert [name for name in public if f"fedgc.{name}(" not in listed] == []
    assert [name for name in public if f"::: fedgc.{name}" not in generate.api_directives()] == []


@pytest.mark.parametrize(
    "name",
    ["Task", "over", "from_lightning", "join", "FedGC", "server_app", "client_app", "hf.Callback"],
)
def test_parameters_of_public_name_are_described(name: str):
    section = generate.api_list().split(f"## `fedgc.{name}`\n")[1].split("\n## ")[0]
    parameters = inspect.signature(attrgetter(name)(fedgc)).parameters
    assert [each for each in parameters if f"\n| `{each}` | " not in section] == []


def test_settings_are_listed_with_their_fields():
    table = RunConfig.read({"data.chunks": 7}).table()
    assert "| `data.chunks` | `chunks` |" in generate.settings_table()
    assert RunConfig(chunks=table["data.chunks"]).chunks == 7
