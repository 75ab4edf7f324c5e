"""Rounds of local work before a run: the quorum, and whether late updates should count in later rounds.

Ways to train are compared by the time in which a client gives as much as its whole steps from a new model. It
is the root mean square over clients, as the data of the slowest ones are learned last. The first steps of a
client give most: `s` of `S` steps give (s / S) ** `EXPONENT`. A round ends when the quorum is done. Each
client then ends the step that it is in, and gives what it has. The next round begins when the slowest update
is in.
A quorum with which some client never does a step is not chosen. If late updates count
(`fedgc.run.late_updates`), a round ends with the updates of a quorum, at least of `FEWEST` clients and half
of all. The others train for as long as their model and update travel, up to the whole steps, and their
updates are of older models: they give `STALE` of what new ones give. With groups by speed
(`fedgc.round.groups`), it ends with the updates of a quorum of the quickest group, and of a third of all
clients. The constants were fitted to scenes of `python -m benchmarks groups`, which measures the choice.

Shape letters: w clients.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedgc.errors import BadSetting
from fedgc.round.groups import fewest_of, groups_by_speed
from fedgc.round.local.weights import FEWEST
from fedgc.round.plan import QUORUM
from fedgc.sim.clock.conditions import Float
from fedgc.sim.clock.server_link import Line, arrivals_s

STALE: Final = 0.8
EXPONENT: Final = 0.75
CLEARLY: Final = 0.9
LEAST_QUORUM: Final = 0.25  # so that no single quick client sets the pace of many
LEAST_LATE_QUORUM: Final = 0.5
ROUNDING: Final = 1e-9
DIGITS: Final = 1e4  # of a quorum, rounded down: its product with the clients then rounds up to their number


@dataclass(frozen=True, slots=True)
class LocalClients:
    """What is known of clients: seconds of a local step, of a model down and of an update up.

    With `slots` only that many send at a time; late ones have as many of their own.
    """

    step_s_w: Float
    down_s_w: Float
    up_s_w: Float
    slots: int | None = None

    def __post_init__(self) -> None:
        shapes = {self.step_s_w.shape, self.down_s_w.shape, self.up_s_w.shape}
        if len(shapes) != 1 or not self.step_s_w.size:
            raise BadSetting(f"clients of local work: saw times of {shapes}, needed one of each client")

    def arrivals_s(self, ready_s_w: Float) -> Float:
        """Return when the updates of clients that begin to send at these times are here."""
        return arrivals_s(ready_s_w, 1.0, self.up_s_w, Line(slots=self.slots))


@dataclass(frozen=True, slots=True)
class LocalRounds:
    """Rounds that end with a quorum.

    `update_s` is the root mean square, over clients, of the time for a whole update of a client.
    """

    quorum: float
    round_s: float
    update_s: float


@dataclass(frozen=True, slots=True)
class LocalChoice:
    """The quickest rounds that wait for updates, those that wait for all, and those with late updates.

    Of rounds with late updates that are about as quick, it has the shortest: more models in the same time.
    `grouped` are those with the default quorum of groups by speed, of `groups`: so many clients each.
    """

    rounds: LocalRounds
    waiting: LocalRounds
    late: LocalRounds
    grouped: LocalRounds
    groups: tuple[int, ...]

    @property
    def chosen(self) -> LocalRounds:
        """Return the quickest rounds."""
        return self.late if self.way == "late" else self.rounds

    @property
    def way(self) -> str:
        """Return which way is quickest: sync, partial or late."""
        if self.late.update_s <= CLEARLY * self.rounds.update_s:
            return "late"
        return self.way_to_wait

    @property
    def way_to_wait(self) -> str:
        """Return the quickest way of those in which no update counts late."""
        return "partial" if self.rounds.quorum < 1.0 else "sync"


def choose_rounds(clients: LocalClients, steps: int) -> LocalChoice:
    """Return the choice for rounds of this many local steps.

    >>> slow = LocalClients(np.array([1.0, 1.0, 1.0, 4.0]), np.zeros(4), np.zeros(4))
    >>> choice = choose_rounds(slow, 16)
    >>> choice.way, choice.rounds.quorum, choice.rounds.round_s, choice.waiting.round_s
    ('partial', 0.75, 16.0, 64.0)
    """
    count = len(clients.step_s_w)
    least, least_late = (math.ceil(share * count) for share in (LEAST_QUORUM, LEAST_LATE_QUORUM))
    tried = [_rounds(clients, steps, done) for done in range(least, count + 1)]
    fewest = max(least_late, min(FEWEST, count))
    late = [_late_rounds(clients, steps, done) for done in range(fewest, count + 1)]
    quickest, best_s = _quickest(tried), min(each.update_s for each in late)
    most_s, clear_s = best_s / CLEARLY, CLEARLY * quickest.update_s
    if best_s <= clear_s:
        most_s = min(most_s, clear_s)
    shortest = next(each for each in late if each.update_s <= most_s)
    seconds_w = clients.down_s_w + steps * clients.step_s_w + clients.up_s_w
    groups = tuple(map(len, groups_by_speed(seconds_w.tolist()))) or (count,)
    of_group = max(math.ceil(QUORUM * groups[0]), min(fewest_of(count), count))
    grouped = replace(_late_rounds(clients, steps, of_group), quorum=QUORUM)
    return LocalChoice(quickest, tried[-1], shortest, grouped, groups)


def _quickest(tried: Sequence[LocalRounds]) -> LocalRounds:
    return min(reversed(tried), key=lambda each: each.update_s)  # of equals, that with the most clients


def _rounds(clients: LocalClients, steps: int, done: int) -> LocalRounds:
    """Return the rounds that end when so many clients are done."""
    count = len(clients.step_s_w)
    end_s = float(np.sort(clients.down_s_w + steps * clients.step_s_w)[done - 1])
    steps_w = _steps_in(np.maximum(0.0, end_s - clients.down_s_w), clients.step_s_w, steps)
    stopped_s_w = np.maximum(end_s, clients.down_s_w + steps_w * clients.step_s_w)
    round_s = float(clients.arrivals_s(stopped_s_w).max())
    update_s = _update_s(np.full(count, round_s), _worth(steps_w, steps))
    return LocalRounds(_quorum(done, count), round_s, update_s)


def _late_rounds(clients: LocalClients, steps: int, done: int) -> LocalRounds:
    """Return the rounds that end with the updates of so many clients; those of others count later."""
    train_s_w, travel_s_w = steps * clients.step_s_w, clients.down_s_w + clients.up_s_w
    end_s = float(np.sort(clients.arrivals_s(clients.down_s_w + train_s_w))[done - 1])
    steps_w = _steps_in(np.maximum(travel_s_w, end_s - travel_s_w), clients.step_s_w, steps)
    cycle_s_w = np.maximum(end_s, travel_s_w + steps_w * clients.step_s_w)
    stale_w = np.where(cycle_s_w > end_s * (1 + ROUNDING), STALE, 1.0)
    update_s = _update_s(cycle_s_w, stale_w * _worth(steps_w, steps))
    return LocalRounds(_quorum(done, len(train_s_w)), end_s, update_s)


def _worth(steps_w: Float, steps: int) -> Float:
    """Return what these steps of each client give, as a share of what all give."""
    worth_w: Float = (steps_w / steps) ** EXPONENT
    return worth_w


def _update_s(cycle_s_w: Float, worth_w: Float) -> float:
    """Return the time for a whole update of clients that give so much in each cycle."""
    with np.errstate(divide="ignore"):
        return float(np.sqrt(np.square(cycle_s_w / worth_w).mean()))


def _steps_in(seconds_w: Float, step_s_w: Float, most: int) -> Float:
    """Return the steps of clients that stop at the end of the step in which they are after this time."""
    return np.minimum(most, np.ceil(np.maximum(0.0, seconds_w / step_s_w - ROUNDING)))


def _quorum(done: int, count: int) -> float:
    return math.floor(DIGITS * done / count) / DIGITS
