"""Whether enough clients have done their steps, or sent their updates.

A quorum is a share of all clients (`timing.quorum`). With groups by speed (`fedgc.round.groups`) it is that
share of any one group. `able` are the clients that may count, and `counted` those that do.

Index w is a client, as in the plan.
"""

import math
from collections.abc import Iterator, Set

from fedgc.round.plan import Plan


def quorum_of(plan: Plan, able: Set[int]) -> int:
    """Return how many clients a quorum has; with groups, that of the smallest group, at least."""
    parts = (math.ceil(plan.quorum * len(part)) for part in _parts(plan, able))
    return max(min(parts, default=0), min(plan.fewest, len(able)))


def is_quorum(plan: Plan, able: Set[int], counted: Set[int]) -> bool:
    """Whether those that count are a quorum."""
    if len(counted) < max(1, min(plan.fewest, len(able))):
        return False
    return any(len(part & counted) >= math.ceil(plan.quorum * len(part)) for part in _parts(plan, able))


def _parts(plan: Plan, able: Set[int]) -> Iterator[Set[int]]:
    """Yield the clients of each group that may count; without groups, all of them."""
    if not plan.groups:
        yield able
    for group in plan.groups:
        if part := group & able:
            yield part
