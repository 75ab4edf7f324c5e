"""Inverse-probability weights for chunks with a single holder that often does not reach them.

The weights are those of Horvitz and Thompson (1952), `codes.inverse_weights`; this module estimates the
probabilities. Weights apply only to rounds that were cut short, so the probability is measured in such
rounds. A client carries on where it stopped, so all of its chunks have the same probability and are counted
together.
"""

from collections.abc import Sequence

from fedgc.codes import completion_probability, inverse_weights
from fedgc.history import RoundRow
from fedgc.round.plan import Plan


def chances(rows: Sequence[RoundRow], plan: Plan) -> tuple[float, ...]:
    """Return for each client the probability that a chunk with no other holder is in a round cut short.

    Rounds without the client are ignored. A client without history has probability 1.
    """
    cut = [(row, {seen.client for seen in row.clients}) for row in rows if row.short]
    found, alone_c = [], plan.alone_c
    for client, held_c in zip(plan.clients, plan.placement.holds, strict=True):
        mine = {plan.chunks[c].number for c in (held_c & alone_c).nonzero()[0].tolist()}
        came = [len(mine - set(row.short)) for row, there in cut if client in there]
        found.append(completion_probability(came, len(mine)) if mine else 1.0)
    return tuple(found)


def chunk_weights(rows: Sequence[RoundRow], plan: Plan) -> tuple[float, ...]:
    """Return the weight of each chunk in a round that is cut short.

    Only chunks with a single holder are weighted; other chunks have replicas. `rows` must be of this run,
    since chunk numbers differ between runs.
    """
    if not plan.alone_c.any():
        return (1.0,) * len(plan.chunks)
    weights = inverse_weights(plan.placement, chances(rows, plan))
    return tuple(
        weight if alone else 1.0 for weight, alone in zip(weights, plan.alone_c.tolist(), strict=True)
    )
