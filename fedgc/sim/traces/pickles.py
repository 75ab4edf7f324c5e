"""Pickles from others, without running anything: builtin containers, text and numbers, nothing else.

A pickle is a program. Whatever it wants to import is refused by name, so that it can only build what the
format itself can write. It is read through once before it is built: a value that says it is longer than the
file, or a place in the memo beyond the file's length, would take memory that nothing fills.
"""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, Final, Never

from fedgc.errors import BadSetting
from fedgc.sim.traces.rows import read_bytes
from fedgc.sim.traces.values import shown

REMEMBERS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Never:
        asked = shown(f"{module}.{name}")
        raise BadSetting(f"the pickle asks for {asked}, needed builtin containers and numbers only")

    def persistent_load(self, pid: Any) -> Never:  # noqa: ANN401 - whatever the pickle says
        raise BadSetting(
            f"the pickle refers to {shown(pid)} outside itself, needed containers and numbers only"
        )


def read_plain(path: Path) -> Any:  # noqa: ANN401 - what it is, the reader of the format finds out
    """Return what a pickle holds if it holds plain data."""
    content = read_bytes(path)
    try:
        _check_memo(content)
        return _Plain(io.BytesIO(content)).load()
    except BadSetting as error:
        raise BadSetting(f"trace {path.name}: {error}") from None
    except Exception as error:  # a broken pickle raises what it likes
        said = f"{type(error).__name__}: {shown(str(error))}"
        raise BadSetting(f"trace {path.name}: not a pickle ({said})") from error


def _check_memo(content: bytes) -> None:
    for code, place, at in pickletools.genops(content):
        if code.name in REMEMBERS and place is not None and place >= len(content):
            raise BadSetting(
                f"byte {at} of the pickle asks for memo place {shown(place)}, "
                f"needed one below its {len(content)} bytes"
            )
