"""All policies by name, so that a command line, a bench and a test compare the same things."""

from collections.abc import Iterable
from typing import Final

from fedgc.errors import BadSetting, nearest
from fedgc.sim.bound import FluidBound
from fedgc.sim.coded import BlockCoordinate, FractionalRepetition, FullWorkers, PartialStragglers
from fedgc.sim.ours import CHOSEN, Fedgc, Obeys
from fedgc.sim.policy import Policy
from fedgc.sim.uncoded import DropSlowest, FedBuff, OverSelection, Uncoded, WorkQueue

INT8_WIRE: Final = 0.25  # bytes over float32's
INT4_WIRE: Final = 0.125
PIECES: Final = 10  # small chunks for each client
FINE: Final = 40  # as small as keeps bookkeeping cheap


def original_codes(replicas: int) -> tuple[Policy, ...]:
    """Return the codes that count full clients only, at every load up to `replicas`; load 1 is no code."""
    loads = [load for load in (1, 2, 3, 4, 5, 6, 8, 10) if load <= replicas]
    cyclic: list[Policy] = [FullWorkers(load, earliest=how) for load in loads for how in (True, False)]
    return (*cyclic, *(FractionalRepetition(load) for load in loads))


def rivals(replicas: int) -> tuple[Policy, ...]:
    """Return everything that fedgc is compared with, of `replicas` copies of the data at most."""
    shorter = [FullWorkers(replicas, blocks, earliest=False) for blocks in (2, 4) if blocks < replicas]
    return (
        Uncoded(),
        Uncoded(proportional=True),
        *(WorkQueue(pieces, wire) for pieces in (PIECES, FINE) for wire in (1.0, INT8_WIRE, INT4_WIRE)),
        DropSlowest(),
        OverSelection(),
        FedBuff(),
        *original_codes(replicas),
        *shorter,
        BlockCoordinate(replicas),
        *(PartialStragglers(replicas, blocks) for blocks in (1, 2, 4) if blocks <= replicas),
    )


def usual_rivals(replicas: int) -> tuple[Policy, ...]:
    """Return averaging with all, with the fastest, with over-selection, a work queue, the published code."""
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


def choosing(replicas: int) -> tuple[Policy, ...]:
    """Return fedgc as it is set where nobody says blocks: each round chooses them."""
    return tuple(Fedgc(replicas, pieces, blocks=CHOSEN) for pieces in (1, PIECES))


def bounds() -> tuple[Policy, ...]:
    """Return the fluid bounds."""
    return tuple(FluidBound(blocks) for blocks in (1, 2, 4))


def find(names: Iterable[str], policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """Return the policies whose name begins so; a name that none begins with is refused.

    >>> [policy.name for policy in find(["work queue of 10"], rivals(2))]
    ['work queue of 10', 'work queue of 10, 8 bits', 'work queue of 10, 4 bits']
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
