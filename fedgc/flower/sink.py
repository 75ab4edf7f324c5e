"""The interface of a sink: it receives the history of a run while the run goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedgc.history import BestModel, RoundRow

Windows = Sequence[tuple[float, float]]  # from and until when a client may train


@dataclass(frozen=True, slots=True)
class LiveClient:
    """The present state of a client."""

    client: str
    name: str
    present: bool
    finished: int  # chunks in this round; steps in local work
    link: str = ""
    held: int = 0  # planned chunks, or steps
    awaited: bool = False  # the run waits for its work, its vector or its return
    chunks: int = 0  # that it announced
    samples: int = 0  # in them
    leaves: bool = False  # it takes no more work
    closes: float | None = None  # when the hours of its site end, on the clock of `RoundRow.started`
    idle: str = ""  # why none of its data can be used, while a round waits for others


@dataclass(frozen=True, slots=True)
class Data:
    """How much of the data is present, of all that clients have announced; shared chunks count once.

    Clients have fetched some chunks from the stores of their sites since the run began.
    """

    present_chunks: int = 0
    present_samples: int = 0
    known_chunks: int = 0
    known_samples: int = 0
    fetched_chunks: int = 0
    fetched_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Live:
    """The present state of a run."""

    round: int
    rounds: int
    version: int
    phase: str  # gathering, working, collecting, closed, over
    elapsed_s: float
    covered: int
    chunks: int
    replicas: int
    clients: tuple[LiveClient, ...]
    unit: str = "chunks"  # of `covered`; in local work "clients" that finished their steps
    since: float = 0.0  # when the phase began, on the clock of `RoundRow.started`
    until: float | None = None  # when the run goes on without the awaited clients; None: not known
    needed: int = 0  # gathering: so many more clients must come
    data: Data = Data()


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

    def scored(self, round_: int, client: str, samples: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of the model after a round on the data of one client."""

    def improved(self, best: BestModel) -> None:
        """Receive the best model so far, in a run with the setting `validate.best`."""

    def ended_early(self, reason: str) -> None:
        """Receive why the run is complete before its last round."""

    def stopped(self, reason: str) -> None:
        """React to a signal that ends the process; no other call follows."""

    def chose(self, round_: int, basis: Mapping[str, object], reason: str) -> None:
        """Receive a new plan that holds from this round on."""

    def assigned(self, round_: int, chunks: Sequence[str]) -> None:
        """Receive the names of the chunks that a client is given to train on."""

    def has_hours(self, round_: int, client: str, windows: Windows) -> None:
        """Receive when a client may train in the next seven days, on the clock of `RoundRow.started`."""

    def audited(self, kind: str, who: str, what: str) -> None:
        """Receive a security event: a client joined, was refused, or used a key. Called from any thread."""

    def close(self) -> None:
        """Release resources at the end of the run."""
