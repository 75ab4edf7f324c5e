"""Flower's programs as a federation on this machine finds them: the same ones, quicker to start.

Flower starts a process for everything, and each begins with a second of imports. A third of it goes by in
looking for garbage in what was imported, which stays; so none is looked for until the program itself begins.

May import: the standard library.
"""

import shlex
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

_PROGRAM: Final = """#!/bin/sh
'''exec' {python} "$0" "$@"
'''
import gc
import sys

gc.disable()
from {module} import {function}

gc.freeze()
gc.enable()
sys.exit({function}())
"""  # a shell reads its second line, Python a string: so the interpreter's path may be of any length


def write_programs(folder: Path) -> None:
    """Write every program that Flower installs, to be found in this folder before the installed ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in distribution("flwr").entry_points.select(group="console_scripts"):
        program, python = folder / each.name, shlex.quote(sys.executable)
        program.write_text(_PROGRAM.format(python=python, module=each.module, function=each.attr))
        program.chmod(0o755)
