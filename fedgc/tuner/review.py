"""Between rounds: whether the present choice still holds, and what takes its place where it does not.

A choice comes up again when it was made blind and there is history now, when there is twice the history that
it was made from, when two rounds running fell out of the predicted band on the same side, or when clients are
believed to be other than the loads were made for.
That it comes up does not mean that it goes: the present plan is a candidate like any other, and has the
advantage that nothing need be moved.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from fedgc.history import Speeds
from fedgc.tuner.belief import LEAST_ROUNDS, believe
from fedgc.tuner.choose import Choice, choose
from fedgc.tuner.past import ClientHistory
from fedgc.tuner.trial import Question

OUT: Final = 2  # rounds running out of the band
MOVED: Final = 1.25  # times the step time that loads were made for
MOVED_SHARE: Final = 0.05  # of the clients


def due(present: Choice, past: ClientHistory, before: Speeds, measured_s: Sequence[float]) -> str:
    """Return why the choice should be made again, or nothing; `measured_s` are the rounds since it was made.

    >>> from fedgc.tuner.trial import Setting
    >>> from fedgc.tuner.past import nothing
    >>> made = Choice(Setting(1, 1), Speeds(), None, 2.0, 1.0, 3.0, trusted=False, known=True, reason="")
    >>> due(made, nothing([]), Speeds(), [5.0, 2.0]), due(made, nothing([]), Speeds(), [2.0, 5.0, 4.0])
    ('', '2 rounds took longer than 3 s')
    """
    if not present.known:
        return "there is history now" if past.rounds >= LEAST_ROUNDS and len(past.clients) > 1 else ""
    if past.rounds >= 2 * max(present.rounds, 1) and len(measured_s) >= LEAST_ROUNDS:
        return f"there are {past.rounds} rounds of history now, {present.rounds} when it was made"
    last = measured_s[-OUT:]
    if len(last) == OUT and min(last) > present.high_s:
        return f"{OUT} rounds took longer than {present.high_s:.3g} s"
    if len(last) == OUT and max(last) < present.low_s:
        return f"{OUT} rounds took less than {present.low_s:.3g} s"
    return _other_clients(present, past, before) if len(measured_s) >= OUT else ""


def _other_clients(present: Choice, past: ClientHistory, before: Speeds) -> str:
    """Return which clients are no longer what the loads were made for."""
    belief = believe(past, before)
    if belief.trusted != present.trusted:
        return "history helps now" if belief.trusted else "history no longer helps"
    if not belief.trusted or not set(past.clients) <= set(present.speeds.known):
        return ""
    planned_w = np.asarray([present.speeds.known[client].step_s for client in past.clients])
    moved = np.flatnonzero(np.abs(np.log(belief.step_w / planned_w)) > np.log(MOVED))
    if len(moved) <= MOVED_SHARE * len(past.clients):
        return ""
    first = int(moved[0])
    return f"{len(moved)} clients changed, as {past.clients[first]} to {belief.step_w[first]:.3g} s a step"


def review(
    present: Choice | None,
    question: Question,
    past: ClientHistory,
    before: Speeds,
    *,
    measured_s: Sequence[float],
    rng: np.random.Generator,
) -> Choice:
    """Return the choice for the next round: the present one itself where nothing speaks against it."""
    if present is not None and not due(present, past, before, measured_s):
        return present
    found = choose(question, past, before, rng, present)
    if present is None or found.speeds is not present.speeds or found.setting != present.setting:
        return found
    seen_s = measured_s[-OUT:]  # under the very plan that stays: its band must hold what was seen
    return (
        replace(found, low_s=min(found.low_s, *seen_s), high_s=max(found.high_s, *seen_s))
        if seen_s
        else found
    )
