"""Asynchronous training under simulated time: each client trains from a model of its own age.

    FedBuff  a client takes the newest model, trains, sends the difference, and repeats. The server adds K
             differences, each weighted by 1 / sqrt(1 + age), age in models since the client's start; their
             mean is the next step (Nguyen et al., arXiv 2106.06639).
    SSP      the server adds each update, weighted by its client's share of the samples, and answers with its
             model; a client waits only while it is more than `bound` work units ahead of the slowest (stale
             synchronous parallel, Ho et al., NIPS 2013). A bound of 0 is bulk-synchronous.

    trained = train_asynchronously(Job(task, config, scenario), Buffered(4))
    [(moment.seconds, moment.metrics["accuracy"]) for moment in trained.moments]

A work unit is a round's local steps. A round here is as many updates as there are clients: then the next
conditions of the scenario apply, and the settings give the number of rounds. The steps are those of
`fedgc.sim.training`, with an engine for each client or a stack; a unit begins with a fresh optimizer, like
any work from a common model.

Assumptions that favor the baselines: the server's link has no limit, and the death of a client is known at
once, so SSP waits for no dead client.
"""

import heapq
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import ClassVar, Final, Protocol

import numpy as np

from fedgc.codecs import EXACT
from fedgc.errors import BadSetting
from fedgc.history import Speeds
from fedgc.messages import Reveal, Work
from fedgc.round.plan import Chunk, Fleet, make_plan
from fedgc.sim.clock import NEVER, Conditions
from fedgc.sim.clock.conditions import Float
from fedgc.sim.fleet import Fleet as SimulatedClients
from fedgc.sim.training import Job, engines_of
from fedgc.training import CommonModel, ServerOptimizer, Vector

LEASE_S: Final = 1.0  # leases do not end in a simulation
_ARRIVES: Final = 0
_DIES: Final = 1
_RETURNS: Final = 2


class Rule(Protocol):
    """The server's rule for an update, and how far a client may run ahead."""

    @property
    def buffer(self) -> int:
        """Return the number of updates for a new model."""

    @property
    def bound(self) -> float:
        """Return how many units a client may be ahead of the slowest when it begins one."""

    def weight(self, age: int, share: float) -> float:
        """Return the weight of an update of this age by a client with this share of the samples."""


@dataclass(frozen=True, slots=True)
class Buffered:
    """FedBuff with a buffer of this many updates."""

    buffer: int
    by_samples: int = 0  # of so many clients: each update counts by its client's samples too
    bound: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        if self.buffer < 1:
            raise BadSetting(f"FedBuff: saw a buffer of {self.buffer}, needed one piece at least")

    def weight(self, age: int, share: float) -> float:
        """Return the weight of an update; as published, all clients count alike.

        >>> Buffered(2).weight(0, 0.1), Buffered(2).weight(3, 0.1), Buffered(2, by_samples=8).weight(0, 0.25)
        (0.5, 0.25, 1.0)
        """
        samples = self.by_samples * share if self.by_samples else 1.0
        return samples / (self.buffer * math.sqrt(1 + age))


@dataclass(frozen=True, slots=True)
class Bounded:
    """SSP, at most this many units ahead of the slowest."""

    bound: float
    buffer: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not self.bound >= 0:
            raise BadSetting(f"SSP: saw a bound of {self.bound}, needed 0 or more")

    def weight(self, age: int, share: float) -> float:  # noqa: ARG002  how stale it is, the bound says
        """Return the weight of an update."""
        return share


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of training at the end of a round; sums since the beginning."""

    seconds: float
    pushed: int  # updates uploaded
    pulled: int  # models downloaded
    steps: int
    version: int
    metrics: Mapping[str, float]
    clients: frozenset[str] = frozenset()  # whose updates came in this round


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of training: points over time, and the model."""

    moments: tuple[Moment, ...]
    model: Vector = field(repr=False)


@dataclass(slots=True)
class _Client:
    """The server's view of one client."""

    name: str
    share: float
    names: tuple[tuple[int, str], ...]
    version: int = 0  # of the model that it trains from
    units: int = 0  # received from it, or missed
    steps: int = 0  # received from it
    turn: int = 0  # incremented when it dies, to ignore its older events
    alive: bool = True
    trains: bool = False
    waits: bool = False


class _Training:
    """One run: the clock, the clients, the server's sum."""

    def __init__(self, job: Job, rule: Rule, folder: Path) -> None:
        _check(job)
        self._job, self._rule = job, rule
        self._common = CommonModel(job.task, job.config)
        self._optimizer = ServerOptimizer(
            job.config, self._common.parameters, variances=self._common.layout.variances
        )
        self.model = self._common.first()
        self._sum = np.zeros(self._common.size)
        self._fleet = engines_of(job, folder, self._common.layout.buffer_size)
        if isinstance(self._fleet, SimulatedClients):
            self._fleet.forecast = self._forecast
        self._fleet.load(0, self.model)
        self._clients = _clients(job)
        self._arriving = 0
        self._heap: list[tuple[float, int, int, int, int]] = []
        self._order = count()
        self._version = self._summed = self._pushed = self._pulled = self._steps = 0
        self._now = 0.0
        self._came: set[str] = set()  # in this round
        self.moments: list[Moment] = []

    def run(self, until: Callable[[Moment], bool]) -> None:
        """Run to the end of the last round, or until no client is left."""
        self._open(self._job.scenario[0])
        for at in range(len(self._clients)):
            self._begin(at)
        try:
            while self._heap and len(self.moments) < self._job.config.rounds:
                self._now, _, what, at, turn = heapq.heappop(self._heap)
                known = len(self.moments)
                self._happens(what, at, turn)
                if len(self.moments) > known and until(self.moments[-1]):
                    return
        finally:
            self._fleet.close()

    def _happens(self, what: int, at: int, turn: int) -> None:
        client = self._clients[at]
        if what == _ARRIVES and turn == client.turn:
            self._arrived(at)
        elif what == _DIES:
            client.alive = client.trains = client.waits = False
            client.turn += 1
            self._fleet.lost(client.name)
            self._release()  # others no longer wait for it
        elif what == _RETURNS:
            client.units = max(client.units, self._slowest)  # it need not make up for missed units
            client.alive = True
            self._begin(at)

    def _forecast(self, most: int) -> list[tuple[str, int]]:
        """Return the clients whose updates arrive now and next, and their steps."""
        arrives = (each for each in self._heap if each[2] == _ARRIVES)
        later = [at for *_, at, turn in heapq.nsmallest(most, arrives) if turn == self._clients[at].turn]
        due = [client for client in (self._clients[at] for at in (self._arriving, *later)) if client.trains]
        return [(client.name, self._job.config.round_steps) for client in due]

    # ---- clients

    def _begin(self, at: int) -> None:
        """Give a client the newest model, and schedule the end of its unit."""
        client, config, conditions = self._clients[at], self._job.config, self._conditions
        client.waits, client.trains, client.version = False, True, self._version
        self._pulled += 1
        self._fleet.lost(client.name)  # a unit from the same model is a new unit
        numbers = tuple(number for number, _ in client.names)
        work = Work(
            client.name, client.units + 1, self._version, config.round_steps, numbers, client.names,
            config.seed, LEASE_S, kind="local", first_step=client.steps,
        )  # fmt: skip
        self._fleet.begin(work)
        lines_s = conditions.down_s_w[at] + conditions.up_s_w[at] + 2 * conditions.control_s_w[at]
        self._push(self._now + float(lines_s + self._work_s[at]), _ARRIVES, at, client.turn)

    def _push(self, when: float, what: int, at: int, turn: int = 0) -> None:
        heapq.heappush(self._heap, (when, next(self._order), what, at, turn))

    def _arrived(self, at: int) -> None:
        self._arriving, client, steps = at, self._clients[at], self._job.config.round_steps
        self._fleet.reached(client.name, steps)
        sent = self._fleet.sent(Reveal(client.name, client.units + 1, 0, "local", None))
        client.steps += steps
        client.units += 1
        client.trains, client.waits = False, True
        self._steps += steps
        self._pushed += 1
        self._came.add(client.name)
        self._add(sent.astype(np.float64), self._rule.weight(self._version - client.version, client.share))
        if self._pushed % len(self._clients) == 0:
            self._close()
        self._release()

    def _release(self) -> None:
        """Start all clients that are not too far ahead."""
        for at, client in enumerate(self._clients):
            if client.waits and client.units - self._slowest <= self._rule.bound:
                self._begin(at)

    @property
    def _slowest(self) -> int:
        return min((client.units for client in self._clients if client.alive), default=0)

    # ---- the server

    def _add(self, update: Float, weight: float) -> None:
        self._sum += weight * update
        self._summed += 1
        if self._summed == self._rule.buffer:
            self.model = self._optimizer.apply(self.model, self._sum.astype(np.float32))
            self._sum[:] = 0.0
            self._summed = 0
            self._version += 1
            self._fleet.load(self._version, self.model)

    def _close(self) -> None:
        """End a round: record the state of training, and apply the next conditions."""
        config, number = self._job.config, len(self.moments) + 1
        every = config.evaluate_every
        metrics = self._common.evaluate(self.model) if every and number % every == 0 else {}
        came = frozenset(self._came)
        moment = Moment(self._now, self._pushed, self._pulled, self._steps, self._version, metrics, came)
        self.moments.append(moment)
        self._came.clear()
        if number < config.rounds:
            self._open(self._job.scenario[number])

    def _open(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._work_s = conditions.after_s(np.ones(conditions.clients))
        for at in np.flatnonzero(conditions.dies_s_w < NEVER).tolist():
            self._push(self._now + float(conditions.dies_s_w[at]), _DIES, at)
            if conditions.returns_s_w[at] < NEVER:
                self._push(self._now + float(conditions.returns_s_w[at]), _RETURNS, at)


def train_asynchronously(
    job: Job,
    rule: Rule,
    until: Callable[[Moment], bool] = lambda _: False,
) -> Trained:
    """Train to the end, or `until` a round is the last one; an engine's failure ends the run."""
    with tempfile.TemporaryDirectory(prefix="fedgc-bench-") as folder:
        training = _Training(job, rule, Path(folder))
        training.run(until)
    return Trained(tuple(training.moments), training.model)


def _check(job: Job) -> None:
    """Raise for settings that need a common model."""
    config = job.config
    if config.work != "local":
        raise BadSetting(f"setting work: saw {config.work}, needed local without a common model")
    if config.alpha < 1:
        raise BadSetting(
            f"setting optimizer.shared-momentum: saw {config.shared_momentum}, "
            "needed off without a common model"
        )
    for name, codec in (("codec", config.codec), ("download-codec", config.download_codec)):
        if codec != EXACT:
            raise BadSetting(f"setting links.{name}: saw {codec}, needed {EXACT} without a common model")
    job.task.allow(config.placement)


def _clients(job: Job) -> Sequence[_Client]:
    """Return the clients with the chunks of their placement."""
    sizes = job.task.sizes()
    chunks = tuple(Chunk(number, name, samples) for number, (name, samples) in enumerate(sizes.items()))
    everything = frozenset(range(len(chunks)))
    fleet = Fleet({f"client {at}": everything for at in range(job.scenario[0].clients)}, chunks)
    plan = make_plan(fleet, Speeds(), job.config, steps=job.config.round_steps)
    if plan.pool is not None:
        raise BadSetting("setting data.inject-clients: saw some, needed 0 without a common model")
    loads = plan.placement.holds @ np.array([chunk.samples for chunk in chunks])
    held = [np.flatnonzero(row).tolist() for row in plan.placement.holds]
    return [
        _Client(name, load / loads.sum(), tuple((chunks[c].number, chunks[c].name) for c in mine))
        for name, load, mine in zip(plan.clients, loads.tolist(), held, strict=True)
    ]
