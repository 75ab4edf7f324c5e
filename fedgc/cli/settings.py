"""Settings as options of a command line, and the source of each value of a run.

A value is the default, the app's manifest, the resumed run's, or the command line's: later sources win. Each
is checked by itself where it is read; whether they fit together is checked once they are merged.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fedgc.config import TASK, RunConfig, check_each, dashed, flat, is_text
from fedgc.deploy.app_folder import MANIFEST, Setting
from fedgc.errors import BadSetting, Unusable

DEFAULT: Final = "default"
GIVEN: Final = "--set"
# In an error: what it is about, `name = value`, or a name that is no word of a text
SETTING: Final = re.compile(r"^setting ([\w.-]+):|([\w.-]+) = |(\w+(?:[.-]\w+)+)")

Layer = tuple[str, Mapping[str, Setting]]


@dataclass(frozen=True, slots=True)
class Settled:
    """The settings of a run, and the source of each by name (with dashes)."""

    config: RunConfig
    origins: Mapping[str, str]


def settle(layers: Sequence[Layer]) -> Settled:
    """Merge these tables over the defaults, later ones first.

    A script is trained in place of a task, so a later task takes the place of an earlier script.

    >>> settled = settle([("the app", {"rounds": 3, "seed": 4}), ("--set", {"rounds": 5})])
    >>> settled.config.rounds, settled.origins["rounds"], settled.origins["seed"], settled.origins["work"]
    (5, '--set', 'the app', 'default')

    Raises:
        BadSetting: The merged settings are invalid; the error names the sources of those that it is about.
    """
    defaults = RunConfig().table()
    table: dict[str, Setting] = dict(defaults)
    origins = dict.fromkeys(defaults, DEFAULT)
    for origin, values in layers:
        if "task" in values and "script" not in values and table["script"]:
            table["script"], origins["script"] = "", origin
        for key, value in flat(values):
            name = dashed(key)
            if origin == GIVEN or value != table.get(name):
                origins[name] = origin
            table[name] = value
    try:
        return Settled(RunConfig.read(table), origins)
    except BadSetting as error:
        raise BadSetting(f"{error}{_sources(str(error), origins)}") from error


def must_be_private(settled: Settled) -> None:
    """Refuse settings of differential privacy for a run that has none.

    Those of the app may stay where the command line turns its noise off.
    """
    if settled.config.is_private or settled.config.protects_records:
        return
    noise = (settled.origins["privacy.epsilon"], settled.origins["privacy.noise"])
    refused = (GIVEN,) if GIVEN in noise else (GIVEN, MANIFEST)
    for key in ("privacy.clip", "privacy.clip-quantile", "privacy.delta"):
        if settled.origins[key] in refused:
            error = f"setting {key}: saw it without noise, needed privacy.epsilon or privacy.noise with it"
            raise BadSetting(f"{error}{_sources(error, settled.origins)}")


def _sources(message: str, origins: Mapping[str, str]) -> str:
    """Return the sources of the settings in an error, unless all are options of the command line.

    >>> _sources("setting gate.name: saw qsr, needed work = local", {"gate.name": "--set", "work": "the app"})
    ' (gate.name: --set; work: the app)'
    """
    named = [name for found in SETTING.findall(message) for name in found if name]
    known = {name: origins[name] for name in named if origins.get(name, DEFAULT) != DEFAULT}
    if set(known.values()) <= {GIVEN}:
        return ""
    return f" ({'; '.join(f'{name}: {origin}' for name, origin in known.items())})"


def parse(words: Iterable[str]) -> dict[str, Setting]:
    """Return the settings in these options; refuse an unknown or invalid one.

    >>> parse(["rounds=3", "code.blocks=auto", "learning-rate=0.5", "task.rank=8", "run=7"])
    {'rounds': 3, 'code.blocks': 'auto', 'learning-rate': 0.5, 'task.rank': 8, 'run': '7'}
    """
    table: dict[str, Setting] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadSetting(f"setting {word!r}: needed name=value")
        key = dashed(name.strip())
        text = value.strip()
        read = value_of(text, truth=key.startswith(TASK))
        table[key] = text if is_text(key) and not isinstance(read, str) else read
    check_each(table)
    return table


def trained(task: str | None, script: str | None) -> dict[str, Setting]:
    """Return the settings of the options --task and --script, of which one may be given."""
    if task and script:
        raise Unusable("--task and --script: saw both, needed one: a script is trained in place of a task")
    if task:
        return {"task": task, "script": ""}
    return {"script": script} if script else {}


def value_of(text: str, *, truth: bool = False) -> Setting:
    """Parse numbers, and with `truth` true and false, as in a task's own settings; the rest is text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, a number of thousands of digits, or too deep
        return text
    takes = isinstance(value, str | int | float) and (truth or not isinstance(value, bool))
    return value if takes else text
