"""What a plan would take in futures drawn from belief: a quick bound for many plans, a replay for the best.

The bound walks each client through its order as if nobody told it anything: after the p-th chunk p times
its pace has passed, chunk c has b copies at the b-th smallest of its holders' times, and the round is over
when the last chunk has them. No round lasts longer than that. None is shorter than the fluid bound, all
work over all speeds. Steering ends somewhere between the two; their geometric mean ranks the plans.

The replay is the very `Round` that serves real clients. Every plan meets the same futures (common random
numbers), so that plans differ by what they are and not by luck. A fleet too large to be replayed in time is
thinned to clients of evenly spaced speed, with as many chunks each: what a client does in a steered round
hangs on the mix of speeds, hardly on the number of clients.

Shape letters: b futures, w clients, c chunks, k copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedgc.config import RunConfig
from fedgc.gates import Decision, Reports
from fedgc.history import Speed, Speeds
from fedgc.round.machine import Assignment, Round
from fedgc.round.plan import Chunk, Fleet, Plan, make_plan
from fedgc.sim.clock import UNCONTENDED, ArrayClientModel, Line, Terms, VirtualClock, working
from fedgc.tuner.past import FLOAT_BYTES, Float

MOST_REPLAYED: Final = 160  # chunks of a fleet that is replayed whole
REPEAT: Final = 2.0  # a round that lacks data is charged as if it had to be done again
PATIENT_S: Final = 1e9  # what is asked is how long a round takes, so nothing cuts it off


@dataclass(frozen=True, slots=True)
class Setting:
    """What can be chosen: copies of each chunk; blocks, or None to choose when the round stops."""

    replicas: int
    blocks: int | None

    @property
    def words(self) -> str:
        """Say it.

        >>> Setting(1, 1).words, Setting(3, 1).words, Setting(3, None).words
        ('no redundancy', '3 replicas, no code', '3 replicas, blocks chosen at the stop')
        """
        if self.replicas == 1:
            return "no redundancy"
        cut = {None: "blocks chosen at the stop", 1: "no code"}.get(self.blocks, f"{self.blocks} blocks")
        return f"{self.replicas} replicas, {cut}"


@dataclass(frozen=True, slots=True)
class Question:
    """The clients and chunks a plan is wanted for, and what they would do.

    Chunks that none of these clients can load are left out: they are nobody's work.
    """

    fleet: Fleet
    config: RunConfig
    steps: int
    line: Line = UNCONTENDED
    load_s: float = 0.0  # of moving a chunk to a client that does not have it
    rounds_left: int = 1  # over which a move must pay

    def __post_init__(self) -> None:
        reachable = self.fleet.reachable
        if len(reachable) < len(self.fleet.chunks):
            object.__setattr__(self, "fleet", replace(self.fleet, chunks=reachable))

    @property
    def clients(self) -> tuple[str, ...]:
        """Those that can hold a chunk."""
        return self.fleet.able

    @property
    def free(self) -> bool:
        """Whether every client can hold every chunk, so that the number of copies is ours to choose."""
        every = frozenset(chunk.number for chunk in self.fleet.chunks)
        return all(self.fleet.holds[client] == every for client in self.clients)

    def planned(self, setting: Setting, speeds: Speeds) -> Plan:
        """Return the plan that this setting comes to."""
        config = replace(
            self.config,
            replicas=max(setting.replicas, setting.blocks or 1),
            blocks=setting.blocks or "auto",
            deadline_s=PATIENT_S,
            upload_deadline_s=PATIENT_S,
        )
        return make_plan(self.fleet, speeds, config, steps=self.steps)


@dataclass(frozen=True, slots=True)
class Futures:
    """Step times, and the share of a round after which each client dies (infinite: it lives)."""

    step_bw: Float
    dies_bw: Float

    @property
    def speed_bw(self) -> Float:
        """Steps a second; none where the client dies."""
        speed: Float = np.where(np.isfinite(self.dies_bw), 0.0, 1.0 / self.step_bw)
        return speed


def known_speeds(clients: Sequence[str], step_w: Float, links: Speeds) -> Speeds:
    """Return these step times as speeds, with the links that are known."""
    found = {}
    for client, step_s in zip(clients, step_w.tolist(), strict=True):
        old = links.known.get(client)
        found[client] = replace(old, step_s=step_s) if old else Speed(client, step_s)
    return Speeds(found)


def upload_s(question: Question, speeds: Speeds) -> Float:
    """Seconds of a whole update on each client's own uplink; 0 where it was never measured."""
    size_bytes = FLOAT_BYTES * question.fleet.size
    known = (speeds.known.get(client) for client in question.clients)
    return np.asarray([size_bytes / s.up_bytes_s if s and s.up_bytes_s else 0.0 for s in known])


def fluid_s(question: Question, futures: Futures, blocks: int = 1) -> Float:
    """Return the time of all work over all speeds, for each future."""
    work = len(question.fleet.chunks) * question.steps * blocks
    speed_b = futures.speed_bw.sum(axis=1)
    bound: Float = np.where(speed_b > 0, work / np.maximum(speed_b, 1e-300), np.inf)
    return bound


def cover_s(plan: Plan, futures: Futures) -> Float:
    """Return when every chunk has 1, 2, ... copies in each future (copies x futures), unsteered."""
    placement = plan.placement
    held_cn = placement.holder_cn
    position_wc = np.zeros(placement.holds.shape)
    for w, order in enumerate(placement.orders):
        position_wc[w, list(order)] = np.arange(1, len(order) + 1)
    position_kc = np.take_along_axis(position_wc, np.maximum(held_cn, 0), axis=0)
    position_kc = np.where(held_cn >= 0, position_kc, 1.0)  # no holder: left out below, dead or not
    step_bw = np.where(np.isfinite(futures.dies_bw), np.inf, futures.step_bw)
    times_bkc = step_bw[:, held_cn] * position_kc * plan.steps
    times_bkc = np.sort(np.where(held_cn >= 0, times_bkc, np.inf), axis=1)
    cover_kb: Float = times_bkc.max(axis=2).T[: placement.replicas]
    return cover_kb


def uncoded_s(question: Question, speeds: Speeds, futures: Futures) -> Float:
    """Return the time of shares by speed, each on one client, all waited for.

    A death is noticed after the grace, as it is with copies; then what was lost is done once more.
    """
    pace_w = np.asarray([speeds.step_s(client, 1.0) for client in question.clients])
    share_w = len(question.fleet.chunks) / pace_w / (1.0 / pace_w).sum()
    work_bw = futures.step_bw * share_w * question.steps
    again_bw = futures.dies_bw * work_bw + question.config.grace_s
    lost_bw = np.where(np.isfinite(futures.dies_bw), again_bw, 0.0)
    slowest: Float = (work_bw + lost_bw + upload_s(question, speeds)).max(axis=1)
    return slowest


def replayed_s(question: Question, plan: Plan, futures: Futures, up_s_w: Float) -> Float:
    """Return what a round would take in each future; one that lacks data is charged twice."""
    rounds = range(len(futures.step_bw))
    return np.asarray([_play(question, plan, futures, future, up_s_w) for future in rounds])


def _play(question: Question, plan: Plan, futures: Futures, future: int, up_s_w: Float) -> float:
    pace_w = futures.step_bw[future] * question.steps
    alive = futures.speed_bw[future].sum()
    lasts_s = len(plan.chunks) * question.steps / alive if alive else float(pace_w.min())
    conditions = working(pace_w[:, None], up_s=up_s_w)
    conditions = replace(conditions, dies_s_w=futures.dies_bw[future] * lasts_s)
    client_model = ArrayClientModel(lambda _: conditions, {chunk.number: 1.0 for chunk in plan.chunks})
    over = Round(plan, Assignment(1, 0, question.steps, question.config.seed + future), _always)
    config = question.config
    terms = Terms(question.steps, FLOAT_BYTES * question.fleet.size, question.line, config.grace_s)
    clock = VirtualClock(plan.clients, client_model, terms)
    clock.play(over, [not question.fleet.deaf] * len(plan.clients), 0.0)
    whole = over.outcome == "synced"
    return over.closed_at * (1.0 if whole else REPEAT)


def _always(_: Reports) -> Decision:
    return Decision(sync=True, reason="it is a replay")


def thinned(question: Question, step_w: Float, least: int) -> tuple[Question, tuple[int, ...]]:
    """Return a fleet small enough to be replayed, and which clients (`least` or more) it is made of."""
    clients, chunks = question.clients, question.fleet.chunks
    if len(chunks) <= MOST_REPLAYED or len(clients) <= least or not question.free:
        return question, tuple(range(len(clients)))
    count = min(len(clients), max(least, len(clients) * MOST_REPLAYED // len(chunks)))
    by_speed = np.argsort(step_w, kind="stable")
    places = (np.arange(count) + 0.5) * len(clients) / count
    kept = tuple(sorted(by_speed[places.astype(int)].tolist()))
    few = _renumbered(chunks[: max(1, round(len(chunks) * count / len(clients)))])
    every = frozenset(chunk.number for chunk in few)
    holds = {clients[w]: every for w in kept}
    fleet = Fleet(holds, few, question.fleet.size, question.fleet.deaf)
    return replace(question, fleet=fleet), kept


def _renumbered(chunks: Sequence[Chunk]) -> tuple[Chunk, ...]:
    return tuple(replace(chunk, number=at) for at, chunk in enumerate(chunks))
