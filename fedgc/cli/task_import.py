"""Imports a task in a process of its own, which finds modules as the clients on this machine do.

The command's process imports no task: a module would stay in it, and `fedgc serve --queue` starts many runs.
"""

import os
import subprocess
import sys
import tempfile
from typing import Final

from fedgc.deploy.app_folder import App
from fedgc.deploy.local_federation import how_ended, python_path
from fedgc.errors import BadTask

# Writes the refusal to a file, since the module may print, and ends at once, whatever threads it has started.
PROGRAM: Final = """
import os, sys
from fedgc.errors import FedgcError
from fedgc.training.tasks.find import imported
name, file = sys.argv[1], int(sys.argv[2])
try:
    imported(name)
except FedgcError as error:
    os.write(file, str(error).encode(errors="replace"))
    os._exit(1)
os._exit(0)
"""


def must_import(name: str, app: App | None, folder: str = "") -> None:
    """Raise BadTask unless clients on this machine, started in this folder, can import the task `name`."""
    paths = [str(app.folder.absolute())] if app is not None else []
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, python_path(folder)])}
    with tempfile.TemporaryFile() as refusal:
        file = refusal.fileno()
        ended = subprocess.run(  # noqa: S603  our own program
            [sys.executable, "-P", "-c", PROGRAM, name, str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=variables,
            pass_fds=(file,),
            check=False,
        )
        refusal.seek(0)
        reason = refusal.read().decode()
    if ended.returncode:
        reason = reason or f"task {name}: the process that imported it {how_ended(ended.returncode)}"
        where = f"; the clients look for modules in {folder}, where `fedgc up` was called" if folder else ""
        raise BadTask(f"{reason}{where}")
