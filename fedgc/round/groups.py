"""Groups of clients by speed (`aggregation.groups = speed`): a round ends with the updates of any one group.

With clients of very uneven speed, a quorum of all waits for slow clients, or never hears of them. In groups,
clients of about the same speed make a model together, as soon as a quorum of the group has sent its updates.
Each group trains at its own pace: the updates of a slow group count in the round in which they come, with
those that quick clients have sent by then (`fedgc.run.late_updates`).

The groups follow from how long each client takes for the model, its local steps and its update, by the speed
history. A client that was never measured counts as the median one. The groups are made anew with each plan.

Index w is a client, as in the plan.
"""

from collections.abc import Sequence
from typing import Final

from fedgc.history import Speeds

APART: Final = 2.0  # times the round of a group's quickest client: the next group begins

Groups = tuple[frozenset[int], ...]


def groups_by_speed(seconds_w: Sequence[float]) -> Groups:
    """Return the clients in groups, the quickest first, from the seconds that each needs for a round.

    Clients that are all alike make no groups.

    >>> groups_by_speed([1.0, 20.0, 1.5, 5.0]) == ({0, 2}, {3}, {1})
    True
    >>> groups_by_speed([1.0, 1.5])
    ()
    """
    groups: list[list[int]] = []
    for w in sorted(range(len(seconds_w)), key=lambda w: seconds_w[w]):
        if not groups or seconds_w[w] >= APART * seconds_w[groups[-1][0]]:
            groups.append([])
        groups[-1].append(w)
    return tuple(map(frozenset, groups)) if len(groups) > 1 else ()


def groups_of(clients: Sequence[str], speeds: Speeds, work_s: Sequence[float], model_bytes: int) -> Groups:
    """Return the groups of clients that need these seconds for their steps and their update."""
    known = (speeds.known.get(client) for client in clients)
    lines = (speed.down_bytes_s if speed else None for speed in known)
    down_s = (model_bytes / line if line else 0.0 for line in lines)
    return groups_by_speed([down + work for down, work in zip(down_s, work_s, strict=True)])


def told_of(groups: Groups) -> str:
    """Return what a plan tells of its groups; nothing without any.

    >>> told_of(({0, 2}, {3}, {1}))
    '; groups by speed, of 2, 1, 1 clients'
    """
    sizes = ", ".join(str(len(group)) for group in groups)
    return f"; groups by speed, of {sizes} clients" if groups else ""
