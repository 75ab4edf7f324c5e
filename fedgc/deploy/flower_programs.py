"""Flower's programs for a local federation or a deployed client: wrappers that start faster.

Flower starts many processes, and each begins with a second of imports. A third of it is garbage collection of
imported objects, which stay; so the wrappers disable it until the program begins. A program's package also
imports databases and web servers that a ClientApp never uses; so the wrappers import the program's own module
without running its package. The wrapper of ClientApps checks each app against the policy and the
descriptor of its site. That of SuperNodes ends one that has given up its SuperLink.
"""

import shlex
import sys
from importlib.metadata import Distribution, EntryPoint, distribution
from pathlib import Path
from typing import Final

from fedgc.processes.supervision import CLIENT_APP

SUPERNODE: Final = "flower-supernode"
_PROGRAM: Final = """#!/bin/sh
'''exec' {python} "$0" "$@"
'''
if __name__ == "__main__":  # what it starts by multiprocessing reads it again
    import gc
    import sys

    gc.disable()
    {taken}
    gc.freeze()
    gc.enable()
    sys.exit({function}())
"""  # a shell reads its second line, Python a string: so the interpreter's path may have any length
_ALONE: Final = """from types import ModuleType

    sys.modules["{package}"] = ModuleType("{package}")
    sys.modules["{package}"].__path__ = [{folder!r}]
    """
_GUARDED: Final = """
    from fedgc.flower.app_guard import guard

    guard()"""
_FOLLOWED: Final = """
    from fedgc.flower.contact import followed

    flower_supernode = followed(flower_supernode)"""
_MORE: Final = {CLIENT_APP: _GUARDED, SUPERNODE: _FOLLOWED}


def write_programs(folder: Path) -> None:
    """Write a wrapper for every program that Flower installs; the folder goes first on the path."""
    folder.mkdir(parents=True, exist_ok=True)
    flower = distribution("flwr")
    for each in flower.entry_points.select(group="console_scripts"):
        program, python = folder / each.name, shlex.quote(sys.executable)
        taken = _taken(flower, each) + _MORE.get(each.name, "")
        program.write_text(_PROGRAM.format(python=python, taken=taken, function=each.attr))
        program.chmod(0o755)


def _taken(flower: Distribution, program: EntryPoint) -> str:
    package = Path(str(flower.locate_file(program.module.replace(".", "/"))))
    if not (package / f"{program.attr}.py").is_file():
        return f"from {program.module} import {program.attr}"
    alone = _ALONE.format(package=program.module, folder=str(package))
    return f"{alone}from {program.module}.{program.attr} import {program.attr}"
