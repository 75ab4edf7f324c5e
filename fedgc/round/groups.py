"""Groups of clients by speed (`aggregation.groups = speed`): a round ends with the updates of any one group.

With clients of very uneven speed, a quorum of all waits for slow clients, or never hears of them. In groups,
clients of about the same speed make a model together, as soon as a quorum of the group has sent its updates.
Each group trains at its own pace: the updates of a slow group count in the round in which they come, with
those that quick clients have sent by then (`fedgc.run.late_updates`).

A model has the updates of `LEAST_SHARE` of all clients at least, else a few clients that are quick, or say
so, would make nearly all models.

The groups follow from how long each client takes for the model, its local steps and its update, as measured.
What was never measured of a client counts as the median of the others. Groups are made anew when a client
takes `fedgc.run.speeds.REPLAN_RATIO` times as long as planned, or the other way round.

Index w is a client, as in the plan.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from fedgc.history import Speeds
from fedgc.round.local.weights import FEWEST

APART: Final = 2.0  # times the round of a group's quickest client: the next group begins
LEAST_SHARE: Final = 1 / 3

Groups = tuple[frozenset[int], ...]


@dataclass(frozen=True, slots=True)
class RoundWork:
    """What a client does in a round: it receives so many bytes, trains so many steps, and sends."""

    model_bytes: int
    steps: int
    update_bytes: int

    def seconds(self, clients: Sequence[str], speeds: Speeds) -> tuple[float, ...]:
        """Return how long each client takes."""
        known = [speeds.known.get(client) for client in clients]
        down_s = _filled(
            [_transfer_s(self.model_bytes, each.down_bytes_s if each else None) for each in known]
        )
        up_s = _filled([_transfer_s(self.update_bytes, each.up_bytes_s if each else None) for each in known])
        step_s = _filled([each.step_s if each else None for each in known])
        return tuple(d + self.steps * s + u for d, s, u in zip(down_s, step_s, up_s, strict=True))


def _transfer_s(size_bytes: int, line: float | None) -> float | None:
    return size_bytes / line if line else None


def _filled(values: Sequence[float | None]) -> Sequence[float]:
    """Return the values, with the median of the known ones for the others."""
    known = [value for value in values if value is not None]
    usual = median(known) if known else 0.0
    return [usual if value is None else value for value in values]


def groups_by_speed(seconds_w: Sequence[float]) -> Groups:
    """Return the clients in groups, the quickest first, from the seconds that each needs for a round.

    Clients that are all alike make no groups, nor do three: no model has fewer.

    >>> groups_by_speed([1.0, 20.0, 1.5, 5.0]) == ({0, 2}, {3}, {1})
    True
    >>> groups_by_speed([1.0, 1.5, 1.0, 1.9]), groups_by_speed([1.0, 9.0, 9.0])
    ((), ())
    """
    groups: list[list[int]] = []
    for w in sorted(range(len(seconds_w)), key=lambda w: seconds_w[w]):
        if not groups or seconds_w[w] >= APART * seconds_w[groups[-1][0]] > 0:
            groups.append([])
        groups[-1].append(w)
    return tuple(map(frozenset, groups)) if len(groups) > 1 and len(seconds_w) > FEWEST else ()


def fewest_of(clients: int) -> int:
    """Return how many clients a model has at least, where there are groups.

    >>> fewest_of(2), fewest_of(8), fewest_of(20)
    (3, 3, 7)
    """
    return max(FEWEST, math.ceil(LEAST_SHARE * clients))


def told_of(groups: Groups) -> str:
    """Return what a plan tells of its groups; nothing without any.

    >>> told_of(({0, 2}, {3}, {1}))
    '; groups by speed, of 2, 1, 1 clients'
    """
    sizes = ", ".join(str(len(group)) for group in groups)
    return f"; groups by speed, of {sizes} clients" if groups else ""
