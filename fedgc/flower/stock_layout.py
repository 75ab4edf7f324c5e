"""Converts the named arrays of a stock client to one float32 vector and back.

Floating-point arrays come first; the server's optimizer updates them. The others (counters, masks) get the
weighted mean, rounded to their type.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from fedgc.errors import BadVector

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]
AnyArray = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes and types in the vector's order; `names` is in the order of the messages."""

    names: tuple[str, ...]
    parts: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]

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
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise BadVector(f"array {name!r}: saw {array.dtype}, needed real numbers")
        parts = [(name, array.shape, array.dtype) for name, array in arrays.items()]
        return cls(tuple(arrays), tuple(sorted(parts, key=lambda part: part[2].kind != "f")))

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
            raise BadVector(f"arrays: saw {sorted(arrays)[:8]}, needed {sorted(self.names)[:8]}")
        for name, shape, _ in self.parts:
            array = arrays[name]
            if array.shape != shape or array.dtype.kind not in "fiub":
                raise BadVector(
                    f"array {name!r}: saw {array.dtype} of {array.shape}, needed numbers of {shape}"
                )
        vector: Vector = np.concatenate(
            [np.asarray(arrays[name], np.float32).reshape(-1) for name, _, _ in self.parts]
        )
        if not np.isfinite(vector).all():
            raise BadVector("arrays: saw NaN or Inf, needed finite numbers")
        return vector

    def arrays(self, vector: Vector) -> dict[str, AnyArray]:
        """Return the arrays of a vector."""
        found = {}
        start = 0
        for name, shape, dtype in self.parts:
            end = start + prod(shape)
            part = vector[start:end].reshape(shape)
            found[name] = (part if dtype.kind == "f" else np.rint(part)).astype(dtype)
            start = end
        return {name: found[name] for name in self.names}
