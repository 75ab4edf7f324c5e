"""Placement: the chunks of each client, their order, and each client's column of the code.

Only the holders of the same chunk meet in one system of equations, so two clients need different columns
only if they share a chunk. Clients that share none form a class and use one column: a placement with
`replicas` classes needs a frame of `replicas` columns, and its conditioning does not depend on the number
of clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np

from fedgc.codes.arrays import Bool, Int
from fedgc.errors import BadPlacement


@dataclass(frozen=True, slots=True)
class Holders:
    """The holders of each chunk in three forms; s indexes the pairs of client and chunk, chunk by chunk."""

    holds: Bool  # clients x chunks
    client_s: Int
    chunk_s: Int
    of_chunk: tuple[tuple[int, ...], ...]  # the clients of each chunk, in their order

    @classmethod
    def of(cls, holds: Bool) -> "Holders":
        """Return the holders from the matrix.

        >>> Holders.of(np.array([[True, False], [True, True]])).of_chunk
        ((0, 1), (1,))
        """
        client_s, chunk_s = np.nonzero(holds)
        by_chunk = np.argsort(chunk_s, kind="stable")
        client_s, chunk_s = client_s[by_chunk], chunk_s[by_chunk]
        ends = np.cumsum(np.bincount(chunk_s, minlength=holds.shape[1])).tolist()
        clients_w = client_s.tolist()
        for array in (client_s, chunk_s):
            array.flags.writeable = False
        of_chunk = tuple(tuple(clients_w[begin:end]) for begin, end in pairwise([0, *ends]))
        return cls(holds, client_s, chunk_s, of_chunk)


@dataclass(frozen=True, slots=True)
class Placement:
    """Chunks in order of work for each client, and the class of each client.

    No two clients of a class hold the same chunk. `phases` is the position of each chunk on the serpentine
    (see `order`); `holder_cn` is the client of each chunk in each class, or -1.

    >>> both = Placement(2, ((0, 1), (1, 0)), (0, 1), (0.25, 0.75))
    >>> both.replicas, both.columns, both.holds.tolist()
    (2, 2, [[True, True], [True, True]])
    """

    chunks: int
    orders: tuple[tuple[int, ...], ...]
    classes: tuple[int, ...]
    phases: tuple[float, ...]
    columns: int = field(init=False)
    replicas: int = field(init=False)  # of the chunk with the fewest
    replicas_n: Int = field(init=False, repr=False, compare=False)
    holder_cn: Int = field(init=False, repr=False, compare=False)
    flat_cn: Int = field(
        init=False, repr=False, compare=False
    )  # flat index of holder and chunk in a w x n array
    _holders: list[Holders] = field(init=False, repr=False, compare=False)  # once they are asked for

    def __post_init__(self) -> None:
        _check_shape(self.chunks, self.orders, self.classes, self.phases)
        chunk_s = np.fromiter(chain.from_iterable(self.orders), np.int64)
        if chunk_s.size and not 0 <= chunk_s.min() <= chunk_s.max() < self.chunks:
            seen = int(chunk_s.min()) if chunk_s.min() < 0 else int(chunk_s.max())
            raise BadPlacement(f"chunk {seen} is held, but chunks are numbered 0 to {self.chunks - 1}")
        client_s = np.repeat(np.arange(len(self.orders)), [len(order) for order in self.orders])
        class_s = np.asarray(self.classes, np.int64)[client_s]
        columns = max(self.classes) + 1
        _check_disjoint(class_s * self.chunks + chunk_s, self.chunks)
        copies_n = np.bincount(chunk_s, minlength=self.chunks)
        if not copies_n.all():
            orphans = np.flatnonzero(copies_n == 0)
            raise BadPlacement(f"chunks {_few(orphans)} have no holder: each needs at least one")
        holder_cn = np.full((columns, self.chunks), -1, np.int64)
        holder_cn[class_s, chunk_s] = client_s
        flat_cn = np.where(holder_cn >= 0, holder_cn * self.chunks + np.arange(self.chunks), -1)
        for array in (holder_cn, copies_n, flat_cn):
            array.flags.writeable = False
        for name, value in (
            ("columns", columns),
            ("replicas", int(copies_n.min())),
            ("replicas_n", copies_n),
            ("_holders", []),
            ("holder_cn", holder_cn),
            ("flat_cn", flat_cn),
        ):
            object.__setattr__(self, name, value)

    @property
    def holds(self) -> Bool:
        """Return which client holds which chunk (clients x chunks); thousands of clients need it not."""
        return self.holders.holds

    @property
    def holders(self) -> Holders:
        """Return the holders of each chunk."""
        if not self._holders:
            holds = np.zeros((len(self.orders), self.chunks), np.bool_)
            for w, order in enumerate(self.orders):
                holds[w, list(order)] = True
            holds.flags.writeable = False
            self._holders.append(Holders.of(holds))
        return self._holders[0]

    @property
    def clients_w(self) -> int:
        """Return the number of clients, idle ones included."""
        return len(self.orders)

    @property
    def loads(self) -> tuple[int, ...]:
        """Return the number of chunks of each client."""
        return tuple(len(order) for order in self.orders)


def _check_shape(
    chunks: int, orders: Sequence[Sequence[int]], classes: Sequence[int], phases: Sequence[float]
) -> None:
    if chunks < 1:
        raise BadPlacement(f"{chunks} chunks: a placement needs at least 1")
    if not orders:
        raise BadPlacement("no clients: a placement needs at least 1")
    if len(classes) != len(orders):
        raise BadPlacement(f"{len(classes)} classes for {len(orders)} clients: each needs one")
    if min(classes) < 0:
        raise BadPlacement(f"class {min(classes)}: classes are numbered from 0")
    if len(phases) != chunks:
        raise BadPlacement(f"{len(phases)} phases for {chunks} chunks: each needs one")


def _check_disjoint(class_and_chunk_s: Int, chunks: int) -> None:
    seen, times = np.unique(class_and_chunk_s, return_counts=True)
    if (times > 1).any():
        where = int(seen[times > 1][0])
        raise BadPlacement(
            f"chunk {where % chunks} lies twice in class {where // chunks}: "
            "holders of one chunk need different classes"
        )


def _few(ids: Int) -> str:
    """Name at most eight ids."""
    named = ", ".join(str(int(i)) for i in ids[:8])
    return named if ids.size <= 8 else f"{named} and {ids.size - 8} more"


def finished(placement: Placement, done: Bool) -> Bool:
    """Return which holders finished each chunk (columns x chunks); raise on a chunk not held.

    >>> both = Placement(2, ((0, 1), (1, 0)), (0, 1), (0.25, 0.75))
    >>> finished(both, np.array([[True, False], [True, True]])).tolist()
    [[True, False], [True, True]]
    """
    done = np.asarray(done)
    shape = (placement.clients_w, placement.chunks)
    if done.shape != shape or done.dtype != np.bool_:
        raise BadPlacement(f"a finished matrix of {done.dtype} {done.shape} came, bool {shape} is needed")
    finished_cn: Bool = np.take(done, placement.flat_cn, mode="wrap")
    finished_cn &= placement.flat_cn >= 0
    if np.count_nonzero(finished_cn) != np.count_nonzero(done):
        w, chunk = np.argwhere(done & ~placement.holds)[0]
        raise BadPlacement(
            f"client {w} claims chunk {chunk}, of which it holds no copy; "
            f"it holds {_few(np.asarray(placement.orders[w], np.int64)) or 'none'}"
        )
    return finished_cn
