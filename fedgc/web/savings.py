"""What code and gate save, against plain averaging.

Plain averaging (FedAvg; McMahan et al. 2017) sends every client of a round the model and takes one back, in
every round. With M bytes of model and D clients that is 2 D M a round. What was sent is all that crossed the
line, control and lost uploads included. The difference in skipped rounds is the gate's, that in all others
the code's, which sends 1/blocks of a model and prunes what is not needed; either may be negative.
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
    """Return what plain averaging sends when so many clients take part.

    >>> plain_bytes(4, 1000)
    8000
    """
    return 2 * clients * model_bytes


def saved(stretches: Sequence[Stretch], model_bytes: int | None) -> Saved | None:
    """Return the savings of these rounds; None where the size of the model is not known."""
    if not model_bytes:
        return None
    clients = sum(each.clients for each in stretches)
    skipped = sum(each.skipped_clients for each in stretches)
    sent = sum(each.bytes for each in stretches)
    sent_in_skips = sum(each.skipped_bytes for each in stretches)
    by_gate = plain_bytes(skipped, model_bytes) - sent_in_skips
    plain = plain_bytes(clients, model_bytes)
    return Saved(sent, plain, by_code=plain - sent - by_gate, by_gate=by_gate)
