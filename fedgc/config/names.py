"""The names of settings in tables, and the names that they had in earlier versions."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final

from fedgc.config.fields import TASK, Value
from fedgc.config.settings import Settings
from fedgc.errors import BadSetting, nearest

FIELDS: Final[Mapping[str, str]] = MappingProxyType(  # name in tables -> field
    {each.metadata["key"]: each.name for each in fields(Settings) if each.metadata["key"] != TASK}
)
KEYS: Final[Mapping[str, str]] = MappingProxyType({name: key for key, name in FIELDS.items()})
DEEPEST: Final = 8  # groups within groups; all settings have one
SHOWN: Final = 40  # characters of a name in an error
BASIC: Final = (*(key for key in FIELDS if "." not in key and key != "federation"), "gate.budget")
RENAMED: Final[Mapping[str, str]] = MappingProxyType(  # names of earlier versions, without groups
    {
        **{name: key for name, key in KEYS.items() if name != key.replace("-", "_")},
        "clients": "client.app",
        "delta_bits": "links.codec",
        "gate_delta": "gate.options",
        "gate_every": "local-steps",
        "gate_qsr_base": "gate.options",
        "gate_qsr_growth": "gate.options",
        "gate_window": "gate.options",
        "inject_devices": "data.inject-clients",
        "min_devices": "min-clients",
        "server_optimiser": "optimizer.server",
    }
)


def flat(table: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested tables, with the group before each name.

    >>> dict(flat({"rounds": 3, "gate": {"budget": 0.1}}))
    {'rounds': 3, 'gate.budget': 0.1}
    """
    if group.count(".") > DEEPEST:
        raise BadSetting(f"setting {group[:SHOWN]}: saw tables nested deeper than {DEEPEST}, needed fewer")
    for key, value in table.items():
        name = f"{group}{key}"
        if isinstance(value, Mapping) and dashed(name) not in FIELDS:
            yield from flat(value, f"{name}.")
        else:
            yield name, value


def dashed(key: str) -> str:
    """Return a name with dashes, as in tables; names of a task's own settings keep their underscores.

    >>> dashed("gate.max_gap"), dashed("task.max_rank")
    ('gate.max-gap', 'task.max_rank')
    """
    return key if key.startswith(TASK) else key.replace("_", "-")


def field_of(key: str) -> str:
    """Return the field of a setting by its name in tables.

    Raises:
        BadSetting: The setting does not exist, or was renamed.
    """
    name = dashed(key)
    if name in FIELDS:
        return FIELDS[name]
    now = RENAMED.get(name.replace("-", "_"))
    if now:
        raise BadSetting(f"unknown setting {key!r}; it is now {now}")
    hint = nearest(name, FIELDS)
    raise BadSetting(f"unknown setting {key!r}{hint or f'; a setting of a task is named {TASK}{name}'}")


def known(table: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of a flat table that this version knows, including the task's own."""
    return {key: value for key, value in table.items() if key in FIELDS or key.startswith(TASK)}


def group_of(key: str) -> str:
    """Return the table of a setting.

    >>> group_of("gate.budget"), group_of("rounds")
    ('gate', '')
    """
    return key.rpartition(".")[0]
