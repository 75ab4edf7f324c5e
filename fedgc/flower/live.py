"""The live state of a run: its phase, its clients, whom it waits for, and how much of the data is present."""

import math
from collections.abc import Container, Mapping

from fedgc.config import RunConfig
from fedgc.flower.sink import Data, Live, LiveClient
from fedgc.links.links import Link
from fedgc.messages import Fetched, LinkEvent
from fedgc.round.machine import Round
from fedgc.round.waiting import Waiting
from fedgc.run.chunk_table import Amount
from fedgc.run.machine import Run


class LiveState:
    """Makes `Live` from a run and its links, and knows since when the run is in its phase."""

    def __init__(self, config: RunConfig, started: float, left: Container[str]) -> None:
        """`left` are the clients that are leaving or have left, at any time."""
        self._left = left
        self.names: dict[str, str] = {}  # of every client that was ever seen
        self._config = config
        self._started = started
        self._phase: tuple[int, str] = 0, ""
        self._since = started
        self._fetched_chunks = self._fetched_bytes = 0

    def handle(self, event: LinkEvent) -> None:
        """Count the chunks that clients have fetched."""
        if isinstance(event, Fetched):
            self._fetched_chunks += event.count
            self._fetched_bytes += event.size_bytes

    def of(self, run: Run, link: Link, now: float, *, over: bool) -> Live:
        """Return the state at this time."""
        current = run.round
        covered, chunks, replicas = current.progress if current else (0, 0, 0)
        phase = "over" if over else current.state.value if current else "gathering"
        if (run.number, phase) != self._phase:
            self._phase, self._since = (run.number, phase), now
        waiting, amounts = Waiting() if over else run.waiting, run.amounts
        return Live(
            round=run.number,
            rounds=self._config.rounds,
            version=run.version,
            phase=phase,
            elapsed_s=now - self._started,
            covered=covered,
            chunks=chunks,
            replicas=replicas,
            clients=self._clients(run, link, waiting),
            unit="clients" if self._config.work == "local" else "chunks",
            since=self._since,
            until=waiting.until if math.isfinite(waiting.until) else None,
            needed=waiting.needed,
            data=Data(
                *(amounts.present.chunks, amounts.present.samples),
                *(amounts.known.chunks, amounts.known.samples),
                *(self._fetched_chunks, self._fetched_bytes),
            ),
        )

    def _clients(self, run: Run, link: Link, waiting: Waiting) -> tuple[LiveClient, ...]:
        present = set(link.clients())
        planned = run.round.plan.clients if run.round else ()
        finished, held = _done_of(run.round) if run.round else ({}, {})
        self.names |= {client: link.name(client) for client in present | set(planned)}
        amounts = run.amounts.by_client
        known = dict.fromkeys(amounts, "") | self.names
        closes = run.round.assignment.closes if run.round else {}
        idle = run.idle
        return tuple(
            LiveClient(
                client,
                name,
                client in present,
                finished.get(client, 0),
                link.link(client),
                held.get(client, 0),
                client in waiting.clients,
                amounts.get(client, Amount()).chunks,
                amounts.get(client, Amount()).samples,
                client in self._left,
                closes.get(client) if client in present else None,
                idle.get(client, ""),
            )
            for client, name in sorted(known.items(), key=lambda pair: (pair[1], pair[0]))
        )


def _done_of(current: Round) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return by client the finished and the planned amount: chunks, or steps of local work."""
    plan, statistics = current.plan, current.statistics
    if plan.work == "local":
        done, held = statistics.steps, [plan.steps] * len(plan.clients)
    else:
        done, held = statistics.finished, list(plan.placement.loads)
    return dict(zip(plan.clients, done, strict=True)), dict(zip(plan.clients, held, strict=True))
