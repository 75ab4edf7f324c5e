"""The layout of a model's vector: its tensors and their order, and the base that they belong to."""

import json
import math
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import BadMessage, printable
from fedgc.messages.adapter import Adapter
from fedgc.messages.fields import Count, check
from fedgc.values import Filled, Within, value

LARGEST_SIDE: Final = 1 << 40
MOST_SIDES: Final = 64  # numpy's arrays have no more
FLOATS: Final = ("float32", "bfloat16", "float16", "float64")  # kinds of numbers; on the way all are float32
SHOWN: Final = 40  # characters of a layout that a message repeats
LONGEST_NAME: Final = 1000
SHOWN_NAME: Final = 100  # characters of a tensor's name that a message repeats
FROZEN_DIGITS: Final = 64  # of the digest of frozen parameters, a SHA-256
SHOWN_DIGITS: Final = 12  # of them that a message repeats
SAME_BASE: Final = "load the same base model, of the same dtype, on all clients"
VARIANCE: Final = re.compile(r"(^|[._])(?<!log_)var(iance)?$")  # torch: running_var, of all normalisations
FROZEN: Final = re.compile(f"[0-9a-f]{{{FROZEN_DIGITS}}}")


@value
class TensorSpec:
    """One tensor of the vector."""

    name: Annotated[str, Filled("a name")]
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        check(len(self.name) <= LONGEST_NAME, self, f"a name of at most {LONGEST_NAME} characters")
        check(self.dtype in FLOATS, self, f"a dtype among {', '.join(FLOATS)}")
        check(len(self.shape) <= MOST_SIDES, self, f"at most {MOST_SIDES} sides")
        check(all(0 <= side <= LARGEST_SIDE for side in self.shape), self, "sides of 0 or more")

    @property
    def size(self) -> int:
        """How many numbers the tensor has."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return printable(f"{printable(self.name, SHOWN_NAME)} {self.dtype}{list(self.shape)}")


@value
class Layout:
    """The tensors of a vector: parameters first, then buffers.

    `frozen` is the digest of the frozen parameters, which are not in the vector; empty without any. `adapter`
    tells how PEFT saves the tensors, if they are an adapter.

    >>> layout = Layout((TensorSpec("weight", "float32", (2, 3)), TensorSpec("mean", "float32", (3,))), 1)
    >>> layout.size, layout.parameter_size
    (9, 6)
    """

    tensors: tuple[TensorSpec, ...]
    parameters: Annotated[Count, Within(1, 1 << 32, "at least one parameter")]  # how many of the tensors are
    frozen: str = ""
    adapter: Adapter | None = None

    def __post_init__(self) -> None:
        names = {each.name for each in self.tensors}
        check(len(names) == len(self.tensors), self, "each name once")
        check(self.parameters <= len(self.tensors), self, "no more parameters than tensors")
        if self.frozen and not FROZEN.fullmatch(self.frozen):
            seen = repr(self.frozen[:SHOWN])
            raise BadMessage(f"layout: saw {seen} as frozen, needed {FROZEN_DIGITS} hexadecimal digits")
        if self.adapter is not None and len(self.adapter.names) != len(self.tensors):
            seen = f"{len(self.adapter.names)} names of an adapter"
            raise BadMessage(f"layout: saw {seen}, needed {len(self.tensors)}, one for each tensor")

    @property
    def size(self) -> int:
        """How many numbers the vector has."""
        return sum(each.size for each in self.tensors)

    @property
    def parameter_size(self) -> int:
        """How many of the numbers belong to parameters."""
        return sum(each.size for each in self.tensors[: self.parameters])

    @property
    def buffer_size(self) -> int:
        """How many of the numbers belong to buffers, which are the last."""
        return self.size - self.parameter_size

    @property
    def variances(self) -> tuple[slice, ...]:
        """Where the buffers are that hold variances, by their names; a logarithm may have any sign.

        >>> names = ("weight", "running_mean", "running_var", "log_var")
        >>> Layout(tuple(TensorSpec(f"1.{name}", "float32", (3,)) for name in names), 1).variances
        (slice(6, 9, None),)
        """
        ends = list(accumulate(each.size for each in self.tensors))
        buffers = list(zip(self.tensors, ends, strict=True))[self.parameters :]
        return tuple(slice(end - each.size, end) for each, end in buffers if VARIANCE.search(each.name))

    @property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The names and shapes of the tensors."""
        return tuple((each.name, each.shape) for each in self.tensors)

    def fields(self) -> dict[str, Any]:
        """Return the layout as plain lists and numbers, by name."""
        tensors = [[each.name, each.dtype, list(each.shape)] for each in self.tensors]
        adapter = None if self.adapter is None else self.adapter.fields()
        about = {"frozen": self.frozen, "adapter": adapter}
        return {"tensors": tensors, "parameters": self.parameters, **about}

    def text(self) -> str:
        """Return the layout as JSON text."""
        return json.dumps(self.fields(), separators=(",", ":"))

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Layout":
        """Return the layout of these fields; other fields are ignored.

        Raises:
            BadMessage: The fields are missing or of another form.
        """
        try:
            tensors = tuple(
                TensorSpec(str(name), str(kind), tuple(map(int, shape)))
                for name, kind, shape in fields["tensors"]
            )
            adapter = Adapter.of(fields["adapter"]) if fields.get("adapter") is not None else None
            return cls(tensors, int(fields["parameters"]), str(fields.get("frozen", "")), adapter)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            seen = repr(fields)[:SHOWN]
            raise BadMessage(f"layout: saw {seen}, needed tensors and a number of parameters") from error

    @classmethod
    def read(cls, text: str) -> "Layout":
        """Return the layout that `text` was made of; raise BadMessage if it is of another form."""
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadMessage(f"layout: saw {text[:SHOWN]!r}, needed JSON") from error
        return cls.of(fields)

    def split(self, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return views of a vector, one for each tensor, by name."""
        parts, first = {}, 0
        for each in self.tensors:
            parts[each.name] = vector[first : first + each.size].reshape(each.shape)
            first += each.size
        return parts

    def difference(self, other: "Layout") -> str:
        """Return the first difference of another layout from this one; empty if they are equal.

        >>> one = Layout((TensorSpec("weight", "float32", (2, 3)),), 1)
        >>> one.difference(Layout((TensorSpec("weight", "float32", (2, 4)),), 1))
        'tensor 1: saw weight float32[2, 4], needed weight float32[2, 3]'
        """
        for place, (needed, seen) in enumerate(zip(self.tensors, other.tensors, strict=False), start=1):
            if needed != seen:
                return f"tensor {place}: saw {seen}, needed {needed}"
        if len(self.tensors) != len(other.tensors):
            return f"saw {len(other.tensors)} tensors, needed {len(self.tensors)}"
        if self.parameters != other.parameters:
            return f"saw {other.parameters} parameters among the tensors, needed {self.parameters}"
        if self.frozen != other.frozen:
            bases = [each.frozen[:SHOWN_DIGITS] or "none" for each in (other, self)]
            return f"frozen parameters: saw digest {bases[0]}, needed {bases[1]}; {SAME_BASE}"
        if self.adapter is not None and other.adapter is not None:
            return self.adapter.difference(other.adapter)
        return ""
