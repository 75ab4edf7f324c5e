"""Install a tiny package from outside the tree: a module and the metadata that pip would write."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def install(
    folder: Path, patch: pytest.MonkeyPatch, module: str, code: str, entry_points: Mapping[str, str]
) -> None:
    """Write the module and its metadata into the folder and put it on `sys.path`.

    `entry_points` maps "group:name" to an attribute of the module.
    """
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / f"{module}.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = []
    for where, attribute in entry_points.items():
        group, _, name = where.partition(":")
        lines.append(f"[{group}]\n{name} = {module}:{attribute}\n")
    (about / "entry_points.txt").write_text("".join(lines))
    patch.syspath_prepend(folder)
    patch.delitem(sys.modules, module, raising=False)
