"""Settings as words of a command line, and where each value of a run comes from.

A value is the default, or what the app lists in its manifest, or what a run had that is resumed, or what
the command line says: the later wins. All are checked against `RunConfig` before anything starts.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fedgc.config import TASK, RunConfig, dashed, flat
from fedgc.deploy.app_folder import Setting
from fedgc.errors import BadSetting

DEFAULT: Final = "default"
GIVEN: Final = "--set"

Layer = tuple[str, Mapping[str, Setting]]


@dataclass(frozen=True, slots=True)
class Settled:
    """The settings of a run, and for each name (with dashes) where its value comes from."""

    config: RunConfig
    origins: Mapping[str, str]


def settle(layers: Sequence[Layer]) -> Settled:
    """Lay these tables over the defaults, the later over the earlier.

    >>> settled = settle([("the app", {"rounds": 3, "seed": 4}), ("--set", {"rounds": 5})])
    >>> settled.config.rounds, settled.origins["rounds"], settled.origins["seed"], settled.origins["work"]
    (5, '--set', 'the app', 'default')
    """
    defaults = RunConfig().table()
    table: dict[str, Setting] = dict(defaults)
    origins = dict.fromkeys(defaults, DEFAULT)
    for origin, values in layers:
        RunConfig.read(values)  # each by itself, so that the message names what this one says
        for key, value in flat(values):
            name = dashed(key)
            if origin == GIVEN or value != table.get(name):
                origins[name] = origin
            table[name] = value
    return Settled(RunConfig.read(table), origins)


def parse(words: Iterable[str]) -> dict[str, Setting]:
    """Return the settings in these words; an unknown or ill-typed one is refused here.

    >>> parse(["rounds=3", "code.blocks=auto", "learning-rate=0.5", "task.rank=8"])
    {'rounds': 3, 'code.blocks': 'auto', 'learning-rate': 0.5, 'task.rank': 8}
    """
    table: dict[str, Setting] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadSetting(f"setting {word!r}: needed name=value")
        key = dashed(name.strip())
        table[key] = _value(value.strip(), key)
    RunConfig.read(table)
    return table


def _value(text: str, key: str) -> Setting:
    """Read a number as a number, of a task's own settings also true and false; the rest is text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    takes = isinstance(value, str | int | float) and (key.startswith(TASK) or not isinstance(value, bool))
    return value if takes else text
