"""JSON columns, read without trust: a damaged one is empty, so that one row does not hide all others."""

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def mapping_in(text: str) -> Mapping[str, Any]:
    """Return the mapping in a column.

    >>> dict(mapping_in('{"rounds": 3}')), dict(mapping_in('{"rounds": '))
    ({'rounds': 3}, {})
    """
    value = _value(text)
    return MappingProxyType(value if isinstance(value, dict) else {})


def is_mapping(text: str) -> bool:
    """Whether a column has a mapping.

    >>> is_mapping('{"rounds": 3}'), is_mapping('{"rounds": ')
    (True, False)
    """
    return isinstance(_value(text), dict)


def metrics_in(text: str) -> dict[str, float]:
    """Return the metrics in a column; null stands for NaN, and what is no number is left out.

    >>> metrics_in('{"loss": 0.5, "accuracy": null, "note": "?"}')
    {'loss': 0.5, 'accuracy': nan}
    """
    known = {name: math.nan if value is None else value for name, value in mapping_in(text).items()}
    return {name: value for name, value in known.items() if isinstance(value, int | float)}


def counts_in(text: str) -> tuple[int, ...]:
    """Return the whole numbers in a column.

    >>> counts_in("[1, 2]"), counts_in("7")
    ((1, 2), ())
    """
    value = _value(text)
    return tuple(each for each in value if type(each) is int) if isinstance(value, list) else ()


def _value(text: str) -> Any:  # noqa: ANN401  any JSON value
    try:
        return json.loads(text)
    except (ValueError, RecursionError, TypeError):
        return None
