"""A run that only takes time: the `Run` that serves real clients, under the virtual clock, without training.

What clients report of training is made up: a drift that grows with the steps since the exchange, as gates
with a budget expect it, at a constant loss.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fedgc.config import RunConfig
from fedgc.history import RoundRow
from fedgc.messages import SUMMED, Continue, Held, Work
from fedgc.run.machine import Append, Finished, Run, RunParts
from fedgc.sim.clock import FLOAT_BYTES, ClientModel, Finding, Line, Terms, VirtualClock
from fedgc.sim.ours import SHARED


@dataclass(frozen=True, slots=True)
class TimedClients:
    """Clients by name, and their times; `arrives_s` is 0 for those that are there at the beginning."""

    names: tuple[str, ...]
    model: ClientModel
    numbers: int  # of the model
    chunks: int  # of coded work
    arrives_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Played:
    """The rounds of a run, the models sent up and down as whole vectors, and why it ended, if it did."""

    rows: tuple[RoundRow, ...]
    up: float
    down: float
    ended: str


def play(
    config: RunConfig,
    clients: TimedClients,
    rounds: int,
    parts: RunParts | None = None,
    line: Line | None = None,
) -> Played:
    """Play rounds until there are so many, or until the run ends."""
    local = config.work == "local"
    if local:  # who trains on what takes no time: each client has a chunk of its own
        config = replace(config, placement="private", inject_clients=0.0)
    line = line or Line(slots=config.slots_for(config.update_bytes(clients.numbers)))
    size_bytes, wire = FLOAT_BYTES * clients.numbers, config.download_codec
    terms = Terms(config.round_steps, size_bytes, line, config.grace_s, download_codec=wire)
    held = [Held("data", 1)] if local else [Held(f"chunk {c}", 1, SHARED) for c in range(clients.chunks)]
    clock = VirtualClock(clients.names, clients.model, terms, held, _Drift())
    run = Run(config, now=0.0, size=clients.numbers, parts=parts)
    rows: list[RoundRow] = []
    ended: list[str] = []

    def heed(output: object) -> None:
        if isinstance(output, Append):
            rows.append(output.row)
        elif isinstance(output, Finished):
            ended.append(output.reason)

    given: list[Any] = []
    for w, at in enumerate(clients.arrives_s or (0.0,) * len(clients.names)):
        if at > 0:
            clock.arrives(w, at)
        else:
            given += run.handle(clock.joined(w, 0.0))
    clock.run(run, given, lambda: bool(ended) or len(rows) >= rounds, heed)
    return Played(tuple(rows[:rounds]), clock.uploads.sent, clock.downloads.sent, "".join(ended))


def seconds_of(row: RoundRow) -> float:
    """Return how long a round took."""
    return row.working_s + row.collecting_s


def waste_of(rows: Iterable[RoundRow], *, local: bool) -> float:
    """Return the share of the finished work that is in no sum: of coded work, that of exchanged rounds."""
    clients = [each for row in rows if local or row.outcome in SUMMED for each in row.clients]
    finished = sum(each.finished for each in clients)
    return 1 - sum(each.counted for each in clients) / finished if finished else 0.0


class _Drift:
    """The findings of no training."""

    def begin(self, work: Work) -> None:
        """Do nothing: there is no model."""

    def carry_on(self, work: Continue) -> None:
        """Do nothing."""

    def finding(self, chunk: int, target: int) -> Finding:  # noqa: ARG002  all chunks are alike
        """Return the finding of a chunk."""
        return Finding(squared_norm=float(target))

    def reached(self, client: str, steps: int) -> Finding:  # noqa: ARG002  all clients are alike
        """Return the finding of local work."""
        return Finding(squared_norm=float(steps))

    def lost(self, client: str) -> None:
        """Do nothing."""
