"""Where the file of a training script lies: a path in the command, in the app or in the working folder."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from fedgc.files import is_file

SUFFIXES: Final = (".py", ".ipynb", ".sh")
MANIFEST: Final = "pyproject.toml"


def script_in(words: Sequence[str]) -> str:
    """Return the script's file in the words of a command; empty if no word looks like one.

    >>> script_in(["torchrun", "--nproc-per-node", "2", "train.py", "--lr", "0.1"]), script_in(["trainer"])
    ('train.py', '')
    """
    return next((word for word in words if word.endswith(SUFFIXES) and not word.startswith("-")), "")


def in_app(script: str, folders: Iterable[str]) -> str:
    """Return the command with the path of a script that lies in the installed app.

    Args:
        script: A command line that can be split.
        folders: Where Python looks for modules: Flower puts the app's folder there.
    """
    words = shlex.split(script)
    file = script_in(words)
    found = next((app / file for app in _apps(folders) if file and is_file(app / file)), None)
    if found is None or Path(file).is_absolute():
        return script
    return shlex.join(str(found) if word == file else word for word in words)


def gateway_command(folders: Iterable[str], run: int) -> str:
    """Return the command that runs the fleet of a site, with the installed app.

    Args:
        folders: Where Python looks for modules: Flower puts the app's folder there.
        run: Flower's number of the consortium's run.
    """
    app = next(_apps(folders), None)
    words = ["--consortium", str(run), *(["--app", str(app)] if app else [])]
    return shlex.join([sys.executable, "-m", "fedgc.cli", "gateway", *words])


def _apps(folders: Iterable[str]) -> Iterator[Path]:
    return (Path(each) for each in folders if (Path(each) / MANIFEST).is_file())
