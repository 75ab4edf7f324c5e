"""Simulation requests (`fedgc sim`): predict the time of rounds, the bytes sent, and the work discarded.

Times come from a model or a trace; links from the size of the model and the speed of a client's link, or
from recorded links. Long runs are divided among processes, each of which plays its part as a run of its own.
The result therefore depends on `processes`, which is part of the request.
"""

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Final

import numpy as np

from fedgc.config import RunConfig
from fedgc.errors import BadPlacement, BadSetting, nearest
from fedgc.sim.catalogue import baselines, find, ours
from fedgc.sim.clock import MODELS, Conditions, Line, Scenario, Span
from fedgc.sim.ours import Fedgc
from fedgc.sim.owned import Processes
from fedgc.sim.policy import Policy, Result
from fedgc.sim.traces import read_links, read_names, read_table

MEGABYTE: Final = 1_000_000
USUAL_CLIENTS: Final = 200
USUAL_REPLICAS: Final = 4
GRACE_S: Final = RunConfig().grace_s  # until a server takes a client that has died for lost
SHORT: Final = 50  # rounds below which one process is used
MOST: Final = 10**8  # clients times rounds, whose times are held in memory
Played = tuple[tuple[Result, ...], tuple[Span, ...]]  # every round; spans of the last, if watched


@dataclass(frozen=True, slots=True)
class Request:
    """What to simulate; `trace` or `model` gives the clients' speeds, `links` their links.

    Without `clients`, there are as many as in the trace, or USUAL_CLIENTS. Several uplinks or downlinks are
    those of the first clients and repeat over the others.
    """

    clients: int | None = None
    rounds: int = 20
    model_mb: float = 50.0
    uplink_mb_s: float | tuple[float, ...] = 12.5
    downlink_mb_s: float | tuple[float, ...] = 50.0
    server_mb_s: float = 0.0  # 0: no limit
    upload_slots: int = 0  # clients that upload at the same time; 0: all
    latency_s: float = 0.0
    model: str = "shifted-exponential"
    trace: Path | None = None
    links: Path | None = None
    replicas: int | None = None  # of each chunk; by default USUAL_REPLICAS, or as many as there are clients
    pieces: int = 1
    blocks: int = 0  # 0: each round chooses
    policies: tuple[str, ...] = ()
    beside: bool = False  # compare with the usual baselines if no policy is named
    seed: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.model not in MODELS:
            raise BadSetting(f"model {self.model!r}: unknown{nearest(self.model, MODELS, MODELS)}")
        replicas = self.replicas or USUAL_REPLICAS
        if self.clients is not None and (self.replicas or 1) > self.clients:
            raise BadPlacement(
                f"{self.replicas} replicas on {self.clients} clients: at most as many are possible"
            )
        if self.blocks > replicas:
            raise BadPlacement(f"{self.blocks} blocks of {replicas} replicas: at most as many are possible")

    def _check_numbers(self) -> None:
        least = {"clients": 1, "rounds": 1, "replicas": 1, "pieces": 1, "processes": 1}
        least |= {"server_mb_s": 0, "latency_s": 0, "blocks": 0, "seed": 0, "upload_slots": 0}
        for name, value in least.items():
            seen = getattr(self, name)
            if seen is not None and not value <= seen < float("inf"):
                raise BadSetting(f"{name}: saw {seen}, needed at least {value}")
        if self.clients is not None and self.clients * self.rounds > MOST:
            seen = f"{self.clients} in {self.rounds} rounds"
            raise BadSetting(f"clients: saw {seen}, needed at most {MOST:,} for clients times rounds")
        for name in ("model_mb", "uplink_mb_s", "downlink_mb_s"):
            seen = np.atleast_1d(getattr(self, name))
            if not (seen.size and np.all((seen > 0) & (seen < np.inf))):
                raise BadSetting(f"{name}: saw {getattr(self, name)}, needed more than 0")

    @property
    def line(self) -> Line:
        """Return the server's link."""
        return Line(self.model_mb / self.server_mb_s if self.server_mb_s else 0.0, self.upload_slots or None)

    def scenario(self) -> Scenario:
        """Return all rounds; a short trace repeats, and one with fewer clients is refused."""
        rng = np.random.default_rng(self.seed)
        if self.trace is None:
            clients = USUAL_CLIENTS if self.clients is None else self.clients
            rounds = MODELS[self.model](clients, self.rounds, rng)
        else:
            rounds = self._recorded(read_table(self.trace))
        rounds = tuple(self._delayed(each) for each in rounds)
        if self.links is not None:
            names = read_names(self.trace) if self.trace is not None else ()
            return read_links(self.links).over(rounds, round(self.model_mb * MEGABYTE), rng, names)
        return tuple(self._linked(each) for each in rounds)

    def chosen(self, clients: int) -> tuple[Policy, ...]:
        """Return the policies to compare on so many clients; fedgc alone by default."""
        replicas = self.replicas or min(USUAL_REPLICAS, clients)
        mine = Fedgc(replicas, self.pieces, self.blocks, grace_s=GRACE_S)
        if not self.policies:
            return (mine, *baselines(replicas)) if self.beside else (mine,)
        others = [replace(each, grace_s=GRACE_S) for each in ours(replicas, 1) if isinstance(each, Fedgc)]
        found = find(self.policies, [mine, *baselines(replicas), *others])
        if mine not in found and (self.pieces > 1 or self.blocks):
            seen = f"{self.pieces} chunks each and {self.blocks} blocks for {found[0].name}"
            raise BadSetting(f"policies: saw {seen}, needed fedgc {mine.obeys.value}, or neither of both")
        return found

    def _recorded(self, whole: Scenario) -> Scenario:
        clients = whole[0].clients if self.clients is None else self.clients
        if whole[0].clients < clients:
            raise BadSetting(f"clients: saw {clients}, the trace has {whole[0].clients}")
        first_w = np.arange(clients)
        return tuple(whole[at % len(whole)].only(first_w) for at in range(self.rounds))

    def _delayed(self, conditions: Conditions) -> Conditions:
        return replace(conditions, control_s_w=np.full(conditions.clients, self.latency_s))

    def _linked(self, conditions: Conditions) -> Conditions:
        speeds = (np.atleast_1d(each) for each in (self.uplink_mb_s, self.downlink_mb_s))
        up_s_w, down_s_w = (self.model_mb / np.resize(each, conditions.clients) for each in speeds)
        return replace(conditions, up_s_w=up_s_w, down_s_w=down_s_w)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted rounds of one policy."""

    policy: str
    results: tuple[Result, ...]
    up_mb: float  # per round
    discarded: float  # share of the finished work
    spans: tuple[Span, ...] = field(default=(), repr=False)  # of the last round, if watched
    working_s: float = 0.0  # of that round

    @property
    def missing(self) -> float:
        """Return the share of the data that is in no sum, on average over the rounds."""
        return float(np.mean([result.missing for result in self.results]))

    @property
    def median_s(self) -> float:
        """Return the predicted median time of a round."""
        return float(np.median([result.seconds for result in self.results]))

    @property
    def p95_s(self) -> float:
        """Return the 95th percentile of the time of a round."""
        return float(np.percentile([result.seconds for result in self.results], 95, method="higher"))


def shown_s(seconds: float, form: str) -> str:
    """Return a round's time as text; "never" if a client that it waits for has died.

    >>> shown_s(1.234, "{:.2f} s"), shown_s(float("inf"), "{:.2f} s")
    ('1.23 s', 'never')
    """
    return form.format(seconds) if seconds < float("inf") else "never"


def simulate(
    request: Request, progress: Callable[[int, int], object] = lambda *_: None, *, watch: bool = False
) -> tuple[Prediction, ...]:
    """Play every policy; `progress` receives the number of finished rounds and the total.

    `watch` keeps the spans of the last round.
    """
    scenario = request.scenario()
    policies = request.chosen(scenario[0].clients)
    total = len(policies) * request.rounds
    names = read_names(request.trace) if watch and request.trace is not None else ()
    predictions = []
    for at, policy in enumerate(policies):

        def heard(over: int, before: int = at * request.rounds) -> None:
            progress(before + over, total)

        results, spans = _play(policy, scenario, request, heard, watch)
        predictions.append(_prediction(policy, results, _named(spans, names), request.model_mb))
    return tuple(predictions)


def _named(spans: tuple[Span, ...], names: Sequence[str]) -> tuple[Span, ...]:
    """Return the spans with the names that clients have in a trace, if they have any."""
    called = {f"client {w}": name for w, name in enumerate(names)}
    return tuple(replace(each, client=called.get(each.client, each.client)) for each in spans)


def _play(
    policy: Policy, scenario: Scenario, request: Request, heard: Callable[[int], object], watch: bool
) -> Played:
    if not isinstance(policy, Fedgc):
        results = policy.play(scenario, request.line)
        heard(len(scenario))
        return results, ()
    if request.processes == 1 or len(scenario) < SHORT:
        over = count(1)
        return _alone(policy, scenario, request.line, watch, lambda _: heard(next(over)))
    return _shared_out(policy, _parts(scenario, request.processes), request.line, heard, watch)


def _alone(
    policy: Fedgc,
    scenario: Scenario,
    line: Line,
    watch: bool,
    heard: Callable[[object], object] = lambda _: None,
) -> Played:
    rounds = policy.watched(scenario, line, watch=watch, heard=heard)
    return tuple(result for result, _ in rounds), rounds[-1][1]


def _shared_out(
    policy: Fedgc, parts: Sequence[Scenario], line: Line, heard: Callable[[int], object], watch: bool
) -> Played:
    # A run leaves no reference cycles until it ends, and each process runs only one.
    with Processes(len(parts), gc.disable) as pool:
        futures = [pool.submit(_alone, policy, part, line, watch and part is parts[-1]) for part in parts]
        waiting = set(futures)
        while waiting:
            _, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            heard(sum(len(part) for part, each in zip(parts, futures, strict=True) if each.done()))
        played = [each.result() for each in futures]
        return tuple(result for results, _ in played for result in results), played[-1][1]


def _parts(scenario: Scenario, most: int) -> list[Scenario]:
    """Split the rounds as evenly as possible, at least one in each part.

    >>> [len(part) for part in _parts((None,) * 5, 2)], len(_parts((None,) * 5, 60))
    ([3, 2], 5)
    """
    parts = min(most, len(scenario))
    ends = [-(-len(scenario) * at // parts) for at in range(parts + 1)]
    return [scenario[begin:end] for begin, end in pairwise(ends)]


def _prediction(
    policy: Policy, results: tuple[Result, ...], spans: tuple[Span, ...], model_mb: float
) -> Prediction:
    computed = sum(result.computed for result in results)
    discarded = sum(result.discarded for result in results) / computed if computed else 0.0
    sent = float(np.mean([result.sent for result in results]))
    return Prediction(policy.name, results, sent * model_mb, discarded, spans, results[-1].working_s)
