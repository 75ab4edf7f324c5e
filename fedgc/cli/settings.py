"""Settings as words of a command line: name=value, checked against `RunConfig` before anything starts.

May import: config, errors.
"""

import tomllib
from collections.abc import Iterable

from fedgc.config import RunConfig
from fedgc.errors import BadSetting

Setting = str | int | float


def parse(words: Iterable[str]) -> dict[str, Setting]:
    """Return the settings in these words; an unknown or ill-typed one is refused here.

    >>> parse(["rounds=3", "blocks=auto", "learning-rate=0.5"])
    {'rounds': 3, 'blocks': 'auto', 'learning-rate': 0.5}
    """
    table: dict[str, Setting] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadSetting(f"setting {word!r}: needed name=value")
        table[name.strip().replace("_", "-")] = _value(value.strip())
    RunConfig.read(table)
    return table


def _value(text: str) -> Setting:
    """Read a number as a number, and anything else as the text that it is."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else text
