"""Placement by speed: classes of clients with balanced total speed.

Clients are split into `replicas` classes. Within a class each chunk has exactly one holder, and a client's
load is its share of the speed of its class. Chunk ids are first permuted at random, so that neither the
data's order nor a client's index determines which chunks share a holder.

Chunks may be placed in groups. A vector that is lost or late is replaced by those of all other holders of its
chunks: the larger the groups, the fewer these are. Small groups share out the work more evenly. The chunks of
a group are spread over the serpentine, so which ones a deadline cuts off is as random as without groups.

A chunk whose holders are all slow delays the round, whatever the others do. So a class has clients of similar
speed where possible, and elsewhere the chunks of slow clients are drawn at random.
"""

import heapq
from collections.abc import Sequence
from typing import Final

import numpy as np

from fedgc.codes.arrays import Float, Int
from fedgc.codes.order import serpentine_keys, sorted_orders
from fedgc.codes.placement import Placement
from fedgc.errors import BadPlacement

EVEN: Final = 0.95  # classes of similar speed: least weight of the lightest one, over that of even classes


def place(
    chunks: int, speeds: Sequence[float], replicas: int, *, groups: int | None = None, seed: int = 0
) -> Placement:
    """Return a placement with `replicas` holders of every chunk; fast clients hold more chunks.

    With fewer `groups` than chunks, the chunks of one group have the same holders.

    >>> placed = place(6, [1.0, 1.0, 2.0], 2)
    >>> placed.classes, placed.loads
    ((1, 1, 0), (3, 3, 6))
    >>> place(6, [1.0, 1.0, 2.0], 2, groups=2).loads
    (3, 3, 6)
    """
    speed_w = _checked(chunks, speeds, replicas)
    rng = np.random.default_rng(seed)
    place_n = rng.permutation(chunks)
    groups = chunks if groups is None else max(1, min(groups, chunks))
    phase_g = (np.arange(groups) + 0.5) / groups
    classes_w = _classes(fill(float(groups * replicas), speed_w, groups), replicas)
    holder_cg = np.empty((replicas, groups), np.int64)
    for column in range(replicas):
        members = np.flatnonzero(classes_w == column)
        load = whole_loads(fill(float(groups), speed_w[members], groups))
        by_key = np.argsort(serpentine_keys(phase_g, column, replicas))
        holder_cg[column, by_key] = members[_deal(load, rng)]
    holder_cn = holder_cg[:, place_n % groups]
    phase_n = (place_n + 0.5) / chunks
    orders = sorted_orders(holder_cn, len(speed_w), phase_n)
    return Placement(chunks, orders, tuple(classes_w.tolist()), tuple(phase_n.tolist()))


def _checked(chunks: int, speeds: Sequence[float], replicas: int) -> Float:
    """Return the speeds; raise if no placement exists."""
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
    return speed_w


def fill(total: float, weight_s: Float, room: int | Float) -> Float:
    """Divide `total` in proportion to the weights, each share limited by `room` (one for all, or one each).

    Shares of weight 0 receive only the remainder for which the others have no room.

    >>> fill(6.0, np.array([1.0, 1.0, 4.0]), 2).tolist()
    [2.0, 2.0, 2.0]
    """
    share_s = np.zeros(len(weight_s))
    while True:
        open_s = share_s < room
        left = total - share_s.sum()
        if left <= 1e-9 * max(total, 1.0) or not open_s.any():
            return share_s
        pull_s = np.where(open_s, weight_s, 0.0)
        if not pull_s.any():
            pull_s = open_s.astype(np.float64)
        pull_s = pull_s / pull_s.max()  # so that neither huge nor tiny weights overflow
        share_s = np.minimum(share_s + left * (pull_s / pull_s.sum()), room)


def whole_loads(share_s: Float) -> Int:
    """Round shares to whole chunks with the same total, each within one of its share.

    >>> whole_loads(np.array([1.5, 1.5, 2.0])).tolist()
    [2, 1, 2]
    """
    share_s = np.round(share_s, 6)  # removes rounding errors next to whole numbers
    load_s = np.floor(share_s).astype(np.int64)
    rest = round(float(share_s.sum())) - int(load_s.sum())
    load_s[np.argsort(load_s - share_s, kind="stable")[:rest]] += 1
    return load_s


def _classes(weight_w: Float, bins: int) -> Int:
    """Divide the clients into classes of similar speed, unless other classes are clearly more even.

    >>> _classes(np.array([1.0, 0.5, 1.0, 0.5, 1.0]), 2).tolist()
    [0, 1, 0, 1, 1]
    """
    similar_w, even_w = _by_speed(weight_w, bins), _longest_first(weight_w, bins)
    similar, even = (np.bincount(bin_w, weight_w, bins).min() for bin_w in (similar_w, even_w))
    return similar_w if similar >= EVEN * even else even_w


def _by_speed(weight_w: Float, bins: int) -> Int:
    """Assign the clients to classes from the fastest to the slowest."""
    fastest_first = np.argsort(-weight_w, kind="stable")
    sorted_w = weight_w[fastest_first]
    middle_w = np.cumsum(sorted_w) - sorted_w / 2
    bin_w = np.empty(len(weight_w), np.int64)
    bin_w[fastest_first] = np.minimum((middle_w * bins / weight_w.sum()).astype(np.int64), bins - 1)
    return bin_w


def _longest_first(weight_w: Float, bins: int) -> Int:
    """Assign the heaviest remaining client to the lightest class (LPT rule, Graham 1969)."""
    bin_w = np.empty(len(weight_w), np.int64)
    heap = [(0.0, 0, index) for index in range(bins)]
    for w in np.argsort(-weight_w, kind="stable").tolist():
        total, count, index = heapq.heappop(heap)
        bin_w[w] = index
        heapq.heappush(heap, (total + float(weight_w[w]), count + 1, index))
    return bin_w


def _deal(load_s: Int, rng: np.random.Generator) -> Int:
    """Return which member gets the 1st, 2nd, ... chunk of the sorted row.

    The p-th of g chunks of a member is due at random within the p-th of g parts of the row, so that two
    chunks that share a holder in one class rarely share one in another. If it were due in the middle, members
    with few chunks would hold the same ones as those in other classes.
    """
    member_s = np.repeat(np.arange(len(load_s)), load_s)
    rank_s = np.arange(len(member_s)) - np.repeat(np.cumsum(load_s) - load_s, load_s)
    due_s = (rank_s + rng.random(len(member_s))) / load_s[member_s]
    dealt: Int = member_s[np.argsort(due_s, kind="stable")]
    return dealt
