"""The files of an app that Flower sends to the SuperLink and to every client, chosen as Flower does.

Its rules are the built-in patterns of `flwr build`, the app's `.gitignore`, `fab-include` and `fab-exclude`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedgc.errors import Unusable


def bundle_of(folder: Path) -> bytes:
    """Return the app in a folder as Flower sends it."""
    from flwr.cli.build import build_fab_from_disk

    bundle: bytes = build_fab_from_disk(folder)
    return bundle


def bundled_files(
    folder: Path, about: Mapping[str, Any], script: str = "", statement: str = ""
) -> dict[str, Path]:
    """Return the files of an app's bundle, without the manifest, by their paths in the app.

    `about` is the table `tool.flwr.app` of the manifest. The Python files in the folder of `script`, and the
    file `statement`, need not be in its `fab-include`.

    Raises:
        Unusable: A pattern in the manifest is invalid or matches no file, or a file lies too deep.
    """
    from flwr.cli.build import get_filtered_fab_paths
    from flwr.cli.utils import filter_paths_for_publish

    found = dict(_files_in(folder))
    try:
        files = filter_paths_for_publish(found)
        if isinstance(included := about.get("fab-include"), list):
            more = [name for name in files if name == statement or (script and _is_beside(name, script))]
            about = {**about, "fab-include": [*included, *map(_pattern, more)]}
        names = get_filtered_fab_paths(files, {"tool": {"flwr": {"app": about}}})
    except ValueError as error:
        raise Unusable(f"{folder}: Flower cannot bundle this app: {' '.join(str(error).split())}") from error
    return {name: found[name] for name in sorted(names)}


def _files_in(folder: Path, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the files that Flower's `collect_files` finds, which takes 5 times as long: no symbolic links."""
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _files_in(Path(entry.path), f"{prefix}{entry.name}/")
        elif not entry.is_symlink():
            yield prefix + entry.name, Path(entry.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what a folder holds; Flower passes over one that may not be read, such as that of a database."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _is_beside(name: str, script: str) -> bool:
    return name.endswith(".py") and Path(name).parent == Path(script).parent


def _pattern(name: str) -> str:
    r"""Return the pattern of `.gitignore` that matches this path only.

    >>> _pattern("digits/train[1].py")
    '/digits/train\\[1\\].py'
    """
    return "/" + re.sub(r"([\[\]!*#?\\])", r"\\\1", name)
