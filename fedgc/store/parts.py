"""The client rows of a whole run, in parts of whole rounds: those of a large fleet do not fit in memory."""

from collections.abc import Iterator, Sequence
from typing import Final

from fedgc.history import ClientRow
from fedgc.store.database import Store
from fedgc.store.views import Round

PART: Final = 50_000  # client rows held at a time


def client_parts(
    store: Store, run: str, rounds: Sequence[Round]
) -> Iterator[tuple[tuple[int, ClientRow], ...]]:
    """Yield (round, row) of every client in these consecutive rounds, part by part.

    Rounds whose client rows were folded have none.
    """
    for first, last in spans(rounds):
        yield store.client_rounds(run, first, last)


def spans(rounds: Sequence[Round]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of consecutive rounds whose client rows fit in one part."""
    part: list[int] = []
    held = 0
    for each in rounds:
        if part and held + each.clients > PART:
            yield part[0], part[-1]
            part, held = [], 0
        part.append(each.row.round)
        held += each.clients
    if part:
        yield part[0], part[-1]
