"""The node config of a deployed client: what the options of `fedgc deploy client` say, and keys of the user.

Flower's program reads it as TOML, with one line for each key, so a key may be there only once.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from fedgc.errors import Unusable

OPTION: Final = "--node-config (FEDGC_NODE_CONFIG)"
SETTING: Final = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")  # as Flower's program reads it
BY_OPTION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "name": "--name (FEDGC_NAME)",
        "identity": "--state (FEDGC_STATE), the folder that has it,",
        "cache": "--cache (FEDGC_CACHE)",
        "policy": "--policy (FEDGC_POLICY)",
    }
)


def read_settings(text: str) -> dict[str, Any]:
    """Return the settings in a node config.

    >>> read_settings('data="/data/ward.pt" part=0')
    {'data': '/data/ward.pt', 'part': 0}

    Raises:
        Unusable: Flower's program cannot read them, or would leave one out.
    """
    try:
        found = tomllib.loads("\n".join(f"{key} = {value}" for key, value in SETTING.findall(text)))
        left_out = SETTING.sub("", text).strip()
    except tomllib.TOMLDecodeError:
        left_out = text
    if left_out:
        raise Unusable(
            f"{OPTION}: saw {left_out}, needed key=value with spaces between, each key once, "
            'and texts in quotes, such as data="/data/ward.pt"'
        )
    return found


def whole_text(options: Mapping[str, str | Path], usual: Mapping[str, float | Path], given: str) -> str:
    """Return the node config of a client.

    Args:
        options: What its options say, by the keys of `BY_OPTION`.
        usual: Other keys, where the user gives none.
        given: The user's own text.

    Raises:
        Unusable: The user gives a key that has an option, or Flower's program cannot read the text.
    """
    settings = read_settings(given)
    for key in options:
        if key in settings:
            raise Unusable(f"{OPTION}: saw {key}, needed {BY_OPTION[key]} in its place")
    own = {**options, **{key: value for key, value in usual.items() if key not in settings}}
    words = (f"{key}={_written(value)}" for key, value in own.items())
    read_settings(text := " ".join((*words, given)).strip())
    return text


def _written(value: str | float | Path) -> str:
    return str(value) if isinstance(value, int | float) else f'"{value}"'
