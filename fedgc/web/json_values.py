"""Values as JSON for a browser: without NaN and infinities."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass


def as_json(value: object) -> str:
    """Return a value as compact JSON.

    >>> as_json({"loss": float("nan"), "rounds": (1, 2.5, 0.123456789)})
    '{"loss":null,"rounds":[1,2.5,0.12346]}'
    """
    return json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _plain(value: object) -> object:
    if isinstance(value, float):
        return _short(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _short(value: float) -> float | None:
    """Return a number with the digits that a chart needs; times keep their milliseconds."""
    if not math.isfinite(value):
        return None
    return round(value, 3) if abs(value) >= 1e4 else float(f"{value:.5g}")
