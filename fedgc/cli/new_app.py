"""`fedgc new`: writes a Flower app around a task of the user, without a network."""

import keyword
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from fedgc.cli.template import FILES
from fedgc.deploy.flower_version import supported
from fedgc.errors import Unusable, system_errors


def write_new(folder: Path) -> None:
    """Write the app, with the interpreter for its Makefile."""
    package = package_of(folder.name or folder.resolve().name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Unusable(f"{folder}: saw something there, needed a folder that is new or empty")
    with system_errors(f"{folder}: cannot be written"):
        for name, text in FILES.items():
            path = folder / name.replace("PACKAGE", package)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_filled(text, folder.name, package))
        (folder / ".python").write_text(f"{sys.executable}\n")
    sys.stdout.write(
        f"{folder} is written: `cd {shlex.quote(str(folder))} && make test` runs it, "
        f"{package}/task.py is yours to change\n"
    )


def _filled(text: str, name: str, package: str) -> str:
    return text.replace("PACKAGE", package).replace("FLOWER", supported()).replace("NAME", name)


def package_of(name: str) -> str:
    """Return the package for an app of this name.

    >>> package_of("Ward-3")
    'ward_3'
    """
    package = name.lower().replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", package) or keyword.iskeyword(package):
        raise Unusable(
            f"name {name!r}: needed letters, digits, - and _, the first a letter, and no keyword of Python"
        )
    if package in (*sys.stdlib_module_names, "tests") or _installed(package):
        raise Unusable(f"name {name!r}: there is a package {package!r} already, needed a name of its own")
    return package


def _installed(package: str) -> bool:
    """Whether the app would shadow a package; a bare folder, such as the app's own, is none."""
    found = find_spec(package)
    return found is not None and found.origin is not None
