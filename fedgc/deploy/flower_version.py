"""The versions of flwr that fedgc supports, read from its installed metadata.

`pyproject.toml` is the only place that states the range.
"""

from importlib.metadata import requires

from packaging.requirements import Requirement

from fedgc.errors import Unusable


def supported() -> str:
    """Return the requirement in pip's syntax: the name and its bounds."""
    bounds = sorted(map(str, _requirement().specifier), reverse=True)  # the lower bound first
    return f"flwr{','.join(bounds)}"


def supports(version: str) -> bool:
    """Return whether this version of flwr is in the range.

    >>> supports("1.0.0")
    False
    """
    return version in _requirement().specifier


def _requirement() -> Requirement:
    for line in requires("fedgc") or ():
        requirement = Requirement(line)
        if requirement.name == "flwr":
            return requirement
    raise Unusable("the metadata of fedgc: saw no requirement of flwr, needed one; install fedgc again")
