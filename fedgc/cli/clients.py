"""The clients that a command starts on this machine, and the settings of each: its node config."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fedgc.cli.settings import value_of
from fedgc.deploy.app_folder import Setting
from fedgc.deploy.local_federation import Node
from fedgc.errors import BadSetting
from fedgc.policy import read_policy

CLIENTS: Final = 4  # started by default
NUMBERS: Final = ("pace-s", "uplink-kb-s")  # reserved settings that are numbers

ClientSettings = Mapping[str, Mapping[str, Setting]]  # by the client's name
NONE: Final[ClientSettings] = MappingProxyType({})


def parse_clients(words: Iterable[str]) -> ClientSettings:
    """Return the settings in these options.

    >>> parse_clients(["north:data=/data/north", "client-0:pace-s=0.2"])
    {'north': {'data': '/data/north'}, 'client-0': {'pace-s': 0.2}}

    Raises:
        BadSetting: An option is not of the form NAME:key=value, or a value cannot be a setting of a client.
    """
    found: dict[str, dict[str, Setting]] = {}
    for word in words:
        name, colon, setting = word.partition(":")
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not (name and colon and key and equals):
            raise BadSetting(f"--client: saw {word!r}, needed NAME:key=value, such as north:data=/data/north")
        if not all(each.isalnum() or each in "-_" for each in key):
            raise BadSetting(f"--client: saw {word!r}, needed a key of letters, digits, - and _")
        if '"' in text or not text.isprintable():
            raise BadSetting(f"--client: saw {word!r}, needed a value in one line, without quotes")
        value = value_of(text)
        if isinstance(value, float) and not math.isfinite(value):
            raise BadSetting(f"--client: saw {word!r}, needed a finite number, or text")
        if key in NUMBERS and not isinstance(value, int | float):
            raise BadSetting(f"--client: saw {word!r}, needed a number")
        if key == "policy":
            read_policy(Path(text))  # a policy that contradicts itself ends here
        Node(name)  # checks the name
        found.setdefault(name, {})[key] = value
    return found


def nodes_of(clients: int | None, own: ClientSettings) -> tuple[Node, ...]:
    """Return the clients to start: the named ones, and more up to `clients`, which count from 0.

    >>> [node.name for node in nodes_of(None, {"north": {}, "south": {}})]
    ['north', 'south']
    >>> [node.name for node in nodes_of(3, {"client-1": {"pace-s": 0.2}})]
    ['client-0', 'client-1', 'client-2']
    """
    wanted = clients if clients is not None else len(own) or CLIENTS
    if wanted < 1:
        raise BadSetting(f"--clients: saw {wanted}, needed at least 1")
    if wanted < len(own):
        raise BadSetting(f"--clients: saw {wanted}, needed at least {len(own)}: --client names {_all(own)}")
    names = [f"client-{number}" for number in range(wanted)]
    others = [name for name in own if name not in names]
    free = [name for name in names if name not in own]
    left_out = set(free[len(free) - len(others) :]) if others else set()
    return tuple(
        Node(name, own.get(name, {})) for name in (*(n for n in names if n not in left_out), *others)
    )


def with_keys(nodes: Iterable[Node], folder: Path) -> tuple[Node, ...]:
    """Return these clients with their keys in a folder that is kept, so that they are the same ones later."""
    return tuple(
        Node(each.name, {"identity": str(folder / f"{each.name}.key"), **each.config}) for each in nodes
    )


def _all(own: ClientSettings) -> str:
    return ", ".join(own)
