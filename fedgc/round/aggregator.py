"""The interface of an aggregator: requests to clients at the end of a round, and the aggregated result.

An aggregator holds no vectors. It decides which vector a client owes, with which weights a vector enters the
running sum (`Add`), and what happens if one is lost or late. Each contribution enters the sum once.

    CodedAggregator  a sum over all chunks, of codewords that clients can make for each other
    WeightedMean     the mean of local updates
    MaskedAggregator the sum of masked vectors, for either kind of work

Index w is a client of the plan.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fedgc.codes import Solution
from fedgc.messages import Add, Command, Joined, Progress, Refuse, Report


@dataclass(frozen=True, slots=True)
class Wait:
    """Waiting for a vector or a report: commands to send meanwhile, and when to check again."""

    commands: Sequence[Command] = ()
    until: float = math.inf


JUST_WAIT: Final = Wait()  # shared, as most events change nothing


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a round's aggregation."""

    weight: float  # the divisor of the sum
    counted: Mapping[int, int]  # each client's work in the sum, in chunks or local steps
    missing: tuple[int, ...] = ()  # numbers of the chunks that the sum lacks
    error: float | None = None  # caused by them, relative to the sum, if known
    steps: float = 0.0  # mean local steps of the updates in the sum
    solution: Solution | None = None  # of the code, in coded work
    unsent_s: Mapping[int, float] = field(default_factory=dict)  # clients that never sent: time for an update


class Aggregator(ABC):
    """Requests to clients at the end of a round, their contributions, and the result."""

    @abstractmethod
    def ask(self) -> Sequence[Command]:
        """Return the first requests."""

    @abstractmethod
    def accept(self, w: int, attempt: int, norm: float = 0.0) -> Add | Refuse | str:
        """Take a vector of this norm into the sum, refuse one that is not needed, or return an error."""

    def heard(self, event: Progress | Report) -> Sequence[Command]:  # noqa: ARG002  ignored by default
        """Handle a report that comes while vectors are awaited; ignored by default."""
        return ()

    @abstractmethod
    def returned(self, event: Joined) -> Sequence[Command]:
        """Ask a returning client of the plan for what it can still send."""

    @abstractmethod
    def lost(self, w: int, *, gone: bool = True) -> None:
        """Stop waiting for a client that is gone, or that cannot send all that it owes."""

    def restarted(self, w: int) -> None:
        """Handle a client whose process was started again, before `returned`; by default it was lost."""
        self.lost(w)

    def offered(self, w: int) -> None:  # noqa: B027  ignored by default
        """Note that a client has begun to send; ignored by default."""

    def failed(self, w: int, now: float) -> None:  # noqa: ARG002  the time changes nothing by default
        """Stop waiting for a client that is here and cannot send."""
        self.lost(w, gone=False)

    @property
    def behind(self) -> Collection[int]:
        """The clients whose vectors may come after the round; none by default."""
        return ()

    @property
    @abstractmethod
    def owing(self) -> Collection[int]:
        """The clients whose vector is awaited, for display."""

    @abstractmethod
    def expire(self, *, final: bool) -> Sequence[int]:
        """Stop waiting for the clients that owe a vector, and return them; `final`: nothing more comes."""

    @abstractmethod
    def wait(self, now: float) -> Wait | None:
        """Return what to do about awaited vectors; None: the sum is complete."""

    @abstractmethod
    def result(self, now: float) -> Result:
        """Return the result at this time."""
