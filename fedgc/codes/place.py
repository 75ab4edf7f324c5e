"""Placing chunks: classes of clients with balanced total speed.

Clients are split in `replicas` classes; inside a class every chunk lies with exactly one client, and
a client's load is its share of the speed of its class, cut at its storage. Chunk ids are permuted at
random first, so that neither the data's order nor a client's number says which chunks meet where.

Where storage is so tight that no split gives every class room for all chunks, the chunks are dealt
round and round instead (McNaughton's wrap-around rule: a run no longer than one lap holds no chunk
twice), and the columns come from colouring, as for any placement that is dictated.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from fedgc.codes.adopt import coloured
from fedgc.codes.arrays import Float, Int
from fedgc.codes.order import serpentine_keys, sorted_orders
from fedgc.codes.placement import Placement
from fedgc.errors import BadPlacement


def place(
    chunks: int,
    speeds: Sequence[float],
    replicas: int,
    *,
    storage: Sequence[int] | None = None,
    seed: int = 0,
) -> Placement:
    """Return a placement in which every chunk lies with `replicas` clients, fast ones holding more.

    >>> placed = place(6, [1.0, 1.0, 2.0], 2)
    >>> placed.classes, placed.loads
    ((1, 1, 0), (3, 3, 6))
    >>> place(6, [1.0, 1.0, 1.0, 1.0], 2, storage=[2, 6, 6, 6]).loads
    (2, 3, 4, 3)
    """
    speed_w, room_w = _checked(chunks, speeds, replicas, storage)
    rng = np.random.default_rng(seed)
    phase_n = (rng.permutation(chunks) + 0.5) / chunks
    share_w = fill(float(chunks * replicas), speed_w, room_w)
    classes_w = _split(share_w, room_w, chunks, replicas)
    if classes_w is None:
        return _wrapped(phase_n, whole_loads(share_w, room_w))
    holder_cn = np.empty((replicas, chunks), np.int64)
    for column in range(replicas):
        members = np.flatnonzero(classes_w == column)
        load = whole_loads(fill(float(chunks), speed_w[members], room_w[members]), room_w[members])
        by_key = np.argsort(serpentine_keys(phase_n, column, replicas))
        holder_cn[column, by_key] = members[_deal(load, rng)]
    orders = sorted_orders(holder_cn, len(speed_w), phase_n)
    return Placement(chunks, orders, tuple(classes_w.tolist()), tuple(phase_n.tolist()))


def _checked(
    chunks: int, speeds: Sequence[float], replicas: int, storage: Sequence[int] | None
) -> tuple[Float, Int]:
    """Return speeds and the room each client has, or say why no placement can exist."""
    speed_w = np.asarray(speeds, np.float64)
    if chunks < 1:
        raise BadPlacement(f"{chunks} chunks: a placement needs at least 1")
    if speed_w.ndim != 1 or speed_w.size == 0:
        raise BadPlacement(f"speeds of shape {speed_w.shape}: one number for each client is needed")
    bad = np.flatnonzero(~(np.isfinite(speed_w) & (speed_w >= 0)))
    if bad.size:
        raise BadPlacement(f"client {bad[0]} has speed {speed_w[bad[0]]}: speeds are finite and not negative")
    if not speed_w.any():
        raise BadPlacement("every speed is 0: at least one client must work")
    if not 1 <= replicas <= speed_w.size:
        raise BadPlacement(f"{replicas} replicas on {speed_w.size} clients: 1 to {speed_w.size} are possible")
    room_w = np.full(speed_w.size, chunks) if storage is None else np.asarray(storage)
    if room_w.shape != speed_w.shape or room_w.dtype.kind not in "iu" or (room_w < 0).any():
        raise BadPlacement(f"storage {storage}: one count of 0 or more chunks for each client is needed")
    room_w = np.minimum(room_w, chunks).astype(np.int64)
    if room_w.sum() < chunks * replicas:
        raise BadPlacement(
            f"storage holds {room_w.sum()} replicas (each client holds a chunk once), "
            f"{chunks} chunks in {replicas} replicas need {chunks * replicas}"
        )
    return speed_w, room_w


def fill(total: float, weight_s: Float, room_s: Int) -> Float:
    """Share out `total` in proportion to the weights, none above its room.

    Those of weight 0 get what the others have no room for.

    >>> fill(6.0, np.array([1.0, 1.0, 4.0]), np.array([6, 6, 2])).tolist()
    [2.0, 2.0, 2.0]
    """
    share_s = np.zeros(len(weight_s))
    while True:
        open_s = share_s < room_s
        left = total - share_s.sum()
        if left <= 1e-9 * max(total, 1.0) or not open_s.any():
            return share_s
        pull_s = np.where(open_s, weight_s, 0.0)
        if not pull_s.any():
            pull_s = open_s.astype(np.float64)
        pull_s = pull_s / pull_s.max()  # so that neither huge nor tiny weights leave the range of floats
        share_s = np.minimum(share_s + left * (pull_s / pull_s.sum()), room_s)


def whole_loads(share_s: Float, room_s: Int) -> Int:
    """Round shares to whole chunks of the same total, each within one of its share.

    >>> whole_loads(np.array([1.5, 1.5, 2.0]), np.array([5, 5, 2])).tolist()
    [2, 1, 2]
    """
    share_s = np.round(share_s, 6)  # a share that misses a whole number by rounding is that number
    load_s = np.floor(share_s).astype(np.int64)
    rest = round(float(share_s.sum())) - int(load_s.sum())
    fraction_s = np.where(load_s < room_s, share_s - load_s, -1.0)
    load_s[np.argsort(-fraction_s, kind="stable")[:rest]] += 1
    return load_s


def _split(share_w: Float, room_w: Int, chunks: int, replicas: int) -> Int | None:
    """Split the clients in classes of balanced total share, each with room for all chunks."""
    for weight_w in (share_w, room_w.astype(np.float64)):
        class_w = _longest_first(weight_w, replicas)
        if np.bincount(class_w, weights=room_w, minlength=replicas).min() >= chunks:
            return class_w
    return None


def _longest_first(weight_w: Float, bins: int) -> Int:
    """Graham's rule: the heaviest client left goes to the lightest class."""
    bin_w = np.empty(len(weight_w), np.int64)
    heap = [(0.0, 0, index) for index in range(bins)]
    for w in np.argsort(-weight_w, kind="stable").tolist():
        total, count, index = heapq.heappop(heap)
        bin_w[w] = index
        heapq.heappush(heap, (total + float(weight_w[w]), count + 1, index))
    return bin_w


def _deal(load_s: Int, rng: np.random.Generator) -> Int:
    """Return which member gets the 1st, 2nd, ... chunk of the sorted row.

    The p-th of g chunks of a member is due at (p + 1/2) / g of the row. Chance breaks the ties, so
    that two chunks that share a holder in one class rarely share another elsewhere.
    """
    member_s = np.repeat(np.arange(len(load_s)), load_s)
    rank_s = np.arange(len(member_s)) - np.repeat(np.cumsum(load_s) - load_s, load_s)
    due_s = (rank_s + 0.5) / load_s[member_s]
    dealt: Int = member_s[np.lexsort((rng.random(len(member_s)), due_s))]
    return dealt


def _wrapped(phase_n: Float, load_w: Int) -> Placement:
    """Deal the chunks round and round in runs of each client's load."""
    chunks = len(phase_n)
    lap_s = np.argsort(phase_n)[np.arange(int(load_w.sum())) % chunks]
    runs = np.split(lap_s, np.cumsum(load_w)[:-1])
    holds = np.zeros((len(load_w), chunks), np.bool_)
    for w, run in enumerate(runs):
        holds[w, run] = True
    return coloured(holds, phase_n)
