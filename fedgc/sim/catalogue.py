"""The policies of `fedgc sim` by name: the usual baselines, and fedgc itself."""

from collections.abc import Iterable
from typing import Final

from fedgc.errors import BadSetting, nearest
from fedgc.sim.baselines import DropSlowest, OverSelection, PartialStragglers, Uncoded, WorkQueue
from fedgc.sim.ours import Fedgc, Obeys
from fedgc.sim.policy import Policy

PIECES: Final = 10  # chunks per client
FINE: Final = 40  # small chunks per client, limited by bookkeeping


def baselines(replicas: int) -> tuple[Policy, ...]:
    """Return averaging with all or the fastest clients, over-selection, a work queue, the published code."""
    return (
        Uncoded(), DropSlowest(), OverSelection(), WorkQueue(PIECES), PartialStragglers(replicas, 1)
    )  # fmt: skip


def ours(replicas: int, blocks: int) -> tuple[Policy, ...]:
    """Return fedgc's policies: static, skip, steer; smaller chunks, short numbers; no code at blocks 1."""
    coded: list[Policy] = [Fedgc(replicas, 1, blocks, obeys) for obeys in Obeys]
    coded += [Fedgc(replicas, PIECES, blocks), Fedgc(replicas, PIECES, blocks, short=True)]
    if blocks > 1:
        return tuple(coded)
    fine = [Fedgc(wanted, FINE, short=short) for wanted in (replicas, 1) for short in (False, True)]
    return (*coded, *fine, Fedgc(1, 1))


def find(names: Iterable[str], policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """Return the policies whose names start with these; raise BadSetting for an unknown name.

    >>> [policy.name for policy in find(["work queue of 10"], baselines(2))]
    ['work queue of 10']
    """
    every = tuple(policies)
    chosen: list[Policy] = []
    for name in names:
        found = [policy for policy in every if policy.name.startswith(name)]
        if not found:
            kinds = dict.fromkeys(policy.name.split(",")[0] for policy in every)
            hint = nearest(name, [policy.name for policy in every], kinds)
            raise BadSetting(f"policy {name!r}: unknown{hint}")
        chosen += [policy for policy in found if policy not in chosen]
    return tuple(chosen)
