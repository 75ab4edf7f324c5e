"""The time of a plan in futures drawn from the belief: a quick bound for many plans, a replay for the best.

The upper bound assumes no steering: each client's p-th chunk is done after p times its pace, chunk c has b
replicas at the b-th smallest of its holders' times, and the round ends when the last chunk has them. The
lower bound is the fluid bound, all work over all speeds. Plans are ranked by the geometric mean of the two.

The replay runs the same `Round` that serves real clients. All plans use the same futures (common random
numbers), so differences are due to the plans. A fleet too large to replay in time is thinned to clients of
evenly spaced burden (a share of the work, and an upload), with as many chunks each: the result depends on the
mix of speeds, hardly on the number of clients, as the server's slots for uploads are thinned too. If uploads
may be late it does: the last of many uploads is later than that of few. Then chunks are merged first, to keep
more clients.

Shape letters: b futures, w clients, c chunks, k replicas.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from fedgc.config import RunConfig
from fedgc.gates import Decision, Reports
from fedgc.history import Speed, Speeds
from fedgc.round.coded.lateness import expects_late
from fedgc.round.limits import late_s
from fedgc.round.machine import Assignment, Round
from fedgc.round.plan import Chunk, Fleet, Plan, make_plan
from fedgc.sim.clock import FLOAT_BYTES, UNCONTENDED, ClientModel, Line, Terms, VirtualClock, working
from fedgc.tuner.history import Float

MOST_REPLAYED: Final = 160  # chunks of a fleet that is replayed without thinning
MOST_MERGED: Final = 400  # chunks of a fleet whose chunks are merged
MERGED: Final = 4  # at least so many chunks are left for each client
REPEAT: Final = 2.0  # a round that lacks data costs as much as repeating it
PATIENT_S: Final = 1e9  # no timeout, since the duration is measured


@dataclass(frozen=True, slots=True)
class Setting:
    """The choices: the number of replicas; the blocks, or None to choose when the round stops."""

    replicas: int
    blocks: int | None

    @property
    def words(self) -> str:
        """Return the setting as text.

        >>> Setting(1, 1).words, Setting(3, 1).words, Setting(3, None).words
        ('no redundancy', '3 replicas, no code', '3 replicas, blocks chosen at the stop')
        """
        if self.replicas == 1:
            return "no redundancy"
        cut = {None: "blocks chosen at the stop", 1: "no code"}.get(self.blocks, f"{self.blocks} blocks")
        return f"{self.replicas} replicas, {cut}"


@dataclass(frozen=True, slots=True)
class Question:
    """The input of the tuner: clients, chunks and configuration.

    Chunks that none of these clients can load are left out.
    """

    fleet: Fleet
    config: RunConfig
    steps: int
    line: Line = UNCONTENDED
    load_s: Mapping[str, float] = field(default_factory=dict)  # of moving a chunk to this client
    rounds_left: int = 1  # over which the cost of a move is spread

    def __post_init__(self) -> None:
        reachable = self.fleet.reachable
        if len(reachable) < len(self.fleet.chunks):
            object.__setattr__(self, "fleet", replace(self.fleet, chunks=reachable))

    @property
    def clients(self) -> tuple[str, ...]:
        """Return the clients that can hold a chunk."""
        return self.fleet.able

    @property
    def free(self) -> bool:
        """Return whether every client can hold every chunk, so that the number of replicas is free."""
        every = frozenset(chunk.number for chunk in self.fleet.chunks)
        return all(self.fleet.holds[client] == every for client in self.clients)

    @property
    def deals(self) -> bool:
        """Return whether most chunks are dealt out, so that their number of replicas is free."""
        return bool(self.fleet.common)

    def planned(self, setting: Setting, speeds: Speeds) -> Plan:
        """Return the plan of this setting."""
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
        """Return steps per second, 0 where the client dies."""
        speed: Float = np.where(np.isfinite(self.dies_bw), 0.0, 1.0 / self.step_bw)
        return speed


def known_speeds(clients: Sequence[str], step_w: Float, links: Speeds) -> Speeds:
    """Return these step times as speeds, with the known links."""
    found = {}
    for client, step_s in zip(clients, step_w.tolist(), strict=True):
        old = links.known.get(client)
        found[client] = replace(old, step_s=step_s) if old else Speed(client, step_s)
    return Speeds(found)


def upload_s(question: Question, speeds: Speeds) -> Float:
    """Return the seconds of a whole update on each client's own uplink; 0 if it was never measured."""
    size_bytes = FLOAT_BYTES * question.fleet.size
    known = (speeds.known.get(client) for client in question.clients)
    return np.asarray([size_bytes / s.up_bytes_s if s and s.up_bytes_s else 0.0 for s in known])


def collected_s(question: Question, speeds: Speeds) -> float:
    """Return the least seconds until whole updates of all clients are there: they queue for slots."""
    upload_s_w = upload_s(question, speeds)
    slots = question.line.slots or len(upload_s_w)
    return max(float(upload_s_w.max()), float(upload_s_w.sum()) / slots)


def fluid_s(question: Question, futures: Futures, blocks: int = 1) -> Float:
    """Return the fluid bound, all work over all speeds, for each future."""
    work = len(question.fleet.chunks) * question.steps * blocks
    speed_b = futures.speed_bw.sum(axis=1)
    bound: Float = np.where(speed_b > 0, work / np.maximum(speed_b, 1e-300), np.inf)
    return bound


def cover_s(plan: Plan, futures: Futures) -> Float:
    """Return when every chunk has 1, 2, ... replicas, without steering (replicas x futures)."""
    placement = plan.placement
    held_cn = placement.holder_cn
    position_wc = np.zeros(placement.holds.shape)
    for w, order in enumerate(placement.orders):
        position_wc[w, list(order)] = np.arange(1, len(order) + 1)
    position_kc = np.take_along_axis(position_wc, np.maximum(held_cn, 0), axis=0)
    position_kc = np.where(held_cn >= 0, position_kc, 1.0)  # -1 holders are excluded below
    step_bw = np.where(np.isfinite(futures.dies_bw), np.inf, futures.step_bw)
    times_bkc = step_bw[:, held_cn] * position_kc * plan.steps
    times_bkc = np.sort(np.where(held_cn >= 0, times_bkc, np.inf), axis=1)
    cover_kb: Float = times_bkc.max(axis=2).T[: placement.replicas]
    return cover_kb


def uncoded_s(question: Question, speeds: Speeds, futures: Futures) -> Float:
    """Return the time of a round without code: shares by speed, one client each, waiting for all.

    A failure is detected after the grace time, as with replicas; then the lost work is repeated once.
    """
    pace_w = np.asarray([speeds.step_s(client, 1.0) for client in question.clients])
    share_w = len(question.fleet.chunks) / pace_w / (1.0 / pace_w).sum()
    work_bw = futures.step_bw * share_w * question.steps
    again_bw = futures.dies_bw * work_bw + question.config.grace_s
    lost_bw = np.where(np.isfinite(futures.dies_bw), again_bw, 0.0)
    return _queued_s(work_bw + lost_bw, upload_s(question, speeds), question.line.slots or len(pace_w))


def _queued_s(ready_bw: Float, upload_s_w: Float, slots: int) -> Float:
    """Return when all uploads are there: each takes the slot that is free first, in the order of the work.

    >>> _queued_s(np.array([[1.0, 2.0, 9.0]]), np.array([5.0, 5.0, 1.0]), 1).tolist()
    [12.0]
    """
    rows = np.arange(len(ready_bw))
    free_bs = np.zeros((len(ready_bw), min(slots, len(upload_s_w))))
    for w_b in np.argsort(ready_bw, axis=1, kind="stable").T:
        slot_b = free_bs.argmin(axis=1)
        free_bs[rows, slot_b] = np.maximum(free_bs[rows, slot_b], ready_bw[rows, w_b]) + upload_s_w[w_b]
    last_b: Float = free_bs.max(axis=1)
    return last_b


def replayed_s(question: Question, plan: Plan, futures: Futures, up_s_w: Float) -> Float:
    """Return the time of a round in each future; a round that lacks data counts twice."""
    rounds = range(len(futures.step_bw))
    return np.asarray([_play(question, plan, futures, future, up_s_w) for future in rounds])


def _play(question: Question, plan: Plan, futures: Futures, future: int, up_s_w: Float) -> float:
    pace_w = futures.step_bw[future] * question.steps
    alive = futures.speed_bw[future].sum()
    lasts_s = len(plan.chunks) * question.steps / alive if alive else float(pace_w.min())
    conditions = working(pace_w[:, None], up_s=up_s_w)
    conditions = replace(conditions, dies_s_w=futures.dies_bw[future] * lasts_s)
    client_model = ClientModel(lambda _: conditions, {chunk.number: 1.0 for chunk in plan.chunks})
    over = Round(plan, Assignment(1, 0, question.steps, question.config.seed + future), _always)
    config = question.config
    fleet = question.fleet
    size_bytes = FLOAT_BYTES * fleet.size
    terms = Terms(question.steps, size_bytes, question.line, config.grace_s, buffers=fleet.buffers)
    clock = VirtualClock(plan.clients, client_model, terms)
    clock.play(over, [not fleet.deaf] * len(plan.clients), 0.0)
    whole = over.outcome == "synced"
    return over.closed_at * (1.0 if whole else REPEAT)


def _always(_: Reports) -> Decision:
    return Decision(sync=True, reason="it is a replay")


def thinned(
    question: Question, step_w: Float, speeds: Speeds, least: int, *, merges: bool = True
) -> tuple[Question, tuple[int, ...]]:
    """Return a fleet small enough to replay, and the indices of its clients (at least `least`).

    If uploads may be late and it `merges`, it has larger chunks.
    """
    clients, most = question.clients, MOST_REPLAYED
    if len(question.fleet.chunks) <= most or not question.free:
        return question, tuple(range(len(clients)))
    upload_s_w = upload_s(question, speeds)
    share_s_w = len(question.fleet.chunks) / len(clients) * question.steps * step_w
    if merges and expects_late(upload_s_w.tolist(), late_s(question.config)):
        most = MOST_MERGED
        question = merged(question, -(-len(question.fleet.chunks) // max(most, MERGED * len(clients))))
    chunks = question.fleet.chunks
    count = min(len(clients), max(least, len(clients) * most // len(chunks)))
    if count == len(clients):
        return question, tuple(range(count))
    by_burden = np.argsort(share_s_w + upload_s_w, kind="stable")
    places = (np.arange(count) + 0.5) * len(clients) / count
    kept = tuple(sorted(by_burden[places.astype(int)].tolist()))
    few = _renumbered(chunks[: max(1, round(len(chunks) * count / len(clients)))])
    every = frozenset(chunk.number for chunk in few)
    holds = {clients[w]: every for w in kept}
    line, longer = _narrowed(question.line, count / len(clients))
    size, buffers = (math.ceil(longer * each) for each in (question.fleet.size, question.fleet.buffers))
    fleet = Fleet(holds, few, size, question.fleet.deaf, buffers)
    return replace(question, fleet=fleet, line=line), kept


def _narrowed(line: Line, share: float) -> tuple[Line, float]:
    """Return a line on which the uploads of this share of the clients queue for as long as those of all.

    If it would have less than one slot, it has one, and an upload takes so many times as long.

    >>> _narrowed(Line(slots=8), 0.5), _narrowed(Line(slots=2), 0.1)
    ((Line(update_s=0.0, slots=4), 1.0), (Line(update_s=0.0, slots=1), 5.0))
    """
    if line.slots is None:
        return line, 1.0
    slots = max(1, round(share * line.slots))
    return replace(line, slots=slots), slots / (share * line.slots)


def merged(question: Question, times: int) -> Question:
    """Return the same work in chunks that are `times` as large; every client can load each."""
    chunks = _renumbered(question.fleet.chunks[: max(1, len(question.fleet.chunks) // times)])
    every = frozenset(chunk.number for chunk in chunks)
    fleet = replace(question.fleet, chunks=chunks, holds=dict.fromkeys(question.clients, every))
    return replace(question, fleet=fleet, steps=times * question.steps)


def _renumbered(chunks: Sequence[Chunk]) -> tuple[Chunk, ...]:
    return tuple(replace(chunk, number=at) for at, chunk in enumerate(chunks))
