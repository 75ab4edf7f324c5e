"""The names of runs in the config of the installed app, for a strategy that gets no context of Flower."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from fedgc.config import RunConfig
from fedgc.errors import BadSetting

MANIFEST: Final = "pyproject.toml"


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


def _value_in(folder: str, setting: str) -> object:
    try:
        manifest = tomllib.loads((Path(folder) / MANIFEST).read_text())
        return manifest["tool"]["flwr"]["app"]["config"][setting]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
