"""Extensions, found by Python entry points.

A package offers an extension under a name in an entry-point group (`fedgc.gates`, for example), in its
`pyproject.toml`. What comes with fedgc is found in the same way, in fedgc's own metadata.
"""

import inspect
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.metadata import EntryPoint, distribution, entry_points
from typing import Any

from fedgc.errors import BadSetting, name_of, nearest, words_of

OWN = "fedgc"
TRUTHS = {"true": True, "false": False}  # an option that is one or the other


def returned(value: object) -> str:
    """Return in words what an extension has returned, for a message that says what was needed.

    >>> import numpy as np
    >>> returned(None), returned(1.5), returned((1, "a")), returned(np.zeros(3, np.uint8))
    ('None', 'a float', '(int, str)', 'uint8 of shape (3,)')
    """
    if value is None:
        return "None"
    if isinstance(value, tuple):
        return f"({', '.join(type(each).__name__ for each in value)})"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} of shape {value.shape}"
    return f"a {type(value).__name__}"


def load(group: str, name: str, asked: str) -> object:
    """Return the object that this group has under this name.

    `asked` says in error messages what asked for the name, for example "setting gate.name".

    Raises:
        BadSetting: No installed package offers the name, several do, or importing it fails.

    >>> load("fedgc.gates", "drif", "setting gate.name")
    Traceback (most recent call last):
    ...
    fedgc.errors.BadSetting: setting gate.name: saw 'drif', needed one of drift, every, loss-change, \
pace, qsr, relative-change (entry points fedgc.gates); did you mean drift?
    """
    found = _found(group, name, asked)
    try:
        return found.load()
    except Exception as error:  # a third-party package may raise anything while it is imported
        raise BadSetting(f"{asked}: loading {name!r} ({found.value}) raised {words_of(error)}") from error


def subclass(base: type, group: str, name: str, setting: str) -> Any:  # noqa: ANN401  a subclass of `base`
    """Return the subclass of `base` that this group has under this name.

    Raises:
        BadSetting: As `load`, or what is there is no subclass of `base`.
    """
    found = load(group, name, f"setting {setting}")
    if not (isinstance(found, type) and issubclass(found, base)):
        needed = f"needed a subclass of {base.__module__}.{base.__name__}"
        raise BadSetting(f"setting {setting}: {name!r} is {found!r}, {needed}")
    return found


def available(group: str) -> tuple[str, ...]:
    """Return the names that installed packages offer in this group, in alphabetical order."""
    return tuple(sorted({*_own(group), *(each.name for each in _others(group, tuple(sys.path)))}))


def options(make: Callable[..., object], text: str, setting: str, owner: str) -> dict[str, Any]:
    """Return the options of an extension, from the text of a setting.

    Options are the keyword-only arguments of `make`; values are converted to the type of their default.

    Args:
        make: The function or class that takes the options.
        text: "name=value, name=value".
        setting: The name of the setting, for error messages.
        owner: The extension, for error messages.

    >>> def make(*, trim: float = 0.1): ...
    >>> options(make, "trim=0.25", "aggregation.options", "aggregator trimmed-mean")
    {'trim': 0.25}
    >>> options(lambda *, check=True: None, "check=false", "aggregation.options", "aggregator own")
    {'check': False}
    """
    known = _options_of(make)
    given: dict[str, Any] = {}
    example = next((f", such as {option}={default}" for option, default in known.items()), "")
    for word in filter(None, map(str.strip, text.split(","))):
        option, equals, value = (part.strip() for part in word.partition("="))
        if not equals or option in given:
            raise BadSetting(f"setting {setting}: saw {word!r}, needed name=value, each name once{example}")
        if option not in known:
            needed = f"needed {', '.join(known) or 'none'}, the options of {owner}"
            raise BadSetting(f"setting {setting}: saw {option!r}, {needed}{nearest(option, known)}")
        kind = type(known[option])
        try:
            given[option] = TRUTHS[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError) as error:
            raise BadSetting(f"setting {setting}: saw {option}={value!r}, needed {name_of(kind)}") from error
    return given


def summaries(group: str, named: Callable[[str], Any], maker: str = "") -> str:
    """Return every installed extension of the group with its summary and its options, in one sentence.

    `named` returns an extension by its name. One that cannot be loaded does not hide the others. `maker`
    names the method that takes the options, if the class itself does not.
    """
    lines = []
    for name in available(group):
        try:
            kind = named(name)
            known = _options_of(getattr(kind, maker) if maker else kind)
            shown = ", ".join(f"{option}={default}" for option, default in known.items())
            lines.append(f"{name}: {kind.summary}{f' (options: {shown})' if shown else ''}")
        except BadSetting as error:
            lines.append(f"{name}: cannot be used ({error})")
    return "; ".join(lines)


def _options_of(make: Callable[..., object]) -> dict[str, Any]:
    """Return the options of an extension with their defaults."""
    parameters = inspect.signature(make).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def _found(group: str, name: str, asked: str) -> EntryPoint:
    own = _own(group).get(name)
    found = [own] if own is not None else []
    found += [each for each in _others(group, tuple(sys.path)) if each.name == name]
    if not found:
        names = available(group)
        needed = f"needed one of {', '.join(names)} (entry points {group})"
        raise BadSetting(f"{asked}: saw {name!r}, {needed}{nearest(name, names)}")
    if len(found) > 1:
        raise BadSetting(f"{asked}: saw {name!r} in {_packages(found)}, needed one package that offers it")
    return found[0]


def _packages(found: Iterable[EntryPoint]) -> str:
    return " and ".join(sorted(each.dist.name if each.dist else each.value for each in found))


@lru_cache
def _own(group: str) -> dict[str, EntryPoint]:
    """Return fedgc's own entry points; `_others` leaves them out, as an editable install has them twice."""
    return {each.name: each for each in distribution(OWN).entry_points if each.group == group}


@lru_cache
def _others(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:  # noqa: ARG001  the key of the cache
    """Return the entry points of all other packages on this `sys.path`: reading them takes 20 ms."""
    return tuple(each for each in entry_points(group=group) if each.dist is None or each.dist.name != OWN)
