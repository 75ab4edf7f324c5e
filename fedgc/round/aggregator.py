"""The interface of an aggregator: what is asked of clients at the end of a round, and what comes out.

An aggregator holds no vectors. It says which vector a client owes, with which weights a vector enters the
running sum (`Add`), and what happens if one is lost or late. Each contribution enters the sum once.

    CodedAggregator  a sum over all chunks, of codewords that clients can make for each other
    WeightedMean     the mean of local updates
    MaskedAggregator the sum of masked vectors, around either kind of work

Index w is a client of the plan.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fedgc.codes import Solution
from fedgc.messages import Add, Command, Joined, Progress, Refuse, Report


@dataclass(frozen=True, slots=True)
class Wait:
    """Something is awaited: what to tell clients meanwhile, and when to look again in any case."""

    commands: Sequence[Command] = ()
    until: float = math.inf


JUST_WAIT: Final = Wait()  # made once, as most events change nothing


@dataclass(frozen=True, slots=True)
class Result:
    """What came out of a round's aggregation."""

    weight: float  # the divisor of the sum
    counted: Mapping[int, int]  # how much of each client's work is in the sum: chunks, or local steps
    missing: tuple[int, ...] = ()  # numbers of the chunks that the sum lacks
    error: float | None = None  # that they cause, relative to the sum, if it can be told
    steps: float = 0.0  # mean local steps of the updates in the sum
    solution: Solution | None = None  # of the code, in coded work
    unsent_s: Mapping[int, float] = field(default_factory=dict)  # clients that never sent: time for an update


class Aggregator(ABC):
    """What is asked of clients at the end of a round, how a contribution enters, what comes out."""

    @abstractmethod
    def ask(self) -> Sequence[Command]:
        """Return the first requests."""

    @abstractmethod
    def accept(self, w: int, attempt: int) -> Add | Refuse | str:
        """Take a vector into the sum, refuse one that is not wanted any more, or return what is wrong."""

    def heard(self, event: Progress | Report) -> Sequence[Command]:  # noqa: ARG002  ignored by default
        """Take in a report that comes while vectors are awaited; by default it changes nothing."""
        return ()

    @abstractmethod
    def returned(self, event: Joined) -> Sequence[Command]:
        """Ask a client of the plan that is back for what it can still send."""

    @abstractmethod
    def lost(self, w: int, *, gone: bool = True) -> None:
        """Count no more on a client that is gone, or that cannot send all that it owes."""

    @abstractmethod
    def expire(self, *, final: bool) -> Sequence[int]:
        """Wait no longer for the clients that owe a vector, and return them; `final`: nothing more comes."""

    @abstractmethod
    def wait(self, now: float) -> Wait | None:
        """Return what to do about vectors that are awaited; None: the sum is complete."""

    @abstractmethod
    def result(self, now: float) -> Result:
        """Return what came out by now."""
