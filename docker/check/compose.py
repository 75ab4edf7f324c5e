"""A strict reader of our compose files: how each service is started.

It is not an engine: it supports what our files use (anchors, `${NAME:-default}`, `${NAME:?needed}`), refuses
the rest, and returns a service's image, command, environment and folders, so that the check uses the shipped
files.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TOP = frozenset({"name", "services", "networks", "volumes"})
SERVICE = frozenset(
    {"image", "build", "command", "environment", "tmpfs", "volumes", "networks", "mem_limit", "cpus", "ports"}
    | {
        "stop_grace_period",
        "healthcheck",
        "restart",
        "init",
        "read_only",
        "cap_drop",
        "cap_add",
        "security_opt",
    }
    | {"logging", "depends_on", "profiles", "deploy"}
)
_VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)(?::([-?])([^}]*))?\}")


class NotCompose(Exception):
    """A compose file uses unsupported syntax."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the host or a named volume, and its mount point."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Service:
    """The start parameters of a container."""

    name: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...]
    tmpfs: tuple[str, ...]
    health: tuple[str, ...]
    dockerfile: str
    plain: Mapping[str, Any]


class _Once(yaml.SafeLoader):
    """Refuses a duplicate key."""


def _mapping(loader: _Once, node: yaml.MappingNode) -> dict[str, Any]:
    keys = [key.value for key, _ in node.value if key.value != "<<"]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise NotCompose(f"line {node.start_mark.line + 1}: {', '.join(sorted(twice))} given twice")
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_Once.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def variables(text: str) -> dict[str, str | None]:
    """Return every variable of a file with its default; None if it is required."""
    return {
        name: None if kind == "?" or not kind else default for name, kind, default in _VARIABLE.findall(text)
    }


def read(path: Path, given: Mapping[str, str]) -> dict[str, Any]:
    """Return a compose file with its variables filled in."""

    def fill(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        value = given.get(name, "")
        if not value and kind == "?":
            raise NotCompose(f"{path.name}: {name}: {rest}")
        return value or (rest if kind == "-" else "")

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return _VARIABLE.sub(fill, value)
        if isinstance(value, list):
            return [filled(each) for each in value]
        return {key: filled(each) for key, each in value.items()} if isinstance(value, dict) else value

    loader = _Once(path.read_text())
    try:
        raw = loader.get_single_data()
    finally:
        loader.dispose()
    table = {key: value for key, value in raw.items() if not key.startswith("x-")}
    if not table.keys() <= TOP:
        raise NotCompose(f"{path.name}: unknown {', '.join(sorted(table.keys() - TOP))}")
    return dict(filled(table))


def service(path: Path, name: str, given: Mapping[str, str]) -> Service:
    """Return one service of a compose file."""
    about = read(path, given)["services"][name]
    if not about.keys() <= SERVICE:
        raise NotCompose(f"{path.name}: {name}: unknown {', '.join(sorted(about.keys() - SERVICE))}")
    health = about.get("healthcheck", {}).get("test", [])
    return Service(
        name=name,
        image=about["image"],
        command=tuple(about.get("command", [])),
        environment={key: str(value) for key, value in about.get("environment", {}).items()},
        mounts=tuple(_mount(each) for each in about.get("volumes", [])),
        tmpfs=tuple(each.partition(":")[0] for each in about.get("tmpfs", [])),
        health=tuple(health[1:] if health[:1] == ["CMD"] else health),
        dockerfile=about.get("build", {}).get("dockerfile", ""),
        plain=about,
    )


def _mount(text: str) -> Mount:
    source, target, *mode = text.split(":")
    if mode not in ([], ["ro"]):
        raise NotCompose(f"volume {text}: saw the mode {mode}, needed ro or none")
    return Mount(source, target, bool(mode))
