"""Test the files of docker/: they parse, their commands exist, linters and schemas accept them."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.main import get_command

from fedgc.cli.commands import app
from fedgc.deploy.key_files import Keyring
from fedgc.deploy.node_config import read_settings
from fedgc.links.session.connection import PATH

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
COMPOSE = sorted(DOCKER.glob("compose.*.yaml"))
GIVEN = {
    "FEDGC_ADVERTISE": "fl.example.org:443",
    "FEDGC_SERVER": "fl.example.org:443",
    "FEDGC_NAME": "ward-3",
    "FEDGC_CONSORTIUM": "fl.example.com:443",
    "FEDGC_SITE": "north",
}
REQUIRED_BY = {"FEDGC_ADVERTISE": "server", "FEDGC_CONSORTIUM": "site", "FEDGC_SITE": "site"}
SERVICES = [
    (path, name)
    for path in COMPOSE
    for name in yaml.safe_load(path.read_text())["services"]
    if "cuda" not in path.name
]


def load(name: str) -> ModuleType:
    """Load a module of docker/check, which is a program and no package."""
    spec = importlib.util.spec_from_file_location(f"docker_check_{name}", DOCKER / "check" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


compose = load("compose")


def exists(words: Sequence[str], program: object = None) -> None:
    """Fail unless these words of a program, by default `fedgc`, lead to a command that has these options."""
    rest, group = list(words), program or get_command(app)
    while rest and hasattr(group, "commands"):
        assert rest[0] in group.commands, words
        group = group.commands[rest.pop(0)]
    known = {option for parameter in group.params for option in parameter.opts}
    for word in rest:
        assert not word.startswith("-") or word.partition("=")[0] in known, f"no {word} in {words}"


def variables_of_fedgc() -> set[str]:
    """Return every FEDGC_ variable that our code or the proxy takes."""
    sources = [*(ROOT / "fedgc").rglob("*.py"), *(DOCKER / "proxy").iterdir()]
    found = set(re.findall(r"FEDGC_[A-Z_]*[A-Z]", "".join(path.read_text() for path in sources)))
    return found | {"FEDGC_DB"}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_linter_finds_no_fault_in_dockerfile(path: Path):
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert linter is not None
    said = subprocess.run(
        [linter, "--config", ROOT / ".hadolint.yaml", path], capture_output=True, text=True, timeout=60
    )
    assert (said.returncode, said.stdout) == (0, "")


def test_linter_finds_planted_fault(tmp_path: Path):
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian:latest\nRUN cd /tmp && sudo ls\n")
    linter = Path(sys.executable).parent / "hadolint"
    said = subprocess.run([linter, "--config", ROOT / ".hadolint.yaml", bad], capture_output=True, text=True)
    assert said.returncode == 1
    assert "DL3007" in said.stdout


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_image_runs_unprivileged_and_platform_independent(path: Path):
    text = path.read_text()
    assert re.findall(r"^FROM (.*)$", text, re.MULTILINE) == ["debian:bookworm-slim"]
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    assert not re.search(r"x86|amd64|gcc|build-essential", text)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_image_commands_exist(path: Path):
    text = path.read_text()
    if 'ENTRYPOINT ["fedgc"]' in text:
        exists(tuple(yaml.safe_load(re.search(r"^CMD (.*)$", text, re.MULTILINE).group(1))))
        exists(tuple(yaml.safe_load(re.search(r"^HEALTHCHECK .*CMD (.*)$", text, re.MULTILINE).group(1)))[1:])


def test_server_and_client_images_share_large_layers():
    client, server = ((DOCKER / f"{role}.Dockerfile").read_text() for role in ("client", "server"))

    def until_needs(text: str) -> str:
        return text[text.index("FROM") : text.index("install.sh needs")]

    assert until_needs(client) == until_needs(server)


@pytest.mark.parametrize(("path", "name"), SERVICES, ids=lambda value: getattr(value, "name", value))
def test_every_service_parses_and_is_hardened(path: Path, name: str):
    service = compose.service(path, name, GIVEN)
    plain = service.plain
    assert plain["restart"] == "unless-stopped"
    assert plain["read_only"] is True
    assert plain["cap_drop"] == ["ALL"]
    assert plain["mem_limit"]
    assert plain["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service.health
    assert not plain.get("privileged")


@pytest.mark.parametrize(("path", "name"), SERVICES, ids=lambda value: getattr(value, "name", value))
def test_every_service_command_exists(path: Path, name: str):
    service = compose.service(path, name, GIVEN)
    if service.dockerfile:
        assert ROOT / service.dockerfile in DOCKERFILES
        known = variables_of_fedgc()
        assert set(service.environment) <= known
    if service.command:
        exists(service.command)
    if service.health[0] == "fedgc":
        exists(service.health[1:])


def test_one_port_is_public():
    server = DOCKER / "compose.server.yaml"
    plain = compose.read(server, GIVEN)
    open_ports = {name: about.get("ports") for name, about in plain["services"].items() if about.get("ports")}
    assert open_ports == {"proxy": ["443:8443"]}
    assert plain["networks"]["inside"]["internal"] is True
    for name, about in plain["services"].items():
        assert about["networks"] == (["inside", "outside"] if name == "proxy" else ["inside"])
    assert "ports" not in compose.service(DOCKER / "compose.client.yaml", "client", GIVEN).plain


@pytest.mark.parametrize("missing", sorted(GIVEN))
def test_missing_required_variable_is_requested_in_one_line(missing: str):
    path = DOCKER / f"compose.{REQUIRED_BY.get(missing, 'client')}.yaml"
    given = {name: value for name, value in GIVEN.items() if name != missing}
    with pytest.raises(compose.NotCompose, match=rf"{missing}: set it in \.env") as refused:
        compose.read(path, given)
    assert "\n" not in str(refused.value)


def test_example_environment_names_every_variable_with_default():
    told = dict(
        re.findall(r"^#? ?([A-Z][A-Z0-9_]*)=(.*)$", (DOCKER / ".env.example").read_text(), re.MULTILINE)
    )
    taken = {}
    for path in COMPOSE:
        taken |= compose.variables(path.read_text())
    assert set(told) == set(taken)
    for name, default in taken.items():
        if default:
            assert told[name] == default
        if default is None:
            assert told[name]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("services: {a: {image: x}}\nservices: {}\n", "services given twice"),
        ("versions: 3\n", "unknown versions"),
        ("services: {a: {image: x, imgae: y}}\n", "unknown imgae"),
        ("services: {a: {image: x, volumes: ['a:/b:rx']}}\n", "needed ro or none"),
    ],
)
def test_invalid_compose_file_is_refused(tmp_path: Path, text: str, sentence: str):
    path = tmp_path / "compose.yaml"
    path.write_text(text)
    with pytest.raises(compose.NotCompose, match=sentence):
        compose.service(path, "a", {})


def test_gateway_shares_store_and_socket_with_server():
    gateway = compose.service(DOCKER / "compose.site.yaml", "gateway", GIVEN)
    server = compose.service(DOCKER / "compose.server.yaml", "server", GIVEN)
    assert gateway.image == server.image
    shared = {each.target: each.source for each in server.mounts if each.target in {"/state", "/keys"}}
    assert shared.items() <= {each.target: each.source for each in gateway.mounts}.items()
    folders = ("FEDGC_STATE", "FEDGC_CACHE", "FLWR_HOME")
    assert all(gateway.environment[name].startswith("/state/gateway") for name in folders)
    config = tomllib.loads("\n".join(shlex.split(gateway.environment["FEDGC_NODE_CONFIG"], posix=False)))
    assert config == {"site-fleet": "server", "site-home": "/state/flower", "site-settings": "min-clients=1"}
    assert set(gateway.environment) - variables_of_fedgc() == {"FLWR_HOME"}
    given = {**GIVEN, "FEDGC_SITE_NODE_CONFIG": 'federation="/gateway-keys/all.fed"'}
    more = compose.service(DOCKER / "compose.site.yaml", "gateway", given).environment["FEDGC_NODE_CONFIG"]
    assert read_settings(more) == {**config, "federation": "/gateway-keys/all.fed"}


def test_cuda_overlay_adds_only_gpu_to_client():
    over = compose.read(DOCKER / "compose.cuda.yaml", GIVEN)["services"]["client"]
    under = compose.read(DOCKER / "compose.client.yaml", GIVEN)["services"]["client"]
    assert set(over) - set(under) == {"deploy"}
    chosen = compose.read(DOCKER / "compose.cuda.yaml", {**GIVEN, "FEDGC_GPUS": "1"})["services"]["client"]
    (device,) = chosen["deploy"]["resources"]["reservations"]["devices"]
    assert (device["capabilities"], device["device_ids"]) == (["gpu"], ["1"])
    taken = set(re.findall(r"^ARG ([A-Z_]+)", (DOCKER / "client.Dockerfile").read_text(), re.MULTILINE))
    assert set(over["build"]["args"]) | set(under["build"]["args"]) == taken


def test_proxy_exposes_two_paths_and_health():
    text = (DOCKER / "proxy" / "nginx.conf").read_text()
    outer = text[text.index("listen PORT") : text.index("listen 127.0.0.1")]
    assert re.findall(r"location (.*?) \{", outer) == [f"= {PATH}", "/v1/fleet/", "= /health", "/"]
    assert "return 404;" in outer[outer.index("location / {") :]


@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx here")
def test_nginx_accepts_its_configuration(tmp_path: Path):
    ring = Keyring(tmp_path)
    ring.begin(("localhost",), time.time(), 30)
    text = (DOCKER / "proxy" / "nginx.conf").read_text()
    for old, new in (
        ("INSIDE:", "127.0.0.1:"),
        ("PORT ssl", "18443 ssl"),
        ("/tmp/", f"{tmp_path}/"),  # noqa: S108  inside a container
        ("/keys", str(tmp_path / "proxy")),
    ):
        text = text.replace(old, new)
    (tmp_path / "nginx.conf").write_text(text)
    said = subprocess.run(
        ["nginx", "-t", "-c", tmp_path / "nginx.conf", "-e", "/dev/null"], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr


def test_shell_files_are_valid():
    for path in (DOCKER / "install.sh", DOCKER / "proxy" / "start", DOCKER / "proxy" / "healthy"):
        assert path.stat().st_mode & 0o111
        shell = "sh" if path.read_text().startswith("#!/bin/sh") else "bash"
        assert subprocess.run([shell, "-n", path]).returncode == 0


def test_files_copied_by_images_are_in_build_context():
    copied = set()
    for each in DOCKERFILES:
        for line in re.findall(r"^COPY (.*)$", each.read_text(), re.MULTILINE):
            copied |= set(line.split()[:-1])
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name in copied:
        assert (ROOT / name).exists()
        assert any(name == each or name.startswith(f"{each}/") for each in let_in), name
