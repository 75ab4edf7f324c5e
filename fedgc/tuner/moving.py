"""The cost of moving chunks to clients that do not have them: seconds, and bytes where chunks travel.

A client's time for a chunk is the bytes of one over the rate at which it has fetched others in this run. The
clients report both. So that a wrong report of one does not decide for all, the bytes are the median of all
clients, and no rate is taken as further from the median than `FURTHEST` times. The first plan of a run needs
no cost, since there is nothing to keep.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import Final

from fedgc.history import Speeds
from fedgc.round.plan import Plan

LOAD_STEPS: Final = 1.0  # assumed time of loading a chunk, in local steps, if too few have fetched any
REPORTERS: Final = 2  # clients that have fetched chunks, until their reports are used
FURTHEST: Final = 10.0  # a rate is at most so many times the median, and at least that part of it


def load_s_of(clients: Sequence[str], speeds: Speeds) -> dict[str, float]:
    """Return the seconds in which each client fetches a chunk; one without a rate has the median rate.

    >>> from fedgc.history import Speed
    >>> rates = {"a": 5e6, "b": 3e6}
    >>> known = {client: Speed(client, 1.0, fetch_bytes_s=rates[client], chunk_bytes=2e6) for client in rates}
    >>> load_s_of(["a", "c"], Speeds(known)), load_s_of(["b", "c"], Speeds({"b": known["b"]}))
    ({'a': 0.4, 'c': 0.5}, {'b': 1.0, 'c': 1.0})
    """
    size, rates = chunk_bytes_of(speeds), {}
    for client, speed in speeds.known.items():
        if speed.fetch_bytes_s:
            rates[client] = speed.fetch_bytes_s
    if size is None or len(rates) < REPORTERS:
        assumed_s = LOAD_STEPS * max((speed.step_s for speed in speeds.known.values()), default=0.0)
        return dict.fromkeys(clients, assumed_s)
    usual = median(rates.values())
    least, most = usual / FURTHEST, usual * FURTHEST
    return {client: size / min(max(rates.get(client, usual), least), most) for client in clients}


def chunk_bytes_of(speeds: Speeds) -> float | None:
    """Return the bytes of one chunk, if enough clients have fetched some: all have about one size."""
    sizes = [speed.chunk_bytes for speed in speeds.known.values() if speed.chunk_bytes]
    return median_low(sizes) if len(sizes) >= REPORTERS else None


@dataclass(frozen=True, slots=True)
class Move:
    """The chunks that a plan gives to clients that had other ones, and what that costs at most."""

    chunks: int
    seconds: float
    size_bytes: float | None  # None: too few clients have fetched chunks

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
