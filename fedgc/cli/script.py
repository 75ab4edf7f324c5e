"""The training script of a run: checked, and placed, before anything is started.

For clients on this machine the path is made absolute. For others, a script inside the app in this folder
travels with the app, together with the Python files beside it, and its path counts from the app's folder on
each client; any other script lies on the clients' machines.
"""

import shlex
import sys
from pathlib import Path
from typing import Final

from fedgc.deploy.app_folder import App
from fedgc.errors import BadSetting
from fedgc.training.script.place import script_in
from fedgc.training.script.process import command_of

STAYS: Final = (
    "does not travel, as it is in no app of this folder (`fedgc new` makes an app); each client starts the "
    "file of that name on its own machine"
)


def placed_script(script: str, folder: Path, app: App | None, *, here: bool) -> str:
    """Return the command that clients start; say on the standard error that a file here does not travel.

    Args:
        script: The command, as the setting `script` has it; empty without a script.
        folder: The caller's folder.
        app: The app in that folder, if there is one.
        here: Whether the clients are on this machine.

    Raises:
        BadSetting: The script or its launcher does not exist, or the app cannot carry the script.
    """
    if not script:
        return ""
    words = _words(script)
    file = script_in(words)
    if not here and app is not None and (inside := travels(script, folder, app)):
        if inside not in app.files(inside):
            raise BadSetting(
                f"setting script: saw {file} in the app, needed a file that Flower bundles: "
                "not named in .gitignore, and of a kind that `flwr build` takes, such as train.py"
            )
        return shlex.join(inside if word == file else word for word in words)
    if not here:
        if file and (folder / file).is_file():
            sys.stderr.write(f"script {file}: {STAYS}\n")
        return script
    if file and not (folder / file).is_file():
        raise BadSetting(f"setting script: saw {file}, which is not in {folder}, needed a file that exists")
    command_of(script)
    first = [words[0] if words[0] != file else _absolute(file, folder)]
    return shlex.join(first + [_absolute(word, folder) for word in words[1:]])


def travels(script: str, folder: Path, app: App) -> str:
    """Return the path of a script that lies in the app, from the app's folder; empty if it lies elsewhere."""
    file = script_in(_words(script))
    path, root = (folder / file).resolve(), app.folder.resolve()
    inside = bool(file) and path.is_file() and path.is_relative_to(root)
    return path.relative_to(root).as_posix() if inside else ""


def _words(script: str) -> list[str]:
    try:
        return shlex.split(script)
    except ValueError as error:
        raise BadSetting(f"setting script: saw {script!r}, needed a command line ({error})") from error


def _absolute(word: str, folder: Path) -> str:
    """Return the absolute path of a word that is one of this folder, as its form shows."""
    looks_so = "/" in word or Path(word).suffix
    return str((folder / word).absolute()) if looks_so and (folder / word).exists() else word
