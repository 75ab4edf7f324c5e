"""Pickles from others, without running anything: builtin containers, text and numbers, nothing else.

A pickle is a program. Whatever it wants to import is refused by name, so that it can only build what the
format itself can write.
"""

import io
import pickle
from pathlib import Path
from typing import Any, Never

from fedgc.errors import BadSetting
from fedgc.sim.traces.rows import read_bytes


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Never:
        raise BadSetting(f"the pickle asks for {module}.{name}, needed builtin containers and numbers only")

    def persistent_load(self, pid: Any) -> Never:  # noqa: ANN401 - whatever the pickle says
        raise BadSetting(f"the pickle refers to {pid!r} outside itself, needed containers and numbers only")


def read_plain(path: Path) -> Any:  # noqa: ANN401 - what it is, the reader of the format finds out
    """Return what a pickle holds if it holds plain data."""
    try:
        return _Plain(io.BytesIO(read_bytes(path))).load()
    except BadSetting as error:
        raise BadSetting(f"trace {path.name}: {error}") from None
    except Exception as error:  # a broken pickle raises what it likes
        raise BadSetting(f"trace {path.name}: not a pickle ({type(error).__name__}: {error})") from error


def number(value: object, where: str) -> float:
    """Return a number, or say where there was none.

    >>> number(3, "row 1")
    3.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadSetting(f"{where}: saw {str(value)[:40]!r}, needed a number")
    return float(value)
