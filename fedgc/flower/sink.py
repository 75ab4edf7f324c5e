"""Where a run's history goes: the seam between the driver and whoever keeps or shows it.

All functions but `audited` are called in the driver's thread, between two events: they must be quick.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fedgc.history import RoundRow


@dataclass(frozen=True, slots=True)
class LiveClient:
    """A client as it stands now."""

    client: str
    name: str
    present: bool
    finished: int  # chunks in this round; in local work steps
    link: str = ""
    held: int = 0  # chunks, or steps, that are its to do


@dataclass(frozen=True, slots=True)
class Live:
    """The run as it stands now."""

    round: int
    rounds: int
    version: int
    phase: str  # gathering, working, collecting, closed, over
    elapsed_s: float
    covered: int
    chunks: int
    replicas: int
    clients: tuple[LiveClient, ...]
    unit: str = "chunks"  # that are covered; in local work clients that are done with their steps


class Sink(Protocol):
    """Hears what happened."""

    def append(self, row: RoundRow) -> None:
        """A round is over."""

    def present(self, live: Live) -> None:
        """How things stand; said a few times a second."""

    def evaluated(self, round_: int, metrics: Mapping[str, float]) -> None:
        """The model after a round was measured."""

    def stopped(self, reason: str) -> None:
        """The process is being ended from outside: what is not said now will not be said."""

    def chose(self, round_: int, basis: Mapping[str, object], reason: str) -> None:
        """Another plan holds from this round on."""

    def audited(self, kind: str, who: str, what: str) -> None:
        """Somebody joined, something was refused, a key is in use; said from any thread."""


class Silence:
    """A sink that keeps nothing."""

    def append(self, row: RoundRow) -> None:
        """Keep nothing."""

    def present(self, live: Live) -> None:
        """Show nothing."""

    def evaluated(self, round_: int, metrics: Mapping[str, float]) -> None:
        """Keep nothing."""

    def stopped(self, reason: str) -> None:
        """Keep nothing."""

    def chose(self, round_: int, basis: Mapping[str, object], reason: str) -> None:
        """Keep nothing."""

    def audited(self, kind: str, who: str, what: str) -> None:
        """Keep nothing."""
