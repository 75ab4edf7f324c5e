"""The name of a run in the config of the installed app, for a strategy that gets no context of Flower."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from fedgc.config import RunConfig
from fedgc.errors import BadSetting

MANIFEST: Final = "pyproject.toml"
NAME: Final = "run"


def run_name(overrides: Mapping[str, Any], folders: Iterable[str]) -> str:
    """Return the name that the run was submitted with; empty if it has none.

    Args:
        overrides: The settings of Flower's run that override those of the app.
        folders: Where Python looks for modules: Flower puts the app's folder there.
    """
    name = overrides.get(NAME) or next(filter(None, map(_name_in, folders)), "")
    try:
        return RunConfig(run=name).run
    except BadSetting:  # a setting of the app's own, which happens to have this name
        return ""


def _name_in(folder: str) -> str:
    try:
        manifest = tomllib.loads((Path(folder) / MANIFEST).read_text())
        return str(manifest["tool"]["flwr"]["app"]["config"][NAME])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
