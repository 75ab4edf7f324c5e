"""Bytes saved by the code and the gate, compared with plain averaging.

Plain averaging (FedAvg; McMahan et al. 2017) sends the model to every client of a round and takes one back.
With M bytes of model and D clients that is 2 D M a round. The compared bytes include control messages and
lost uploads. The difference in skipped rounds is due to the gate. A model that is sent in a skipped round was
made by the exchange before it, so it belongs to the others: their difference is due to the code, which sends
1/blocks of a model and prunes unneeded codewords. Either may be negative.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedgc.store.views import Stretch


@dataclass(frozen=True, slots=True)
class Saved:
    """Bytes of a run, and what plain averaging would have sent for the same rounds and clients."""

    sent: int
    plain: int
    by_code: int
    by_gate: int


def plain_bytes(clients: int, model_bytes: int) -> int:
    """Return the bytes that plain averaging sends with so many clients.

    >>> plain_bytes(4, 1000)
    8000
    """
    return 2 * clients * model_bytes


def saved(stretches: Sequence[Stretch], model_bytes: int | None) -> Saved | None:
    """Return the savings of these rounds; None if the size of the model is unknown."""
    if not model_bytes:
        return None
    clients = sum(each.clients for each in stretches)
    skipped = sum(each.skipped_clients for each in stretches)
    sent = sum(each.bytes for each in stretches)
    sent_in_skips = sum(each.skipped_bytes for each in stretches)
    by_gate = plain_bytes(skipped, model_bytes) - sent_in_skips
    plain = plain_bytes(clients, model_bytes)
    return Saved(sent, plain, by_code=plain - sent - by_gate, by_gate=by_gate)
