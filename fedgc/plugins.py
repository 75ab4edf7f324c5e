"""Extensions, found by Python entry points.

A package offers an extension under a name in an entry-point group (`fedgc.gates`, for example), in its
`pyproject.toml`. What comes with fedgc is found in the same way, in fedgc's own metadata.
"""

import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import EntryPoint, distribution, entry_points

from fedgc.errors import BadSetting, nearest

OWN = "fedgc"


def load(group: str, name: str, asked: str) -> object:
    """Return the object that this group has under this name.

    `asked` says in error messages what asked for the name, for example "setting gate".

    Raises:
        BadSetting: No installed package offers the name, several do, or importing it fails.

    >>> load("fedgc.gates", "drif", "setting gate")
    Traceback (most recent call last):
    ...
    fedgc.errors.BadSetting: setting gate: saw 'drif', needed one of drift, every, qsr, relative-change \
(entry points fedgc.gates); did you mean drift?
    """
    found = _own(group).get(name) or _other(group, name, asked)
    try:
        return found.load()
    except Exception as error:  # a package of somebody else may raise anything while it is imported
        raise BadSetting(
            f"{asked}: loading {name!r} ({found.value}) raised {type(error).__name__}: {error}"
        ) from error


def available(group: str) -> tuple[str, ...]:
    """Return the names that installed packages offer in this group, in alphabetical order."""
    return tuple(sorted({*_own(group), *(each.name for each in _all(group, tuple(sys.path)))}))


def _other(group: str, name: str, asked: str) -> EntryPoint:
    found = [each for each in _all(group, tuple(sys.path)) if each.name == name]
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
    """Return what fedgc itself offers: reading one package is quicker than reading all, and it goes first."""
    return {each.name: each for each in distribution(OWN).entry_points if each.group == group}


@lru_cache
def _all(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:  # noqa: ARG001  the key of the cache
    """Return what the packages on this `sys.path` offer, fedgc excepted."""
    return tuple(each for each in entry_points(group=group) if each.dist is None or each.dist.name != OWN)
