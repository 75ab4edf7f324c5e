"""A gate by its name: the shipped ones and those of other packages are entry points of `fedgc.gates`."""

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from fedgc.errors import BadSetting, nearest
from fedgc.gates.gate import Gate, GateSettings
from fedgc.plugins import available, load

GROUP: Final = "fedgc.gates"
DEFAULTS: Final[Mapping[str, str]] = MappingProxyType({"local": "drift", "coded": "every"})


def default_gate(work: str) -> str:
    """Return the name of the gate that a kind of work has by default."""
    return DEFAULTS[work]


def gate_named(name: str) -> type[Gate[Any]]:
    """Return the class of the gate of this name."""
    found = load(GROUP, name, "setting gate")
    if not (isinstance(found, type) and issubclass(found, Gate)):
        raise BadSetting(f"setting gate: {name!r} is {found!r}, needed a subclass of fedgc.gates.Gate")
    return found


def make_gate(name: str, settings: GateSettings, options: str = "") -> Gate[Any]:
    """Return the gate of this name; `options` are its own, as in the setting `gate-options`.

    >>> make_gate("relative-change", GateSettings(rounds=9), "delta=0.5").told()
    'gate-options delta=0.5'
    """
    kind = gate_named(name)
    return kind.make(settings, **_options(name, kind, options))


def summaries() -> str:
    """Return every installed gate with what it says of itself, in one sentence."""
    return "; ".join(f"{name}: {gate_named(name).summary}" for name in available(GROUP))


def _options(name: str, kind: type[Gate[Any]], text: str) -> dict[str, Any]:
    known = {
        each.name: each.default
        for each in inspect.signature(kind.make).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    }
    given: dict[str, Any] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        option, equals, value = (part.strip() for part in word.partition("="))
        if not equals or option in given:
            raise BadSetting(f"setting gate_options: saw {word!r}, needed name=value, each name once")
        if option not in known:
            needed = f"needed {', '.join(known) or 'none'}, the options of gate {name}"
            raise BadSetting(f"setting gate_options: saw {option!r}, {needed}{nearest(option, known)}")
        given[option] = _converted(option, value, type(known[option]))
    return given


def _converted(option: str, value: str, kind: type) -> object:
    try:
        return kind(value)
    except ValueError as error:
        raise BadSetting(f"setting gate_options: saw {option}={value!r}, needed {kind.__name__}") from error
