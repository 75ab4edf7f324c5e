"""The states of a round, and the form of its transition table (`TABLE` in `fedgc.round.table`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class State(Enum):
    """The state of a round."""

    WORKING = "working"
    COLLECTING = "collecting"
    AGREEING = "agreeing"
    UNMASKING = "unmasking"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Transition:
    """The method that handles an event, and the possible next states.

    It is a method of `Round` or `MaskedRound`, or of its `Collecting` (`collecting.NAME`).
    """

    handler: str
    to: frozenset[State]


Table = Mapping[State, Mapping[type, Transition]]


def table_of(rows: Mapping[State, Mapping[type, tuple[str, tuple[State, ...]]]]) -> Table:
    """Return the table of these rows, which nothing can change."""
    return MappingProxyType(
        {
            state: MappingProxyType(
                {kind: Transition(handler, frozenset(to)) for kind, (handler, to) in row.items()}
            )
            for state, row in rows.items()
        }
    )
