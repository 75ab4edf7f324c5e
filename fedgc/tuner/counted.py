"""What a chunk must count where its only holder often does not come to it.

The weights are those of Horvitz and Thompson (1952), `codes.inverse_weights`; what belongs here is where the
chances come from. Only rounds that were cut short are weighed, for a whole one needs no weights, so the
chance that counts is that in rounds which were cut short. A client carries on where it stopped, so over such
rounds each of its chunks has the same chance, and they are counted together.
"""

from collections.abc import Sequence

from fedgc.codes import completion_probability, inverse_weights
from fedgc.history import RoundRow
from fedgc.round.plan import Plan


def chances(rows: Sequence[RoundRow], plan: Plan) -> tuple[float, ...]:
    """Return for each client the chance that a chunk it is alone with is in the sum of a round cut short.

    A round in which a client was absent says nothing of it. One without any history is taken at its word.
    """
    cut = [(row, {seen.client for seen in row.clients}) for row in rows if row.short]
    found, alone_c = [], plan.alone_c
    for client, held_c in zip(plan.clients, plan.placement.holds, strict=True):
        mine = {plan.chunks[c].number for c in (held_c & alone_c).nonzero()[0].tolist()}
        came = [len(mine - set(row.short)) for row, there in cut if client in there]
        found.append(completion_probability(came, len(mine)) if mine else 1.0)
    return tuple(found)


def chunk_weights(rows: Sequence[RoundRow], plan: Plan) -> tuple[float, ...]:
    """Return what each chunk must count in a round cut short, so that no lone slow client is left out.

    Only chunks that lie with one client are weighed: of others a second holder does what the first does not.
    `rows` are of this run: chunks have other numbers in another.
    """
    if not plan.alone_c.any():
        return (1.0,) * len(plan.chunks)
    weights = inverse_weights(plan.placement, chances(rows, plan))
    return tuple(
        weight if alone else 1.0 for weight, alone in zip(weights, plan.alone_c.tolist(), strict=True)
    )
