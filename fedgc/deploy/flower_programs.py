"""Flower's programs as a federation on this machine finds them: the same ones, quicker to start.

Flower starts a process for everything, and each begins with a second of imports. A third of it goes by in
looking for garbage in what was imported, which stays; so none is looked for until the program itself begins.
And a program's package imports its neighbours, with databases and web servers that a ClientApp never opens;
so the program is taken from its own module, with its package around it but nothing that the package imports.
"""

import shlex
import sys
from importlib.metadata import Distribution, EntryPoint, distribution
from pathlib import Path
from typing import Final

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
"""  # a shell reads its second line, Python a string: so the interpreter's path may be of any length
_ALONE: Final = """from types import ModuleType

    sys.modules["{package}"] = ModuleType("{package}")
    sys.modules["{package}"].__path__ = [{folder!r}]
    """


def write_programs(folder: Path) -> None:
    """Write every program that Flower installs, to be found in this folder before the installed ones."""
    folder.mkdir(parents=True, exist_ok=True)
    flower = distribution("flwr")
    for each in flower.entry_points.select(group="console_scripts"):
        program, python = folder / each.name, shlex.quote(sys.executable)
        program.write_text(_PROGRAM.format(python=python, taken=_taken(flower, each), function=each.attr))
        program.chmod(0o755)


def _taken(flower: Distribution, program: EntryPoint) -> str:
    package = Path(str(flower.locate_file(program.module.replace(".", "/"))))
    if not (package / f"{program.attr}.py").is_file():
        return f"from {program.module} import {program.attr}"
    alone = _ALONE.format(package=program.module, folder=str(package))
    return f"{alone}from {program.module}.{program.attr} import {program.attr}"
