"""Safe reading of untrusted pickles: only builtin containers, text and numbers.

A pickle is a program. All imports are refused, so it can only build what the format itself can write. The
file is scanned before it is loaded: a value longer than the file, or a memo index beyond the file's length,
would allocate memory without data.
"""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, Final, Never

from fedgc.errors import BadSetting
from fedgc.sim.traces.table import read_bytes
from fedgc.sim.traces.values import shown

REMEMBERS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Never:
        asked = shown(f"{module}.{name}")
        raise BadSetting(f"the pickle asks for {asked}, needed builtin containers and numbers only")

    def persistent_load(self, pid: Any) -> Never:  # noqa: ANN401 - any object
        raise BadSetting(
            f"the pickle refers to {shown(pid)} outside itself, needed containers and numbers only"
        )


def read_plain(path: Path) -> Any:  # noqa: ANN401 - checked by the reader of the format
    """Return the content of a pickle that holds plain data."""
    content = read_bytes(path)
    try:
        _check_memo(content)
        return _Plain(io.BytesIO(content)).load()
    except BadSetting as error:
        raise BadSetting(f"trace {path.name}: {error}") from None
    except Exception as error:  # a broken pickle may raise anything
        said = f"{type(error).__name__}: {shown(str(error))}"
        raise BadSetting(f"trace {path.name}: not a pickle ({said})") from error


def _check_memo(content: bytes) -> None:
    for code, place, at in pickletools.genops(content):
        if code.name in REMEMBERS and place is not None and place >= len(content):
            raise BadSetting(
                f"byte {at} of the pickle asks for memo place {shown(place)}, "
                f"needed one below its {len(content)} bytes"
            )
