"""Advice before a run: the choice and its reasons, and the effect of adding or removing a client.

The choice is compared with two figures: the uncoded round (work divided by speed, waiting for all) and the
fluid bound, a lower bound for any plan; both are corrected by past rounds as the prediction is (see `band`).
One more client, and the fleet without one client, are replayed in the same futures as the choice (common
random numbers), so that even small differences are significant.

The number of chunks is fixed in the data before a run begins, so the tuner does not choose it, but the user
can: the same steps in more chunks of fewer steps leave less to wait for at the end of a round. The fixed cost
of a chunk (loading, reporting) is not measured and not included.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedgc.errors import BadSetting
from fedgc.history import Speed, Speeds
from fedgc.round.plan import Fleet
from fedgc.tuner.belief import Belief, believe
from fedgc.tuner.choose import CONFIRMED, COPIES, Choice, certain, choose
from fedgc.tuner.history import ClientHistory, Float, nothing
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
from fedgc.tuner.week import Week, Windows, over_week

SUSPECTS: Final = 3  # clients that are tried without
COSTS: Final = 0.01  # share of the round that leaving a client out must save
NEWCOMER: Final = "one more client"
SLOWEST_S: Final = 1e6  # of a newcomer: 12 days for one step
FINER: Final = (1, 2, 4, 8)  # times as many chunks
MOST_CHUNKS: Final = 400  # that are replayed


@dataclass(frozen=True, slots=True)
class Cut:
    """The same work in this many chunks of this many steps, and the predicted round."""

    chunks: int
    steps: int
    round_s: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The choice, its comparisons, and the effect of another fleet; times are means of rounds."""

    choice: Choice
    clients: tuple[str, ...]
    loads: tuple[int, ...]
    order: str
    cuts: tuple[Cut, ...]  # the present one first; alone if the data cannot be cut
    uncoded_s: float
    fluid_s: float
    one_more: tuple[tuple[float, float], ...]  # seconds of a step of the new client, predicted round
    costs: tuple[tuple[str, float], ...]  # client, predicted round without it; only where that is shorter
    week: Week | None = None  # if clients have hours

    @property
    def over_uncoded(self) -> float:
        """Return the predicted round over the uncoded one."""
        return self.choice.predicted_s / self.uncoded_s

    @property
    def over_fluid(self) -> float:
        """Return the predicted round over the fluid bound."""
        return self.choice.predicted_s / self.fluid_s


ORDERS: Final = {  # by whether a chunk lies with one client only
    False: "a serpentine across the classes of clients, with a new start in every round",
    True: "the only holder of a chunk carries on where it stopped",
}


def advise(
    question: Question,
    before: Speeds,
    rng: np.random.Generator,
    *,
    history: ClientHistory | None = None,
    newcomers_s: Sequence[float] = (),
    windows: Windows | None = None,
) -> Advice:
    """Return advice from speeds, and from past rounds if there are any.

    `newcomers_s` are the step times to try one more client at; by default the fleet's fastest and its median.
    `windows` are the hours of the clients that have some.
    """
    if not all(0 < step_s <= SLOWEST_S for step_s in newcomers_s):
        seen = f"{list(newcomers_s)} s"
        raise BadSetting(f"one more client: saw steps of {seen}, needed above 0 and at most {SLOWEST_S:g} s")
    known = history or nothing(question.clients)
    choice = choose(question, known, before, rng)
    belief = believe(known, before)
    speeds = known_speeds(question.clients, belief.step_w, before)
    part, kept = thinned(question, belief.step_w, speeds, 2 * max(COPIES))
    futures = Futures(*belief.draw(CONFIRMED, rng))
    beside = futures if choice.known else certain(belief)  # as the choice is guessed
    few = Futures(futures.step_bw[:, list(kept)], futures.dies_bw[:, list(kept)])
    paces = sorted(belief.step_w.tolist())
    tried = tuple(newcomers_s) or tuple(dict.fromkeys((paces[0], paces[len(paces) // 2])))
    with_all_s = mean_round_s(part, choice, few)
    scale = choice.predicted_s / with_all_s if with_all_s > 0 else 1.0
    plan = question.planned(choice.setting, choice.speeds)
    return Advice(
        choice,
        question.clients,
        plan.placement.loads,
        ORDERS[bool(plan.alone_c.any())],
        _cuts(question, (belief, speeds), choice, futures),
        choice.correction * float(uncoded_s(question, speeds, beside).mean()),
        choice.correction * float(fluid_s(question, beside).mean()),
        tuple((step_s, scale * _with(part, choice, few, step_s)) for step_s in tried),
        tuple(_costly(part, choice, few, with_all_s, scale)),
        _week(part, choice, few, scale, windows) if windows else None,
    )


def mean_round_s(question: Question, choice: Choice, futures: Futures) -> float:
    """Return the mean seconds of a round with this choice, replayed in these futures."""
    setting = choice.setting
    replicas = min(setting.replicas, len(question.clients))
    fits = Setting(replicas, setting.blocks and min(setting.blocks, replicas))
    seconds = replayed_s(
        question, question.planned(fits, choice.speeds), futures, upload_s(question, choice.speeds)
    )
    return float(seconds.mean())


def _cuts(whole: Question, held: tuple[Belief, Speeds], choice: Choice, futures: Futures) -> tuple[Cut, ...]:
    """Return the predicted rounds of the same work in more chunks; the chunks here are not merged."""
    part, kept = thinned(whole, held[0].step_w, held[1], 2 * max(COPIES), merges=False)
    few = Futures(futures.step_bw[:, list(kept)], futures.dies_bw[:, list(kept)])
    chunks, scale, found = len(whole.fleet.chunks), 0.0, []
    for times in FINER if whole.free else FINER[:1]:
        if whole.steps % times or (times > 1 and len(part.fleet.chunks) * times > MOST_CHUNKS):
            continue
        finer = replace(part, fleet=cut_finer(part.fleet, times), steps=whole.steps // times)
        round_s = mean_round_s(finer, choice, few)
        scale = scale or (choice.predicted_s / round_s if round_s > 0 else 1.0)  # by that of the same chunks
        found.append(Cut(chunks * times, finer.steps, scale * round_s))
    return tuple(found)


def cut_finer(fleet: Fleet, times: int) -> Fleet:
    """Return the fleet with each chunk cut into `times` chunks; each client loads the same data."""
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
    """Return the round of this fleet with one more client that never fails and has no measured link."""
    every = frozenset(chunk.number for chunk in question.fleet.chunks)
    fleet = replace(question.fleet, holds={**question.fleet.holds, NEWCOMER: every})
    count = len(futures.step_bw)
    more = Futures(
        np.column_stack([futures.step_bw, np.full(count, step_s)]),
        np.column_stack([futures.dies_bw, np.full(count, np.inf)]),
    )
    speeds = Speeds({**choice.speeds.known, NEWCOMER: Speed(NEWCOMER, step_s)})
    return mean_round_s(replace(question, fleet=fleet), replace(choice, speeds=speeds), more)


def _costly(
    question: Question, choice: Choice, futures: Futures, with_all_s: float, scale: float
) -> list[tuple[str, float]]:
    """Return the clients without which a round is shorter, the largest gain first."""
    clients = question.clients
    if len(clients) < 2 or not choice.known:  # without history every difference is noise
        return []
    found = []
    for w in _suspects(question, choice):
        others = [at for at in range(len(clients)) if at != w]
        fleet = _without(question.fleet, clients[w])
        if not all(any(c.number in held for held in fleet.holds.values()) for c in fleet.chunks):
            continue  # only this client has some of the data
        left = Futures(futures.step_bw[:, others], futures.dies_bw[:, others])
        without_s = mean_round_s(replace(question, fleet=fleet), choice, left)
        if without_s < with_all_s * (1.0 - COSTS):
            found.append((clients[w], scale * without_s))
    return sorted(found, key=lambda each: each[1])


def _without(fleet: Fleet, client: str) -> Fleet:
    return replace(fleet, holds={name: held for name, held in fleet.holds.items() if name != client})


def _week(question: Question, choice: Choice, futures: Futures, scale: float, windows: Windows) -> Week:
    """Return the week of clients with hours; a round has the data of those that may train."""

    def round_s(present: tuple[int, ...]) -> float:
        here = [question.clients[w] for w in present]
        fleet = replace(question.fleet, holds={client: question.fleet.holds[client] for client in here})
        if not fleet.reachable:
            return float("inf")
        few = Futures(futures.step_bw[:, present], futures.dies_bw[:, present])
        return scale * mean_round_s(replace(question, fleet=fleet), choice, few)

    return over_week(question.clients, windows, round_s)


def _suspects(question: Question, choice: Choice) -> list[int]:
    """Return the clients that take longest for a chunk and an upload."""
    step_w: Float = np.asarray([choice.speeds.step_s(client, 1.0) for client in question.clients])
    burden_w = step_w * question.steps / step_w.mean() + upload_s(question, choice.speeds)
    worst: list[int] = np.argsort(-burden_w, kind="stable")[:SUSPECTS].tolist()
    return worst
