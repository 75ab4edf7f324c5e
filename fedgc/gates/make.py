"""Make a gate by name; shipped and third-party gates are entry points of `fedgc.gates`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from fedgc import plugins
from fedgc.errors import BadSetting
from fedgc.gates.gate import MEASURES, Gate, GateSettings
from fedgc.guards import guarded

GROUP: Final = "fedgc.gates"
DEFAULT_GATES: Final[Mapping[str, str]] = MappingProxyType({"local": "drift", "coded": "every"})


def gate_named(name: str) -> type[Gate[Any]]:
    """Return the class of the gate of this name."""
    found: type[Gate[Any]] = plugins.subclass(Gate, GROUP, name, "gate.name")
    if found.measure not in MEASURES:
        needed = f"needed one of {', '.join(MEASURES)}"
        raise BadSetting(f"setting gate.name: {name!r} has the measure {found.measure!r}, {needed}")
    return found


def make_gate(name: str, settings: GateSettings, options: str = "") -> Gate[Any]:
    """Return the gate of this name; `options` are its own, as in the setting `gate.options`.

    >>> make_gate("relative-change", GateSettings(rounds=9), "delta=0.5").describe()
    'gate.options delta=0.5'
    """
    kind, owner = gate_named(name), f"gate {name}"
    own = plugins.options(kind.make, options, "gate.options", owner)
    with guarded(f"{owner}: make", error=BadSetting):
        made: object = kind.make(settings, **own)
    if not isinstance(made, Gate):
        raise BadSetting(
            f"{owner}: make returned {plugins.returned(made)}, needed a gate (make is a classmethod)"
        )
    return made


def summaries() -> str:
    """Return every installed gate with its summary, in one sentence."""
    return plugins.summaries(GROUP, gate_named, "make")
