"""Safe reading of untrusted pickles: only builtin containers, text, numbers, and numpy's numbers.

A pickle is a program. Nothing that it names is imported: the few names in which numpy writes a scalar or an
array stand for the functions of this module, which read numbers from bytes of the file and return Python's
own; every other name is refused. The file is scanned before it is loaded: a value longer than the file, or a
memo index beyond the file's length, would allocate memory without data. For the same reason all arrays
together have at most as many bytes as the file.
"""

import io
import math
import pickle
import pickletools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Never

import numpy as np

from fedgc.errors import BadSetting
from fedgc.sim.traces.table import read_bytes
from fedgc.sim.traces.values import shown

REMEMBERS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
NUMBERS: Final = frozenset(
    {"b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"}
)
MOST_AXES: Final = 32
ARRAY: Final = "numpy.ndarray"  # a marker among the arguments
LIST: Final = "builtins.list"  # recordings of AWS Lambda contain the type itself as a value


class _Reads:
    """What a name of numpy stands for; a pickle can call it and cannot change it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> object:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> Never:
        raise BadSetting(f"the pickle gives a function of numpy the state {shown(state)}, needed none")


class _Dtype:
    """The type of numpy's numbers."""

    __slots__ = ("name",)

    def __init__(self, name: object, *_: object) -> None:
        if name not in NUMBERS:
            raise BadSetting(f"the pickle has numpy values of type {shown(name)}, needed numbers")
        self.name = str(name)

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 8 or state[1] not in {"<", ">", "|"}:
            raise BadSetting(f"the pickle has a numpy type with state {shown(state)}, needed a byte order")
        if state[2:5] != (None, None, None):
            raise BadSetting(f"the pickle has numpy values with fields {shown(state[2:5])}, needed numbers")
        self.name = f"{state[1]}{self.name[-2:]}"


class _Array(list[Any]):
    """An array as nested lists; its numbers follow in the state."""

    __slots__ = ("_numbers",)

    def __init__(self, numbers: "_Numbers") -> None:
        super().__init__()
        self._numbers = numbers

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise BadSetting(f"the pickle has an array with state {shown(state)}, needed five values")
        _, shape, dtype, is_fortran, data = state
        self[:] = self._numbers.array(data, dtype, shape, "F" if is_fortran else "C")


class _Numbers:
    """Reads numpy's numbers of one file from at most `bytes_left` bytes."""

    def __init__(self, bytes_left: int) -> None:
        self._bytes_left = bytes_left

    @property
    def by_name(self) -> Mapping[tuple[str, str], object]:
        """Return what each name that a pickle may ask for stands for."""
        found: dict[tuple[str, str], object] = {
            ("numpy", "dtype"): _Reads(_Dtype),
            ("numpy", "ndarray"): ARRAY,
            ("_codecs", "encode"): _Reads(self.encoded),
            ("builtins", "list"): LIST,
            ("__builtin__", "list"): LIST,
        }
        for core in ("numpy.core", "numpy._core"):
            found[f"{core}.multiarray", "scalar"] = _Reads(self.scalar)
            found[f"{core}.multiarray", "_reconstruct"] = _Reads(self.empty)
            found[f"{core}.numeric", "_frombuffer"] = _Reads(self.array)
        return MappingProxyType(found)

    def encoded(self, text: object, encoding: object) -> bytes:
        """Return the bytes that protocols before 3 write as text."""
        if not isinstance(text, str) or encoding != "latin1":
            raise BadSetting(f"the pickle encodes {shown(text)} as {shown(encoding)}, needed bytes as latin1")
        self._spend(len(text))
        return text.encode("latin1")

    def scalar(self, dtype: object, data: object) -> object:
        """Return a number."""
        return self._read(data, dtype, 1).item()

    def empty(self, kind: object, *_: object) -> _Array:
        """Return an array whose numbers follow."""
        if kind != ARRAY:
            raise BadSetting(f"the pickle has an array of class {shown(kind)}, needed numpy.ndarray")
        return _Array(self)

    def array(self, data: object, dtype: object, shape: object, order: object) -> list[Any]:
        """Return an array of one axis or more as nested lists."""
        if not isinstance(shape, tuple) or not 1 <= len(shape) <= MOST_AXES or order not in {"C", "F"}:
            raise BadSetting(f"the pickle has an array of shape {shown(shape)}, needed 1 to {MOST_AXES} axes")
        if not all(type(axis) is int and axis > 0 for axis in shape):
            raise BadSetting(f"the pickle has an array of shape {shown(shape)}, needed axes of 1 or more")
        found: list[Any] = self._read(data, dtype, math.prod(shape)).reshape(shape, order=order).tolist()
        return found

    def _read(self, data: object, dtype: object, count: int) -> Any:  # noqa: ANN401  an array of numbers
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray):
            raise BadSetting(f"the pickle has numpy values from {shown(data)}, needed bytes and their type")
        kind = np.dtype(dtype.name)
        if len(data) != count * kind.itemsize:
            raise BadSetting(
                f"the pickle has {shown(count)} numpy values in {len(data)} bytes, "
                f"needed {kind.itemsize} bytes each"
            )
        self._spend(len(data))
        return np.frombuffer(data, kind)

    def _spend(self, count: int) -> None:
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise BadSetting("the pickle repeats its arrays, needed at most as many bytes as it has")


class _Plain(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._by_name = _Numbers(2 * len(content)).by_name  # protocols before 3 read each byte twice

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - any object
        found = self._by_name.get((module, name))
        if found is None:
            asked = shown(f"{module}.{name}")
            raise BadSetting(f"the pickle asks for {asked}, needed containers and numbers only")
        return found

    def persistent_load(self, pid: Any) -> Never:  # noqa: ANN401 - any object
        raise BadSetting(
            f"the pickle refers to {shown(pid)} outside itself, needed containers and numbers only"
        )


def read_plain(path: Path) -> Any:  # noqa: ANN401 - checked by the reader of the format
    """Return the content of a pickle that holds plain data."""
    content = read_bytes(path)
    try:
        _check_memo(content)
        return _Plain(content).load()
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
