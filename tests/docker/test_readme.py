"""Test docker/README.md: its commands, flags, files, targets and quoted messages exist."""

import re
import shlex
import warnings
from functools import cache
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from fedgc.config import RunConfig
from fedgc.store.database import Store
from fedgc.store.records import Seen
from tests.docker.test_shipped import exists

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
README = (DOCKER / "README.md").read_text()
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PLAIN = {"cp", "mkdir", "chown"}  # that any machine has
THEIRS = {  # what is not ours to say: Flower's and OpenSSL's own sentences
    "Failed to initialize the connection to the SuperLink",
    "unable to get local issuer certificate",
    "mismatch",
    "certificate has expired",
    "not yet valid",
    "the same, for less than a minute after a crash",
}


@cache
def flower() -> object:
    """Flower's own program, which uses features that its typer deprecates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from flwr.cli.app import app
    return get_command(app)


def typed() -> list[str]:
    """Every command of the README's blocks, on one line and without its output."""
    blocks = "".join(re.findall(r"```console\n(.*?)```", README, re.DOTALL)).replace("\\\n", " ")
    lines = [line[2:] for line in blocks.splitlines() if line.startswith("$ ")]
    return [part.strip() for line in lines for part in re.sub(r"\s#.*", "", line).split("&&")]


def inline() -> list[str]:
    """Every command of its text."""
    quoted = re.findall(r"`([^`\n]+)`", README)
    return [each for each in quoted if re.match(r"(fedgc|make|docker compose -f|flwr) ", each)]


def compose(words: list[str]) -> None:
    """Fail unless these words of `docker compose` name files, services and programs that are there."""
    services: dict[str, dict] = {}
    while words[0] in {"-f", "--profile"}:
        option, value, *words = words
        if option == "-f":
            services |= yaml.safe_load((DOCKER / value).read_text())["services"]
        else:
            assert any(value in about.get("profiles", ()) for about in services.values())
    action, *rest = words
    if action == "exec":
        service, *inside = rest
        assert service in services
        understood(" ".join(map(shlex.quote, inside)))
    elif action in {"kill", "cp"}:
        assert any(name in " ".join(rest) for name in services)
    else:
        assert action in {"up", "logs", "build"}


def understood(line: str) -> None:
    """Fail unless this command could be typed as it stands."""
    words = [word for word in shlex.split(line) if word != "…"]
    program, *rest = words[1:] if words[0] == "sudo" else words
    match program:
        case "fedgc":
            exists(rest)
        case "flwr":
            exists(rest, flower())
            settings = rest[rest.index("--run-config") + 1]
            names = set(re.findall(r"([a-z-]+)=", settings))
            assert names <= RunConfig(work="coded").table().keys()
        case "make":
            assert {word for word in rest if "=" not in word} <= TARGETS
        case "docker":
            assert rest[0] == "compose"
            compose(rest[1:])
        case _:
            assert program in PLAIN, line


@pytest.mark.parametrize("line", typed() + inline())
def test_readme_commands_are_valid(line: str):
    understood(line)


@pytest.mark.parametrize(
    "line",
    [
        "fedgc keys tsl fl.example.org",
        "fedgc keys tls --renwe",
        "make docker-chekc",
        "docker compose -f compose.server.yaml exec sever fedgc status",
        "docker compose -f compose.server.yaml exec server flwr run /opt/app local --run-config 'ruonds=3'",
        "podman up",
    ],
)
def test_invalid_readme_command_is_detected(line: str):
    with pytest.raises(AssertionError):
        understood(line)


def test_readme_table_quotes_real_messages():
    table = README[README.index("| message | cause | solution |") :].split("\n\n")[0]
    sources = "".join(path.read_text() for path in (ROOT / "fedgc").rglob("*.py"))
    said = re.sub(r'"\s*f?"', "", sources)  # sentences that are written over two lines
    told = [part for line in table.splitlines()[2:] for part in re.findall(r"`([^`]+)`", line.split("|")[1])]
    assert len(told) > 10
    for sentence in told:
        for part in filter(
            None, (each.strip(" :") for each in re.split(r"…|, |FEDGC_|\d+|\bdevice ", sentence))
        ):
            assert part in said or any(each in part for each in THEIRS), part


def test_files_listed_in_readme_exist():
    table = README[README.index("| file | content |") :].split("\n\n")[0]
    for name in re.findall(r"`([^`]+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:])):
        assert (DOCKER / name).exists(), name


def test_every_variable_in_readme_is_in_example():
    named = set(re.findall(r"FEDGC_[A-Z_]*[A-Z]", README))
    assert named <= set(re.findall(r"FEDGC_[A-Z_]*[A-Z]", (DOCKER / ".env.example").read_text()))


@pytest.mark.parametrize("page", ["docker/README.md", "docs/how-to/operation.md"])
def test_page_on_restoring_names_files_beside_store(tmp_path: Path, page: str):
    """SQLite writes what these files hold into a backup that is put in the place of the store."""
    with Store.open(str(tmp_path / "fedgc.db")) as store:
        store.write(Seen(1.0, "north", "north"))
        beside = {each.name for each in tmp_path.iterdir()} - {"fedgc.db"}
    assert beside
    (told,) = re.findall(r"^To restore.*?\n\n", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert beside == set(re.findall(r"`(fedgc\.db-\w+)`", told))
