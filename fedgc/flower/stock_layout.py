"""Converts the named arrays of a stock client to one float32 vector and back.

Floating-point arrays come first; the server's optimizer updates them. The others (counters, masks) get the
weighted mean, rounded to their type.

A number that no client changes keeps all digits of the first model, also those that float32 does not hold.
What float32 cannot hold at all (the -inf of a mask, a double of 1e300) must not be changed.

A checkpoint holds the layout as text, so a model can be exported without the app's code.
"""

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np

from fedgc.errors import BadVector, EdgeFailed
from fedgc.guards import guarded

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]
AnyArray = np.ndarray[Any, np.dtype[Any]]
Part = tuple[str, tuple[int, ...], np.dtype[Any]]
MOST_NAMED: Final = 4  # arrays


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes and types in the vector's order; `names` is in the order of the messages."""

    names: tuple[str, ...]
    parts: tuple[Part, ...]
    first: Mapping[str, AnyArray] = field(default_factory=dict)  # those that float32 does not hold exactly

    @classmethod
    def of(cls, arrays: Mapping[str, AnyArray]) -> "Layout":
        """Return the layout of these arrays.

        >>> arrays = {"n": np.array([3]), "w": np.array([[1.0, 2.0]])}
        >>> layout = Layout.of(arrays)
        >>> layout.vector(arrays).tolist(), layout.parameters
        ([1.0, 2.0, 3.0], 2)
        >>> layout.arrays(np.float32([4, 5, 6.2]))
        {'n': array([6]), 'w': array([[4., 5.]])}
        """
        if not arrays:
            raise BadVector("arrays: saw none, needed the arrays of a model")
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise BadVector(f"array {name!r}: saw {array.dtype}, needed real numbers")
        parts = [(name, array.shape, array.dtype) for name, array in arrays.items()]
        inexact = {name: array for name, array in arrays.items() if not _is_held(array)}
        return cls(tuple(arrays), _in_order(parts), inexact)

    def text(self) -> str:
        """Return the layout as text, without the digits of a double that float32 rounds.

        >>> layout = Layout.of({"n": np.array([1 << 40]), "mask": np.array([0, -np.inf], np.float32)})
        >>> Layout.read(layout.text()).arrays(np.zeros(3, np.float32))["mask"].tolist()
        [0.0, -inf]
        """
        kept = {name: array for name, array in self.first.items() if not _is_rounded(array)}
        file = io.BytesIO()
        np.savez_compressed(
            file, allow_pickle=False, **{str(self.names.index(name)): each for name, each in kept.items()}
        )
        shapes = {name: [dtype.str, *shape] for name, shape, dtype in self.parts}
        parts = [[name, *shapes[name]] for name in self.names]
        return json.dumps({"arrays": parts, "first": base64.b64encode(file.getvalue()).decode()})

    @classmethod
    def read(cls, text: str) -> "Layout":
        """Return the layout of a text, or raise EdgeFailed."""
        if not text:
            raise EdgeFailed(
                "layout: saw a checkpoint of an earlier fedgc, needed one with the names of its arrays"
            )
        with guarded("a layout", "of stock clients", EdgeFailed):
            fields = json.loads(text)
            with np.load(io.BytesIO(base64.b64decode(fields["first"])), allow_pickle=False) as file:
                first = {fields["arrays"][int(number)][0]: file[number] for number in file.files}
            parts = [
                (str(name), tuple(map(int, shape)), np.dtype(kind)) for name, kind, *shape in fields["arrays"]
            ]
            return cls(tuple(name for name, _, _ in parts), _in_order(parts), first)

    @property
    def parameters(self) -> int:
        """The length of the floating-point part of the vector."""
        return sum(prod(shape) for _, shape, dtype in self.parts if dtype.kind == "f")

    @property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The names and shapes of the arrays, in the vector's order."""
        return tuple((name, shape) for name, shape, _ in self.parts)

    def vector(self, arrays: Mapping[str, AnyArray]) -> Vector:
        """Return these arrays as a vector, or raise BadVector if they do not have this layout."""
        if set(arrays) != set(self.names):
            without, others = sorted({*self.names} - {*arrays}), sorted({*arrays} - {*self.names})
            raise BadVector(
                f"arrays: saw {len(arrays)}{_named(' without', without)}{_named(' with', others)}, "
                f"needed the {len(self.names)} of the first model"
            )
        for name, shape, _ in self.parts:
            array = arrays[name]
            if array.shape != shape or array.dtype.kind not in "fiub":
                raise BadVector(
                    f"array {name!r}: saw {array.dtype} of {array.shape}, needed numbers of {shape}"
                )
        vector: Vector = np.concatenate(
            [self._finite(name, arrays[name]).reshape(-1) for name, _, _ in self.parts]
        )
        return vector

    def _finite(self, name: str, array: AnyArray) -> AnyArray:
        """Return an array in float32, with 0 in place of what float32 cannot hold in the first model."""
        single = _single(array)
        if name in self.first:
            first = self.first[name]
            fixed = np.isinf(_single(first))
            if (array[fixed] != first[fixed]).any():
                raise BadVector(
                    f"array {name!r}: saw a change of {first[fixed][0]}, which no mean in float32 holds"
                )
            single = np.where(fixed, np.float32(0), single)
        if not np.isfinite(single).all():
            raise BadVector(f"array {name!r}: saw NaN or Inf, needed finite numbers")
        return single

    def arrays(self, vector: Vector) -> dict[str, AnyArray]:
        """Return the arrays of a vector, or raise BadVector if it has another length."""
        size = sum(prod(shape) for _, shape, _ in self.parts)
        if vector.size != size:
            raise BadVector(f"model: saw {vector.size} numbers, needed {size}")
        found = {}
        start = 0
        for name, shape, dtype in self.parts:
            end = start + prod(shape)
            part = vector[start:end].reshape(shape)
            found[name] = _cast(part, dtype)
            if name in self.first:
                first = self.first[name]
                held = _single(first)
                found[name] = np.where(np.isinf(held) | (held == part), first, found[name])
            start = end
        return {name: found[name] for name in self.names}


def _named(word: str, names: list[str]) -> str:
    """Return the first of these names after a word; empty without any.

    >>> _named("with", ["head.bias", "head.weight"])
    "with 'head.bias', 'head.weight'"
    """
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{word} {', '.join(map(repr, names[:MOST_NAMED]))}{more}" if names else ""


def _in_order(parts: list[Part]) -> tuple[Part, ...]:
    """Return the parts in the vector's order: floating-point arrays first."""
    return tuple(sorted(parts, key=lambda part: part[2].kind != "f"))


def _is_rounded(array: AnyArray) -> bool:
    """Whether float32 holds these numbers to its precision."""
    return array.dtype.kind == "f" and bool(np.isfinite(_single(array)).all())


def _single(array: AnyArray) -> AnyArray:
    with np.errstate(over="ignore"):
        return np.asarray(array, np.float32)


def _is_held(array: AnyArray) -> bool:
    single = _single(array)
    return bool(np.isfinite(single).all() and (_cast(single, array.dtype) == array).all())


def _cast(single: AnyArray, dtype: np.dtype[Any]) -> AnyArray:
    """Convert float32 numbers to a type: rounded, and limited to its range."""
    if dtype.kind == "f":
        largest = np.finfo(dtype).max if dtype.itemsize < single.itemsize else np.inf
        return np.asarray(np.clip(single, -largest, largest)).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(np.rint(single)).astype(dtype)
    info = np.iinfo(dtype)
    top = float(info.max)
    top = top if int(top) <= info.max else float(np.nextafter(top, 0))
    return np.asarray(np.clip(np.rint(single.astype(np.float64)), info.min, top)).astype(dtype)
