"""The folder in which a user's runs, keys and caches are kept."""

from collections.abc import Mapping
from pathlib import Path

from fedgc.errors import Unusable


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return fedgc's folder in the user's state directory, by the XDG base directory specification.

    A relative path would mean another folder for each process that starts elsewhere.

    >>> state_folder({"HOME": "/home/ada"}).as_posix()
    '/home/ada/.local/state/fedgc'
    >>> state_folder({"HOME": "/home/ada", "XDG_STATE_HOME": "/state"}).as_posix()
    '/state/fedgc'
    """
    named = environment.get("XDG_STATE_HOME")
    if named and not Path(named).is_absolute():
        raise Unusable(f"XDG_STATE_HOME: saw {named}, needed an absolute path")
    home = environment.get("HOME")
    return (Path(named) if named else (Path(home) if home else Path.home()) / ".local" / "state") / "fedgc"
