"""Estimated client speeds, from the measurements of a run (James and Stein 1961).

A client's step time in the next round is estimated from its last few rounds. In some fleets every round draws
each client's speed independently, and sharing out work by such noise is worse than an even share. So the
estimates, logarithms of step times, are shrunk towards their common mean, by as much as the rounds of one
client vary compared with the clients:

    trust = 1 - (variance within clients / rounds) / variance between clients,   at least 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from fedgc.history import Speed, Speeds
from fedgc.messages import Codeword, Fetched, Loaded
from fedgc.round.machine import Round
from fedgc.round.plan import Plan
from fedgc.round.replication import ReplicationTarget
from fedgc.round.scheduler import WorkSummary

RECENT_ROUNDS: Final = 5
REPLAN_RATIO: Final = 1.5  # a client this much faster or slower than planned triggers a new plan
LEAST_STEP_S: Final = 1e-9  # a clock may not have advanced
FEW: Final = 3  # with fewer clients their spread is meaningless

Value = TypeVar("Value")


class MeasuredSpeeds:
    """Owns the measurements of a run."""

    def __init__(self, history: Speeds) -> None:
        self._history = history
        self._logs: dict[str, tuple[float, ...]] = {}
        self._uplinks: dict[str, tuple[float, ...]] = {}
        self._downlinks: dict[str, tuple[float, ...]] = {}
        self._fetches: dict[str, tuple[tuple[float, float], ...]] = {}  # bytes a second, and bytes of a chunk
        self._guesses: dict[str, float] | None = None

    def learn(self, over: Round) -> None:
        """Take in what a round has shown of its clients."""
        for client, step_s in zip(over.plan.clients, over.statistics.step_s, strict=True):
            if step_s:
                self.worked(client, sum(step_s) / len(step_s))
        for w, seconds in (over.result.unsent_s if over.result else {}).items():
            self.delayed(over.plan.clients[w], over.plan.update_bytes, seconds)

    def heard(self, event: Loaded | Fetched | Codeword) -> None:
        """Record what a client has moved."""
        match event:
            case Loaded():
                self.received(event.client, event.size_bytes, event.seconds)
            case Fetched():
                self.fetched(event.client, event.count, event.size_bytes, event.seconds)
            case Codeword():
                self.sent(event.client, event.size_bytes, event.seconds)

    def worked(self, client: str, step_s: float) -> None:
        """Record a round of this client, at `step_s` seconds per local step."""
        _keep(self._logs, client, math.log(max(step_s, LEAST_STEP_S)))
        self._guesses = None

    def differ(self, plan: Plan) -> bool:
        """Whether clients are so much faster or slower than planned that a new plan is worth it."""
        guesses = self.step_s()
        now = [guesses.get(each, planned) for each, planned in zip(plan.clients, plan.step_s, strict=True)]
        return is_other(now, plan.step_s) or (not plan.measured and guesses.keys() >= set(plan.clients))

    def sent(self, client: str, size_bytes: int, seconds: float) -> None:
        """Record an upload of this client."""
        if size_bytes > 0 and seconds > 0:
            _keep(self._uplinks, client, size_bytes / max(seconds, LEAST_STEP_S))

    def delayed(self, client: str, size_bytes: int, seconds: float) -> None:
        """Record an upload that was given up after `seconds`: the uplink is no faster than that."""
        known, at_most = self.up_bytes_s(client), size_bytes / max(seconds, LEAST_STEP_S)
        if size_bytes > 0 and (known is None or at_most < known):
            _keep(self._uplinks, client, at_most)

    def received(self, client: str, size_bytes: int, seconds: float) -> None:
        """Record a model download of this client."""
        if size_bytes > 0 and seconds > 0:
            _keep(self._downlinks, client, size_bytes / max(seconds, LEAST_STEP_S))

    def fetched(self, client: str, chunks: int, size_bytes: int, seconds: float) -> None:
        """Record that this client has fetched chunks of its site's store."""
        if chunks > 0 and size_bytes > 0 and seconds > 0:
            fetch = size_bytes / max(seconds, LEAST_STEP_S), size_bytes / chunks
            _keep(self._fetches, client, fetch)

    def step_s(self) -> Mapping[str, float]:
        """Return the estimated seconds per local step of every client measured in this run."""
        if self._guesses is None:
            self._guesses = shrunk(self._logs)
        return self._guesses

    def down_bytes_s(self, client: str) -> float | None:
        """Return the downlink of this client, if known."""
        before = self._history.known.get(client)
        return _middle(self._downlinks.get(client, ()), before.down_bytes_s if before else None)

    def up_bytes_s(self, client: str) -> float | None:
        """Return the uplink of this client, if known."""
        before = self._history.known.get(client)
        return _middle(self._uplinks.get(client, ()), before.up_bytes_s if before else None)

    def speeds(self) -> Speeds:
        """Return the history, overlaid with the measurements of this run."""
        known: dict[str, Speed] = dict(self._history.known)
        for client, step_s in self.step_s().items():
            before = known.get(client) or Speed(client, step_s)
            known[client] = replace(
                before,
                step_s=step_s,
                up_bytes_s=self.up_bytes_s(client),
                down_bytes_s=self.down_bytes_s(client),
                fetch_bytes_s=_middle([rate for rate, _ in self._fetches.get(client, ())], None),
                chunk_bytes=_middle([size for _, size in self._fetches.get(client, ())], None),
                rounds=before.rounds + len(self._logs[client]),
            )
        return Speeds(known)


def _keep(known: dict[str, tuple[Value, ...]], client: str, value: Value) -> None:
    """Keep a measurement of a client, and those of its last few rounds.

    A short tuple takes a tenth of the memory of a deque, which matters with thousands of clients.
    """
    known[client] = (*known.get(client, ())[1 - RECENT_ROUNDS :], value)


def is_other(now_s: Sequence[float], planned_s: Sequence[float]) -> bool:
    """Whether any time is much longer or shorter than planned.

    >>> is_other([1.0, 2.0], [1.0, 1.5]), is_other([1.0, 2.0], [1.0, 1.2]), is_other([0.5], [1.0])
    (False, True, True)
    """
    return any(
        max(now, planned) > REPLAN_RATIO * min(now, planned)
        for now, planned in zip(now_s, planned_s, strict=True)
    )


def shrunk(logs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return each client's estimate from the logarithms of its last step times.

    >>> steady = shrunk({"a": [0.0, 0.0], "b": [1.0, 1.0], "c": [2.0, 2.0]})
    >>> [round(math.log(steady[client]), 3) for client in "abc"]
    [0.0, 1.0, 2.0]
    >>> noise = shrunk({"a": [0.0, 2.0], "b": [2.0, 0.0], "c": [1.2, 1.0]})
    >>> [round(math.log(noise[client]), 3) for client in "abc"]
    [1.033, 1.033, 1.033]
    """
    means = {client: _mean(recent) for client, recent in logs.items() if recent}
    trust = _trust(logs, means)
    common = _mean(list(means.values())) if means else 0.0
    return {client: math.exp(common + trust * (mean - common)) for client, mean in means.items()}


def _trust(logs: Mapping[str, Sequence[float]], means: Mapping[str, float]) -> float:
    often = {client: recent for client, recent in logs.items() if len(recent) > 1}
    if len(often) < FEW:
        return 1.0
    within = _mean([_variance(recent, means[client]) for client, recent in often.items()])
    rounds = _mean([float(len(recent)) for recent in often.values()])
    between = _variance(list(means.values()), _mean(list(means.values())))
    return min(1.0, max(0.0, 1.0 - within / rounds / between)) if between > 0 else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[float], mean: float) -> float:
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _middle(values: Sequence[float], unmeasured: float | None) -> float | None:
    return sorted(values)[len(values) // 2] if values else unmeasured


def learn_replication(target: ReplicationTarget, over: Round, summary: WorkSummary) -> None:
    """Enter how long replicas took in a round with an exchange, and how long its collecting."""
    solution, this = over.result.solution if over.result else None, over.assignment
    if solution is not None:
        collecting_s = over.closed_at - over.started_at - over.working_s
        began = this.replication_costs.aim
        target.learn(summary.covered_s, this.target, solution.blocks, collecting_s, began=began)
