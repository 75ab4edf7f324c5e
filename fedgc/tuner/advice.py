"""What a person asks before a run: what would be chosen and why, and what other clients would change.

Beside the choice stand two figures to hold it against: the uncoded round, its work shared out by speed and
everybody waited for, and the fluid bound, which nothing can beat. What one more client would bring, and what
the fleet would take without one that it has, are replayed in the same futures as the choice, so that even a
small difference is the client's and not luck's.

The number of chunks is cut into the data before a run begins, so it is no choice of a run, but it is one of
the person's: the same steps in more chunks of fewer steps each leave less to wait for at the end. What a
chunk costs by itself (to load it, to report it) is nobody's measurement, and is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedgc.errors import BadSetting
from fedgc.history import Speed, Speeds
from fedgc.round.plan import Fleet
from fedgc.sim.clock import Scenario
from fedgc.tuner.belief import believe
from fedgc.tuner.choose import CONFIRMED, COPIES, Choice, choose
from fedgc.tuner.past import FLOAT_BYTES, ClientHistory, Float, nothing, remember
from fedgc.tuner.trial import (
    Futures,
    Question,
    Setting,
    fluid_s,
    known_speeds,
    replayed_s,
    thinned,
    uncoded_s,
    upload_s,
)

SUSPECTS: Final = 3  # clients that are tried without
COSTS: Final = 0.01  # of the round, by which it must be faster without a client
NEWCOMER: Final = "one more client"
FINER: Final = (1, 2, 4, 8)  # times as many chunks
MOST_CHUNKS: Final = 400  # that are replayed


@dataclass(frozen=True, slots=True)
class Cut:
    """The same work in so many chunks of so many steps, and the round predicted for it."""

    chunks: int
    steps: int
    round_s: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The choice, what it is held against, and what another fleet would take; times are means of rounds."""

    choice: Choice
    clients: tuple[str, ...]
    loads: tuple[int, ...]
    order: str
    cuts: tuple[Cut, ...]  # the present one first; it alone where the data lies as it lies
    uncoded_s: float
    fluid_s: float
    one_more: tuple[tuple[float, float], ...]  # seconds of a step of the newcomer, predicted round
    costs: tuple[tuple[str, float], ...]  # client, predicted round without it: shorter than with it

    @property
    def over_uncoded(self) -> float:
        """The predicted round over the uncoded one."""
        return self.choice.predicted_s / self.uncoded_s

    @property
    def over_fluid(self) -> float:
        """The predicted round over the fluid bound."""
        return self.choice.predicted_s / self.fluid_s


ORDERS: Final = {  # by whether a chunk lies with one client only
    False: "a serpentine across the classes of clients, begun elsewhere in every round",
    True: "each client that is alone with a chunk carries on where it stopped",
}


def advise(
    question: Question,
    before: Speeds,
    rng: np.random.Generator,
    *,
    past: ClientHistory | None = None,
    newcomers_s: Sequence[float] = (),
) -> Advice:
    """Return advice from speeds, and from rounds where there are any.

    `newcomers_s` are the step times to try one more client at; none: the fleet's fastest and its median.
    """
    if any(not (np.isfinite(step_s) and step_s > 0) for step_s in newcomers_s):
        raise BadSetting(f"one more client: saw steps of {list(newcomers_s)} s, needed finite times above 0")
    known = past or nothing(question.clients)
    choice = choose(question, known, before, rng)
    belief = believe(known, before)
    speeds = known_speeds(question.clients, belief.step_w, before)
    part, kept = thinned(question, belief.step_w, 2 * max(COPIES))
    futures = Futures(*belief.draw(CONFIRMED, rng))
    few = Futures(futures.step_bw[:, list(kept)], futures.dies_bw[:, list(kept)])
    paces = sorted(belief.step_w.tolist())
    tried = tuple(newcomers_s) or tuple(dict.fromkeys((paces[0], paces[len(paces) // 2])))
    with_all_s = _round_s(part, choice, few)
    scale = choice.predicted_s / with_all_s if with_all_s > 0 else 1.0
    plan = question.planned(choice.setting, choice.speeds)
    return Advice(
        choice,
        question.clients,
        plan.placement.loads,
        ORDERS[bool(plan.alone_c.any())],
        _cuts(question, part, choice, few, scale),
        float(uncoded_s(question, speeds, futures).mean()),
        float(fluid_s(question, futures).mean()),
        tuple((step_s, scale * _with(part, choice, few, step_s)) for step_s in tried),
        tuple(_costly(part, choice, few, with_all_s, scale)),
    )


def advise_for(
    question: Question, scenario: Scenario, rng: np.random.Generator, *, newcomers_s: Sequence[float] = ()
) -> Advice:
    """Return advice from recorded or modelled rounds; the question's clients are theirs, `client 0` first."""
    clients = scenario[0].clients
    pieces = max(1, len(question.fleet.chunks) // clients)
    past, links = remember(scenario, pieces=pieces, update_bytes=FLOAT_BYTES * question.fleet.size)
    if past.clients != question.clients:
        raise BadSetting(
            f"a trace of {clients} clients: needed a fleet named {past.clients[0]} to {past.clients[-1]}, "
            f"saw {question.clients[:4]}"
        )
    return advise(question, links, rng, past=past, newcomers_s=newcomers_s)


def _round_s(question: Question, choice: Choice, futures: Futures) -> float:
    setting = choice.setting
    replicas = min(setting.replicas, len(question.clients))
    fits = Setting(replicas, setting.blocks and min(setting.blocks, replicas))
    seconds = replayed_s(
        question, question.planned(fits, choice.speeds), futures, upload_s(question, choice.speeds)
    )
    return float(seconds.mean())


def _cuts(whole: Question, part: Question, choice: Choice, futures: Futures, scale: float) -> tuple[Cut, ...]:
    """Return what a finer cut of the same work would bring."""
    chunks, found = len(whole.fleet.chunks), []
    for times in FINER if whole.free else FINER[:1]:
        if whole.steps % times or (times > 1 and len(part.fleet.chunks) * times > MOST_CHUNKS):
            continue
        finer = replace(part, fleet=cut_finer(part.fleet, times), steps=whole.steps // times)
        found.append(Cut(chunks * times, finer.steps, scale * _round_s(finer, choice, futures)))
    return tuple(found)


def cut_finer(fleet: Fleet, times: int) -> Fleet:
    """Return the fleet with each chunk cut in so many; what each client can load stays the same data."""
    chunks = tuple(
        replace(chunk, number=chunk.number * times + at, name=f"{chunk.name}/{at}")
        for chunk in fleet.chunks
        for at in range(times)
    )
    holds = {
        client: frozenset(number * times + at for number in held for at in range(times))
        for client, held in fleet.holds.items()
    }
    return replace(fleet, holds=holds, chunks=chunks)


def _with(question: Question, choice: Choice, futures: Futures, step_s: float) -> float:
    """Return the round of this fleet and a client that never fails, and whose link is not known."""
    every = frozenset(chunk.number for chunk in question.fleet.chunks)
    fleet = replace(question.fleet, holds={**question.fleet.holds, NEWCOMER: every})
    count = len(futures.step_bw)
    more = Futures(
        np.column_stack([futures.step_bw, np.full(count, step_s)]),
        np.column_stack([futures.dies_bw, np.full(count, np.inf)]),
    )
    speeds = Speeds({**choice.speeds.known, NEWCOMER: Speed(NEWCOMER, step_s)})
    return _round_s(replace(question, fleet=fleet), replace(choice, speeds=speeds), more)


def _costly(
    question: Question, choice: Choice, futures: Futures, with_all_s: float, scale: float
) -> list[tuple[str, float]]:
    """Return the clients without which a round is shorter, those that gain most first."""
    clients = question.clients
    if len(clients) < 2 or not choice.known:  # without history every difference is chance
        return []
    found = []
    for w in _suspects(question, choice):
        others = [at for at in range(len(clients)) if at != w]
        fleet = _without(question.fleet, clients[w])
        if not all(any(c.number in held for held in fleet.holds.values()) for c in fleet.chunks):
            continue  # it alone has some of the data
        left = Futures(futures.step_bw[:, others], futures.dies_bw[:, others])
        without_s = _round_s(replace(question, fleet=fleet), choice, left)
        if without_s < with_all_s * (1.0 - COSTS):
            found.append((clients[w], scale * without_s))
    return sorted(found, key=lambda each: each[1])


def _without(fleet: Fleet, client: str) -> Fleet:
    return replace(fleet, holds={name: held for name, held in fleet.holds.items() if name != client})


def _suspects(question: Question, choice: Choice) -> list[int]:
    """Return the clients that take longest for a chunk and an upload."""
    step_w: Float = np.asarray([choice.speeds.step_s(client, 1.0) for client in question.clients])
    burden_w = step_w * question.steps / step_w.mean() + upload_s(question, choice.speeds)
    worst: list[int] = np.argsort(-burden_w, kind="stable")[:SUSPECTS].tolist()
    return worst
