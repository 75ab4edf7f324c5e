"""Settings as options of a command line, and the source of each value of a run.

A value is the default, the app's manifest, the resumed run's, or the command line's: later sources win. All
are checked against `RunConfig` before anything starts.
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
    """The settings of a run, and the source of each by name (with dashes)."""

    config: RunConfig
    origins: Mapping[str, str]


def settle(layers: Sequence[Layer]) -> Settled:
    """Merge these tables over the defaults, later ones first.

    >>> settled = settle([("the app", {"rounds": 3, "seed": 4}), ("--set", {"rounds": 5})])
    >>> settled.config.rounds, settled.origins["rounds"], settled.origins["seed"], settled.origins["work"]
    (5, '--set', 'the app', 'default')
    """
    defaults = RunConfig().table()
    table: dict[str, Setting] = dict(defaults)
    origins = dict.fromkeys(defaults, DEFAULT)
    for origin, values in layers:
        RunConfig.read(values)  # each by itself, so that the error names its own settings
        for key, value in flat(values):
            name = dashed(key)
            if origin == GIVEN or value != table.get(name):
                origins[name] = origin
            table[name] = value
    return Settled(RunConfig.read(table), origins)


def parse(words: Iterable[str]) -> dict[str, Setting]:
    """Return the settings in these options; refuse an unknown or ill-typed one.

    >>> parse(["rounds=3", "code.blocks=auto", "learning-rate=0.5", "task.rank=8"])
    {'rounds': 3, 'code.blocks': 'auto', 'learning-rate': 0.5, 'task.rank': 8}
    """
    table: dict[str, Setting] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadSetting(f"setting {word!r}: needed name=value")
        key = dashed(name.strip())
        table[key] = value_of(value.strip(), truth=key.startswith(TASK))
    RunConfig.read(table)
    return table


def value_of(text: str, *, truth: bool = False) -> Setting:
    """Parse numbers, and with `truth` true and false, as in a task's own settings; the rest is text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, a number of thousands of digits, or too deep
        return text
    takes = isinstance(value, str | int | float) and (truth or not isinstance(value, bool))
    return value if takes else text
