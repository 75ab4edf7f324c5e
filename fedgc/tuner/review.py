"""Review between rounds: decide whether the present choice still holds, and replace it if not.

A choice is reviewed if it was made without history and there is some now, or without the speeds of clients
that are measured now; if as many rounds are over since as it was made from; if two consecutive rounds were
clearly outside the band of its first round, on the same side; or if clients' speeds have changed since the
loads were set. A review does not imply a change: the present plan is a candidate too, and has no moving cost.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from fedgc.history import WINDOW, Speeds
from fedgc.tuner.belief import LEAST_ROUNDS, believe
from fedgc.tuner.choose import Choice, choose
from fedgc.tuner.history import ClientHistory, robust
from fedgc.tuner.trial import Question

OUT: Final = 2  # consecutive rounds outside the band
CLEARLY: Final = 1.15  # times beyond the limit: one round in five is outside by chance
MOVED: Final = 1.25  # times the step time that loads were set for
MOVED_SHARE: Final = 0.05  # of the clients


def due(present: Choice, history: ClientHistory, before: Speeds, measured_s: Sequence[float]) -> str:
    """Return the reason for a review, or ""; `measured_s` are the rounds since the choice.

    >>> from fedgc.tuner.trial import Setting
    >>> from fedgc.tuner.history import nothing
    >>> from fedgc.tuner.band import Band
    >>> made = Choice(Setting(1, 1), Speeds(), None, Band(2, 1, 3), trusted=False, known=True, reason="")
    >>> due(made, nothing([]), Speeds(), [5.0, 2.0]), due(made, nothing([]), Speeds(), [5.0, 4.0])
    ('', '2 rounds took longer than 3.45 s')
    >>> due(made, nothing([]), Speeds(), [2.0, 2.0, 2.0])
    '3 rounds are over since it was made from 0'
    """
    if not present.known:
        return _measured(present, history, before)
    if len(measured_s) >= max(LEAST_ROUNDS, min(present.rounds, WINDOW)):
        return f"{len(measured_s)} rounds are over since it was made from {present.rounds}"
    last, low_s, high_s = measured_s[-OUT:], present.band.low_s / CLEARLY, present.band.high_s * CLEARLY
    if len(last) == OUT and min(last) > high_s:
        return f"{OUT} rounds took longer than {high_s:.3g} s"
    if len(last) == OUT and max(last) < low_s:
        return f"{OUT} rounds took less than {low_s:.3g} s"
    return _other_clients(present, history, before) if len(measured_s) >= OUT else ""


def _measured(present: Choice, history: ClientHistory, before: Speeds) -> str:
    """Return what is known now of the clients of a choice without history."""
    if history.rounds >= LEAST_ROUNDS and len(history.clients) > 1:
        return "there is history now"
    clients, known, now = set(history.clients), present.speeds.known, robust(history, before).known
    if not clients <= known.keys():
        return "all clients are measured now" if clients <= now.keys() else ""
    for client in clients if len(clients) == 1 else ():
        if abs(math.log(now[client].step_s / known[client].step_s)) > math.log(MOVED):
            return f"{client} changed to {now[client].step_s:.3g} s a step"
    return ""


def _other_clients(present: Choice, history: ClientHistory, before: Speeds) -> str:
    """Return the clients whose speed has changed since the loads were set."""
    belief = believe(history, before)
    if belief.trusted != present.trusted:
        return "history helps now" if belief.trusted else "history no longer helps"
    if not belief.trusted or not set(history.clients) <= set(present.speeds.known):
        return ""
    planned_w = np.asarray([present.speeds.known[client].step_s for client in history.clients])
    moved = np.flatnonzero(np.abs(np.log(belief.step_w / planned_w)) > np.log(MOVED))
    if len(moved) <= MOVED_SHARE * len(history.clients):
        return ""
    first = int(moved[0])
    return f"{len(moved)} clients changed, as {history.clients[first]} to {belief.step_w[first]:.3g} s a step"


def review(
    present: Choice | None,
    question: Question,
    history: ClientHistory,
    before: Speeds,
    *,
    measured_s: Sequence[float],
    rng: np.random.Generator,
) -> Choice:
    """Return the choice for the next round: the present object if no review is due."""
    if present is not None and not due(present, history, before, measured_s):
        return present
    return choose(question, history, before, rng, present)
