"""Frozen values that are quick to make: messages are made by the million.

A frozen dataclass fills itself with `object.__setattr__`, which looks up every name anew. The setters of its
slots write at once: a message of ten fields is made in half the time, and is as frozen as before.

May import: nothing.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, dataclass_transform

Value = TypeVar("Value")


@dataclass_transform(frozen_default=True)
def value(cls: type[Value]) -> type[Value]:
    """Make a frozen dataclass with slots of this class; every field is given, or has a plain default.

    >>> @value
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(1, 0), hash(Point(1)) == hash(Point(1, 0))
    (Point(x=1, y=0), True, True)
    """
    made: Any = dataclass(frozen=True, slots=True)(cls)
    odd = [each.name for each in fields(made) if not each.init or each.default_factory is not MISSING]
    if odd:
        raise TypeError(
            f"{cls.__name__}: saw {', '.join(odd)}, needed fields that are given or have a default"
        )
    slow = made.__init__
    quick = _filler([each.name for each in fields(made)], made)
    for kept in ("__defaults__", "__annotations__", "__qualname__", "__module__"):
        setattr(quick, kept, getattr(slow, kept))
    made.__init__ = quick
    done: type[Value] = made
    return done


def _filler(names: list[str], made: Any) -> Callable[..., None]:  # noqa: ANN401  a class of any kind
    """Return an `__init__` that sets these slots; its text is made of their names, as dataclasses do."""
    text = "".join(f"    set_{name}(self, {name})\n" for name in names)
    after = "    self.__post_init__()\n" if hasattr(made, "__post_init__") else ""
    scope: dict[str, Any] = {f"set_{name}": getattr(made, name).__set__ for name in names}
    exec(f"def __init__(self, {', '.join(names)}):\n{text}{after}", scope)  # noqa: S102  of names alone
    quick: Callable[..., None] = scope["__init__"]
    return quick
