"""What a person asks before a run: what would be chosen and why, and what other devices would change.

Beside the choice stand two figures to hold it against: the uncoded round, its work shared out by speed and
everybody waited for, and the fluid bound, which nothing can beat. What one more device would bring, and what
the fleet would take without one that it has, are replayed in the same futures as the choice, so that even a
small difference is the device's and not luck's.

The number of chunks is cut into the data before a run begins, so it is no choice of a run, but it is one of
the person's: the same steps in more chunks of fewer steps each leave less to wait for at the end. What a
chunk costs by itself (to load it, to report it) is nobody's measurement, and is left out.

May import: choose, trial, belief, past.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedgc.errors import BadSetting
from fedgc.history import Speed, Speeds
from fedgc.plan import Fleet
from fedgc.replay import Weather
from fedgc.tuner.belief import believe
from fedgc.tuner.choose import CONFIRMED, COPIES, Choice, choose
from fedgc.tuner.past import FLOAT_BYTES, Float, Past, nothing, remember
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

SUSPECTS: Final = 3  # devices that are tried without
COSTS: Final = 0.01  # of the round, by which it must be faster without a device
NEWCOMER: Final = "one more device"
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
    devices: tuple[str, ...]
    loads: tuple[int, ...]
    order: str
    cuts: tuple[Cut, ...]  # the present one first; it alone where the data lies as it lies
    uncoded_s: float
    fluid_s: float
    one_more: tuple[tuple[float, float], ...]  # seconds of a step of the newcomer, predicted round
    costs: tuple[tuple[str, float], ...]  # device, predicted round without it: shorter than with it

    @property
    def over_uncoded(self) -> float:
        """The predicted round over the uncoded one."""
        return self.choice.predicted_s / self.uncoded_s

    @property
    def over_fluid(self) -> float:
        """The predicted round over the fluid bound."""
        return self.choice.predicted_s / self.fluid_s


ORDERS: Final = {  # by whether a chunk lies with one device only
    False: "a serpentine across the classes of devices, begun elsewhere in every round",
    True: "each device that is alone with a chunk carries on where it stopped",
}


def advise(
    question: Question,
    before: Speeds,
    rng: np.random.Generator,
    *,
    past: Past | None = None,
    newcomers_s: Sequence[float] = (),
) -> Advice:
    """Return advice from speeds, and from rounds where there are any.

    `newcomers_s` are the step times to try one more device at; none: the fleet's fastest and its median.
    """
    if any(not (np.isfinite(step_s) and step_s > 0) for step_s in newcomers_s):
        raise BadSetting(f"one more device: saw steps of {list(newcomers_s)} s, needed finite times above 0")
    known = past or nothing(question.devices)
    choice = choose(question, known, before, rng)
    belief = believe(known, before)
    speeds = known_speeds(question.devices, belief.step_w, before)
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
        question.devices,
        plan.placement.loads,
        ORDERS[bool(plan.alone_c.any())],
        _cuts(question, part, choice, few, scale),
        float(uncoded_s(question, speeds, futures).mean()),
        float(fluid_s(question, futures).mean()),
        tuple((step_s, scale * _with(part, choice, few, step_s)) for step_s in tried),
        tuple(_costly(part, choice, few, with_all_s, scale)),
    )


def advise_for(
    question: Question, weather: Weather, rng: np.random.Generator, *, newcomers_s: Sequence[float] = ()
) -> Advice:
    """Return advice from recorded or modelled rounds; the question's devices are theirs, `device 0` first."""
    devices = weather[0].devices
    pieces = max(1, len(question.fleet.chunks) // devices)
    past, links = remember(weather, pieces=pieces, update_bytes=FLOAT_BYTES * question.fleet.size)
    if past.devices != question.devices:
        raise BadSetting(
            f"a trace of {devices} devices: needed a fleet named {past.devices[0]} to {past.devices[-1]}, "
            f"saw {question.devices[:4]}"
        )
    return advise(question, links, rng, past=past, newcomers_s=newcomers_s)


def _round_s(question: Question, choice: Choice, futures: Futures) -> float:
    setting = choice.setting
    copies = min(setting.replicas, len(question.devices))
    fits = Setting(copies, setting.blocks and min(setting.blocks, copies))
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
    """Return the fleet with each chunk cut in so many; what each device can load stays the same data."""
    chunks = tuple(
        replace(chunk, number=chunk.number * times + at, name=f"{chunk.name}/{at}")
        for chunk in fleet.chunks
        for at in range(times)
    )
    holds = {
        device: frozenset(number * times + at for number in held for at in range(times))
        for device, held in fleet.holds.items()
    }
    return replace(fleet, holds=holds, chunks=chunks)


def _with(question: Question, choice: Choice, futures: Futures, step_s: float) -> float:
    """Return the round of this fleet and a device that never fails, and whose link is not known."""
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
    """Return the devices without which a round is shorter, those that gain most first."""
    devices = question.devices
    if len(devices) < 2 or not choice.known:  # without history every difference is chance
        return []
    found = []
    for w in _suspects(question, choice):
        others = [at for at in range(len(devices)) if at != w]
        fleet = _without(question.fleet, devices[w])
        if not all(any(c.number in held for held in fleet.holds.values()) for c in fleet.chunks):
            continue  # it alone has some of the data
        left = Futures(futures.step_bw[:, others], futures.dies_bw[:, others])
        without_s = _round_s(replace(question, fleet=fleet), choice, left)
        if without_s < with_all_s * (1.0 - COSTS):
            found.append((devices[w], scale * without_s))
    return sorted(found, key=lambda each: each[1])


def _without(fleet: Fleet, device: str) -> Fleet:
    return replace(fleet, holds={name: held for name, held in fleet.holds.items() if name != device})


def _suspects(question: Question, choice: Choice) -> list[int]:
    """Return the devices that take longest for a chunk and an upload."""
    step_w: Float = np.asarray([choice.speeds.step_s(device, 1.0) for device in question.devices])
    burden_w = step_w * question.steps / step_w.mean() + upload_s(question, choice.speeds)
    worst: list[int] = np.argsort(-burden_w, kind="stable")[:SUSPECTS].tolist()
    return worst
