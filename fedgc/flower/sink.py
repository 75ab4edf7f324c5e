"""The interface of a sink: it receives the history of a run while the run goes on."""

from collections.abc import Mapping
from dataclasses import dataclass

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


class Sink:
    """Receives the history of a run; each method does nothing by default.

    To add a sink, write one subclass and register it as an entry point of the group `fedgc.sinks`; the
    setting `history.sinks` then takes its name. It is made on the server with the name and the settings of
    the run. All methods except `audited` are called in the thread that drives the run, so they must return
    quickly. A sink of another package that raises is reported in the run's log and left out from then on.

    Example:
        class Printer(Sink):
            def __init__(self, run: str, config: RunConfig) -> None:
                self.run = run

            def append(self, row: RoundRow) -> None:
                print(self.run, row.round, row.outcome)
    """

    def append(self, row: RoundRow) -> None:
        """Receive a finished round."""

    def present(self, live: Live) -> None:
        """Receive the state of the run, a few times a second."""

    def evaluated(self, round_: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of the model after a round."""

    def stopped(self, reason: str) -> None:
        """React to a signal that ends the process: no other call follows."""

    def chose(self, round_: int, basis: Mapping[str, object], reason: str) -> None:
        """Receive a new plan that holds from this round on."""

    def audited(self, kind: str, who: str, what: str) -> None:
        """Receive a security event: a client joined, was refused, or used a key. Called from any thread."""

    def close(self) -> None:
        """Release what the sink holds: the run is over."""
