"""The definition of a setting: a dataclass field with its name in tables, meaning, and allowed values."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final, Literal, get_args, get_origin

from fedgc.errors import name_of

Auto = Literal["auto"]
AUTO: Final = "auto"
All = Literal["all"]
Value = str | int | float
TASK: Final = "task."  # the prefix of a task's own settings in tables
LARGEST_WHOLE: Final = 2**63 - 1
LARGEST_DELTA: Final = 0.01  # of differential privacy: about the probability that epsilon does not hold
IN_64_BITS: Final = "a whole number of at most 64 bits, with its sign"
NAME: Final = re.compile(r"(?!latest\Z)[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")  # latest is the newest run
NAME_NEEDS: Final = "letters, digits, - _ and . (not first), at most 64, and not latest"


def setting(
    key: str, default: Any, says: str, allowed: Callable[[Any], bool] = lambda _: True, needs: str = ""
) -> Any:
    """Return the field of a setting.

    Args:
        key: Its name in tables: "rounds", or "gate.budget" in the table `[gate]`.
        default: Its default.
        says: What it means.
        allowed: Whether a value of its type is allowed.
        needs: What is allowed, for error messages.
    """
    return field(default=default, metadata={"key": key, "says": says, "allowed": allowed, "needs": needs})


def positive(value: float | str) -> bool:
    """Return whether a number is finite and above 0; texts are checked by their type."""
    return isinstance(value, str) or (math.isfinite(value) and value > 0)


def count(value: int | str) -> bool:
    """Return whether a number is at least 1."""
    return isinstance(value, str) or value >= 1


def not_negative(value: float | str) -> bool:
    """Return whether a number is finite and at least 0."""
    return isinstance(value, str) or (math.isfinite(value) and value >= 0)


def is_name(value: str) -> bool:
    """Return whether a text is a name of a run, or empty."""
    return not value or NAME.fullmatch(value) is not None


def share(value: float | str) -> bool:
    """Return whether a number is above 0 and at most 1."""
    return isinstance(value, str) or 0 < value <= 1


# ---- types of settings


def fits(value: object, hint: Any) -> bool:
    """Return whether a value is of a setting's type.

    >>> fits("auto", int | Literal["auto"]), fits(True, int)
    (True, False)
    """
    for member in _members(hint):
        if _choices(member):
            if isinstance(value, str) and value in _choices(member):
                return True
        elif type(value) is member:
            return True
    return False


def is_too_large(value: object) -> bool:
    """Return whether a whole number has more than 64 bits: Flower cannot send it to a client.

    >>> is_too_large(2**63 - 1), is_too_large(2**63), is_too_large(1e300)
    (False, True, False)
    """
    return type(value) is int and not -LARGEST_WHOLE <= value <= LARGEST_WHOLE


def wanted(hint: Any) -> str:
    """Return a setting's type in words.

    >>> wanted(float | Literal["auto"])
    "a number or 'auto'"
    """
    names = []
    for member in _members(hint):
        names += [repr(choice) for choice in _choices(member)] or [name_of(member)]
    return " or ".join(names)


def unexplained(hint: Any, says: str) -> str:
    """Return the named values of a setting as an addition to its meaning, if that does not name all of them.

    >>> unexplained(Literal["sgd", "adam"], "the optimizer"), unexplained(Literal["a", "b"], "a: on; b: off")
    ('; one of sgd, adam', '')
    """
    named = [choice for member in _members(hint) for choice in _choices(member) if choice != AUTO]
    known = all(choice in says for choice in named)
    return "" if known else f"; one of {', '.join(named)}"


def needed_of(value: Any, hint: Any, about: Mapping[str, Any]) -> str:
    """Return what a setting needs instead of this value; empty if it is valid."""
    if not fits(value, hint):
        return wanted(hint)
    if is_too_large(value):
        return IN_64_BITS
    return "" if about["allowed"](value) else about["needs"]


def converted(value: Any, hint: Any) -> Any:
    """Return an integer as a float if the setting takes floats.

    >>> converted(3, float), converted(3, int | float)
    (3.0, 3.0)
    """
    if type(value) is not int or float not in _members(hint):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _choices(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


def _members(hint: Any) -> tuple[Any, ...]:
    is_union = get_origin(hint) is not None and get_origin(hint) is not Literal
    return get_args(hint) if is_union else (hint,)
