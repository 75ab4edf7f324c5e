"""The figures that a user's `evaluate` or `validate` returns, checked."""

from collections.abc import Callable, Mapping
from typing import Final

from fedgc.errors import BadMessage, TaskFailed, words_of
from fedgc.messages import LONGEST_REASON, Scored

WEIGHT: Final = "samples"  # the figure that tells on how many samples the others were measured
UNNAMED: Final = "client"  # in place of the client, which the receiver stamps
LONGEST_VALUE: Final = 80  # characters of what a function returned, where an error quotes it


def figures_from(name: str, measure: Callable[[], object]) -> Mapping[str, float]:
    """Return the figures that a user's function gives.

    Raises:
        TaskFailed: It raised, or returned something other than numbers by name.
    """
    try:
        figures = measure()
    except Exception as error:  # the edge to the user's code
        raise TaskFailed(f"{name}() raised {words_of(error)}") from error
    if not isinstance(figures, Mapping):
        raise TaskFailed(f"{name}() returned {_short(figures)}, needed a mapping from names to numbers")
    numbers = {}
    for key, value in figures.items():
        try:
            numbers[str(key)] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # torch's for a tensor of many numbers
            raise TaskFailed(f"{name}() returned {key} = {_short(value)}, needed a number") from error
    return numbers


def scored(version: int, measure: Callable[[], object], samples: int) -> Scored:
    """Return the figures of `validate` as an event; what went wrong stands in it instead of figures.

    A figure `samples` weighs the others; by default they weigh as much as the client's samples.
    """
    try:
        figures = dict(figures_from("validate", measure))
        weight = int(figures.pop(WEIGHT, samples))
        return Scored(0.0, UNNAMED, version, max(1, weight), tuple(figures.items()))
    except (TaskFailed, BadMessage, ValueError, OverflowError) as error:
        return Scored(0.0, UNNAMED, version, 1, (), str(error)[:LONGEST_REASON])


def _short(value: object) -> str:
    return " ".join(repr(value).split())[:LONGEST_VALUE]
