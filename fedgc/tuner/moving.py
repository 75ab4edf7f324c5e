"""The cost of moving chunks to clients that do not have them: seconds, and bytes where chunks travel.

A client's time for a chunk is the bytes of one over the rate at which it has fetched others in this run. The
first plan of a run needs no cost, since there is nothing to keep.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from fedgc.history import Speeds
from fedgc.round.plan import Plan

LOAD_STEPS: Final = 1.0  # assumed time of loading a chunk, in local steps, if no client has fetched one


def load_s_of(clients: Sequence[str], speeds: Speeds) -> dict[str, float]:
    """Return the seconds in which each client fetches a chunk; one without a rate has the median rate.

    >>> from fedgc.history import Speed
    >>> known = {"a": Speed("a", 1.0, fetch_bytes_s=5e6, chunk_bytes=2e6), "b": Speed("b", 3.0)}
    >>> load_s_of(["a", "b"], Speeds(known)), load_s_of(["b"], Speeds({"b": known["b"]}))
    ({'a': 0.4, 'b': 0.4}, {'b': 3.0})
    """
    size, rates = chunk_bytes_of(speeds), {}
    for client, speed in speeds.known.items():
        if speed.fetch_bytes_s:
            rates[client] = speed.fetch_bytes_s
    if size is None or not rates:
        assumed_s = LOAD_STEPS * max((speed.step_s for speed in speeds.known.values()), default=0.0)
        return dict.fromkeys(clients, assumed_s)
    return {client: size / rates.get(client, median(rates.values())) for client in clients}


def chunk_bytes_of(speeds: Speeds) -> float | None:
    """Return the bytes of one chunk, if clients have fetched some: all have about one size."""
    sizes = [speed.chunk_bytes for speed in speeds.known.values() if speed.chunk_bytes]
    return median(sizes) if sizes else None


@dataclass(frozen=True, slots=True)
class Move:
    """The chunks that a plan gives to clients that had other ones, and what that costs at most."""

    chunks: int
    seconds: float
    size_bytes: float | None  # None: no client has fetched a chunk

    @property
    def words(self) -> str:
        """Return the move as text.

        >>> Move(5, 0.4, 2_100_000).words, Move(1, 0.4, None).words
        ('moves 5 chunks, 2.1 MB in 0.4 s', 'moves 1 chunk')
        """
        chunks = f"moves {self.chunks} chunk{'s' if self.chunks != 1 else ''}"
        return (
            chunks
            if self.size_bytes is None
            else f"{chunks}, {self.size_bytes / 1e6:.3g} MB in {self.seconds:.3g} s"
        )


def move_to(plan: Plan, present: Plan, speeds: Speeds) -> Move:
    """Return what changes from the present plan to another one; clients fetch at the same time."""
    before = present.shares
    moved = {client: len(set(held) - set(before.get(client, ()))) for client, held in plan.shares.items()}
    load_s, size = load_s_of(plan.clients, speeds), chunk_bytes_of(speeds)
    chunks, seconds = sum(moved.values()), max(load_s[client] * count for client, count in moved.items())
    return Move(chunks, seconds, None if size is None else chunks * size)
