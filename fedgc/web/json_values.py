"""Values as JSON that every program reads: without NaN and infinities, which are null."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass


def as_json(value: object) -> str:
    """Return a value as compact JSON for a browser, with the digits that a chart needs.

    >>> as_json({"loss": float("nan"), "rounds": (1, 2.5, 0.123456789)})
    '{"loss":null,"rounds":[1,2.5,0.12346]}'
    """
    return json.dumps(_plain(value, _short), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def printed_json(value: object) -> str:
    r"""Return a value as JSON for an answer of a command, with all digits.

    >>> printed_json({"loss": float("nan"), "error": 0.123456789})
    '{\n "loss": null,\n "error": 0.123456789\n}'
    """
    return json.dumps(_plain(value, _all_digits), indent=1, allow_nan=False, default=str)


def _plain(value: object, number: Callable[[float], float | None]) -> object:
    if isinstance(value, float):
        return number(value) if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name), number) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(each, number) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, number) for each in value]
    return value


def _all_digits(value: float) -> float:
    return value


def _short(value: float) -> float:
    """Return a number with the digits that a chart needs; times keep their milliseconds."""
    return round(value, 3) if abs(value) >= 1e4 else float(f"{value:.5g}")
