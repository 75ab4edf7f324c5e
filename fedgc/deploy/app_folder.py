"""A Flower app in a folder: a `pyproject.toml` that names its ServerApp and ClientApp.

The run's settings are in `[tool.flwr.app.config]`, those of the task's own also in `[tool.fedgc.task]`.
Flower refuses to override unlisted settings, so a submitted app is a copy that lists all of them.
"""

import json
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomli_w

from fedgc.config import TASK, RunConfig, flat
from fedgc.errors import Unusable, nearest, text_of
from fedgc.policy.digests import STATEMENT

Setting = str | int | float

MANIFEST: Final = "pyproject.toml"
APP_KEYS: Final = (  # of Flower; a key that is close to one would be left out without a word
    "publisher", "components", "config", "fab-include", "fab-exclude", "fab-format-version",
    "flwr-version-target",
)  # fmt: skip
CARRIED: Final = ("**/*.py", "**/*.md", "LICENSE")  # the default bundle of an app


def toml_value(value: Setting) -> str:
    """Return `value` as TOML.

    >>> toml_value("auto"), toml_value(3), toml_value(0.5)
    ('"auto"', '3', '0.5')
    """
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class App:
    """An app in a folder, and the settings that it lists."""

    folder: Path
    settings: Mapping[str, Setting]

    def write(self, folder: Path, settings: Mapping[str, Setting], also: str = "") -> Path:
        """Copy the files of the app's bundle to a new folder, with settings over the defaults.

        `also` is the path of a training script in the app, which is copied with the Python files beside it.
        The statement of the app's task is copied too.
        """
        manifest = _manifest(self.folder)
        about = manifest["tool"]["flwr"]["app"]
        more = [str(Path(also).parent / "*.py")] if also else []
        more += [STATEMENT] if (self.folder / STATEMENT).is_file() else []
        patterns = list(dict.fromkeys([*about.get("fab-include", CARRIED), *more]))
        if more and "fab-include" in about:
            about["fab-include"] = patterns
        for path in self._carried(patterns):
            copy = folder / path.relative_to(self.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        about["config"] = {**RunConfig().table(), **settings}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).write_text(tomli_w.dumps(manifest))
        return folder

    def _carried(self, patterns: list[str]) -> Iterator[Path]:
        found = {path for pattern in patterns for path in self.folder.glob(pattern) if path.is_file()}
        for path in sorted(found):
            inside = path.relative_to(self.folder)
            if not any(re.match(r"\.|__pycache__", part) for part in inside.parts[:-1]):
                yield path


def app_in(folder: Path) -> App | None:
    """Return the app in this folder, if there is one; raise Unusable if its settings are invalid."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest = _manifest(folder)
    app = _table(manifest, folder, "tool", "flwr", "app")
    if "serverapp" not in _table(manifest, folder, "tool", "flwr", "app", "components"):
        return None
    for name in app:
        if name not in APP_KEYS and (meant := nearest(name, APP_KEYS)):
            raise Unusable(f"{folder / MANIFEST}: [tool.flwr.app]: unknown key {name!r}{meant}")
    settings = dict(flat(_table(manifest, folder, "tool", "flwr", "app", "config")))
    own = flat(_table(manifest, folder, "tool", "fedgc", "task"))
    settings |= {f"{TASK}{name}": value for name, value in own}
    try:
        RunConfig.read(settings)
    except Unusable as error:
        raise Unusable(f"{folder / MANIFEST}: [tool.flwr.app.config]: {error}") from error
    return App(folder, settings)


def _table(manifest: Mapping[str, Any], folder: Path, *names: str) -> Mapping[str, Any]:
    """Return a nested table of the manifest; an empty one if it is not there."""
    table = manifest
    for depth, name in enumerate(names, 1):
        inner = table.get(name, {})
        if not isinstance(inner, Mapping):
            where = ".".join(names[:depth])
            raise Unusable(f"{folder / MANIFEST}: [{where}]: saw {inner!r}, needed a table")
        table = inner
    return table


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise Unusable(f"{folder / MANIFEST}: cannot be read: {text_of(error, folder / MANIFEST)}") from error
