"""The interface of a scheduler: which clients work on what in a round, and when there is enough to exchange.

A round asks its scheduler until it collects; from then on it asks the aggregator that `collect` returns. The
round decides when: it asks the gate and holds the deadlines. There is one scheduler for each kind of work:
`CodedScheduler` and `LocalScheduler`. Index w is a client of the plan.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from fedgc.gates import Reports
from fedgc.messages import Command, Failed, Joined, Progress, Report
from fedgc.round.aggregator import Aggregator, Wait


class Supply(Enum):
    """How much finished work there is."""

    IMPOSSIBLE = "no client is left that has finished anything or can"
    NOTHING = "nothing is finished yet"
    SOME = "something is finished"
    ENOUGH = "enough is finished to ask the gate"


@dataclass(frozen=True, slots=True)
class Holding:
    """The finished work of one client: its amount in chunks or local steps, and the chunks in it."""

    amount: int
    chunks: frozenset[int]


@dataclass(frozen=True, slots=True)
class WorkSummary:
    """Results of the work of a round."""

    covered: int  # chunks with finished work
    losses: Sequence[float] = ()  # of what was reported; 0: not told
    reached: Mapping[str, int] = field(default_factory=dict)  # local steps since the last common model
    covered_s: Sequence[float] = ()  # when all chunks had 1, 2, ... replicas, after the round's start
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # in which clients go on next time

    @property
    def loss(self) -> float | None:
        """The mean of the losses that are known: a client that must not tell its own says 0.

        >>> WorkSummary(2, [0.5, 0.0]).loss, WorkSummary(1, [0.0]).loss
        (0.5, None)
        """
        known = [each for each in self.losses if each]
        return sum(known) / len(known) if known else None


class Scheduler(ABC):
    """Decides which clients work on what in a round."""

    @abstractmethod
    def give(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        """Return the work for these clients; `carried` clients continue from a skipped round."""

    @abstractmethod
    def lost(self, w: int) -> None:
        """Stop counting on a live client."""

    @abstractmethod
    def leaves(self, w: int) -> bool:
        """Expect no more work of a client that is leaving; return whether it has reported any."""

    @abstractmethod
    def failed(self, w: int, event: Failed) -> str:
        """Handle a client's failed work; return why that changes nothing, if so."""

    @abstractmethod
    def heard(self, event: Progress | Report) -> list[Command]:
        """Handle a report of work."""

    @abstractmethod
    def stalled(self, now: float, loading: Container[str]) -> Wait:
        """Count no longer on clients that make no progress; those of `loading` may not have the model yet."""

    def reassign(self) -> list[Command]:
        """Reassign what lost or failed clients leave undone; by default that is not possible."""
        return []

    def settle(self, behind: Collection[int], *, final: bool) -> None:  # noqa: B027  chunks need none
        """Book the local steps that no later sum can count, at the end of a round.

        Updates of the clients `behind` come later. `final` says that no other steps of this round can count.
        """

    @property
    @abstractmethod
    def supply(self) -> Supply:
        """How much finished work there is."""

    @abstractmethod
    def reports(self) -> Reports:
        """Return the reports for the gate."""

    def wait(self, now: float) -> Wait | None:  # noqa: ARG002  nothing to wait for, at any time
        """Return what to wait for before an exchange that the gate wants; None: collect now."""
        return None

    @property
    @abstractmethod
    def awaited(self) -> Collection[int]:
        """The live clients that have work left, for display."""

    @property
    @abstractmethod
    def progress(self) -> tuple[int, int, int]:
        """Return (done, total, aim), for display."""

    @property
    @abstractmethod
    def summary(self) -> WorkSummary:
        """Results of the round's work."""

    @property
    @abstractmethod
    def holds(self) -> Mapping[int, Holding]:
        """What each client could send now."""

    @abstractmethod
    def collect(self, now: float) -> Aggregator:
        """Fix the finished work, and return the aggregator for it."""
