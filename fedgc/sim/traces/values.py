"""Validation of one value of a trace, and its short form for messages."""

import reprlib
from typing import Final

from fedgc.errors import BadSetting

MOST_DIGITS_BITS: Final = 128  # longest integer that is shown in digits


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > MOST_DIGITS_BITS:
            return f"an integer of {x.bit_length()} bits"
        return super().repr_int(x, level)


_SHORT: Final = _Short()


def shown(value: object) -> str:
    r"""Return a value as one short line, for any size and depth.

    >>> shown([10**400, "a\nb"])
    "[an integer of 1329 bits, 'a\\nb']"
    """
    return _SHORT.repr(value)


def number(value: object, where: str) -> float:
    """Return a number, or raise with its location.

    >>> number(3, "row 1")
    3.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadSetting(f"{where}: saw {shown(value)}, needed a number")
    try:
        return float(value)
    except OverflowError:
        raise BadSetting(f"{where}: saw {shown(value)}, needed a number below 1e308") from None
