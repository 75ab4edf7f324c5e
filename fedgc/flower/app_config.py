"""What a strategy, which gets no context of Flower, is told beside its settings.

The names of runs are in the config of the installed app, the addresses of a deployment in the environment.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fedgc.config import RunConfig
from fedgc.errors import BadSetting

MANIFEST: Final = "pyproject.toml"
PLACE: Final = ("bind", "advertise", "authority")  # settings that a deployment sets as FEDGC_BIND, ...


def submitted_name(setting: str, overrides: Mapping[str, Any], folders: Iterable[str]) -> str:
    """Return the value of `run` or `resume` that the run was submitted with; empty if it has none.

    Args:
        setting: Which of the two.
        overrides: The settings of Flower's run that override those of the app.
        folders: Where Python looks for modules: Flower puts the app's folder there.
    """
    name = overrides.get(setting) or next(filter(None, (_value_in(each, setting) for each in folders)), "")
    if not isinstance(name, str):  # a setting of the app's own, which happens to have this name
        return ""
    try:
        RunConfig.read({setting: name})
    except BadSetting:
        return ""
    return name


def placed(config: RunConfig, environment: Mapping[str, str]) -> RunConfig:
    """Fill in the listener's addresses from the deployment's environment, where they have their defaults.

    >>> placed(RunConfig(), {"FEDGC_ADVERTISE": "fl.example.org:443"}).advertise
    'fl.example.org:443'
    """
    usual = RunConfig()
    known: dict[str, Any] = {
        name: environment[f"FEDGC_{name.upper()}"]
        for name in PLACE
        if environment.get(f"FEDGC_{name.upper()}") and getattr(config, name) == getattr(usual, name)
    }
    return replace(config, **known)


def _value_in(folder: str, setting: str) -> object:
    try:
        manifest = tomllib.loads((Path(folder) / MANIFEST).read_text())
        return manifest["tool"]["flwr"]["app"]["config"][setting]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
