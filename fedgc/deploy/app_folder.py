"""A Flower app in a folder: a `pyproject.toml` that names its ServerApp and ClientApp.

The run's settings are in `[tool.flwr.app.config]`, those of the task's own also in `[tool.fedgc.task]`. Where
the manifest names no ServerApp, fedgc's own app runs with these settings, such as beside a plain script.
Flower refuses to override unlisted settings, so a submitted app is a copy that lists all of them.
"""

import json
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomli_w

from fedgc.config import TASK, RunConfig, check_each, flat
from fedgc.errors import Unusable, nearest, text_of
from fedgc.flower.app_bundle import bundled_files
from fedgc.policy.digests import STATEMENT

Setting = str | int | float

MANIFEST: Final = "pyproject.toml"
APP_KEYS: Final = (  # of Flower; a key that is close to one would be left out without a word
    "publisher", "components", "config", "fab-include", "fab-exclude", "fab-format-version",
    "flwr-version-target",
)  # fmt: skip


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
    is_whole: bool = True  # it names a ServerApp; else it has settings alone

    def files(self, script: str = "") -> dict[str, Path]:
        """Return the files that travel with the app, by their paths in it, without the manifest.

        They are those that `flwr build` takes, and besides what `fab-include` lists: the Python files in the
        folder of the training script at the path `script`, and the statement of the app's task.
        """
        about = _table(_manifest(self.folder), self.folder, "tool", "flwr", "app")
        return bundled_files(self.folder, about, script, STATEMENT)

    def write(self, folder: Path, settings: Mapping[str, Setting], script: str = "") -> Path:
        """Copy the files that travel with the app to a new folder, with settings over the defaults."""
        for name, path in self.files(script).items():
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        manifest = _manifest(self.folder)
        about = manifest["tool"]["flwr"]["app"]
        for patterns in ("fab-include", "fab-exclude"):  # the files are chosen
            about.pop(patterns, None)
        about["config"] = {**RunConfig().table(), **settings}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).write_text(tomli_w.dumps(manifest))
        return folder


def whole(app: App | None) -> App | None:
    """Return the app unless it has settings alone, so that fedgc's own app runs."""
    return app if app is not None and app.is_whole else None


def app_in(folder: Path) -> App | None:
    """Return the app in this folder, or its settings alone; None if it has neither.

    Raises:
        Unusable: A setting is invalid, or the manifest names a ClientApp alone.
    """
    if not (folder / MANIFEST).is_file():
        return None
    manifest = _manifest(folder)
    app = _table(manifest, folder, "tool", "flwr", "app")
    components = _table(manifest, folder, "tool", "flwr", "app", "components")
    if components and "serverapp" not in components:
        raise Unusable(
            f"{folder / MANIFEST}: [tool.flwr.app.components]: saw {', '.join(components)}, needed serverapp "
            "and clientapp"
        )
    for name in app:
        if name not in APP_KEYS and (meant := nearest(name, APP_KEYS)):
            raise Unusable(f"{folder / MANIFEST}: [tool.flwr.app]: unknown key {name!r}{meant}")
    settings = dict(flat(_table(manifest, folder, "tool", "flwr", "app", "config")))
    own = flat(_table(manifest, folder, "tool", "fedgc", "task"))
    settings |= {f"{TASK}{name}": value for name, value in own}
    try:
        check_each(settings)
    except Unusable as error:
        raise Unusable(f"{folder / MANIFEST}: [tool.flwr.app.config]: {error}") from error
    return App(folder, settings, bool(components)) if settings or components else None


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
