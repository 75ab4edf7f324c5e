"""The graph of a large federation: whose masks a member adds, and who holds the shares of its secrets.

Bell, Bonawitz, Gascón, Lepoint, Raykova, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead"
(CCS 2020), in its variant for a malicious server. Each member draws, by its own secret randomness and after
the roster of the epoch is fixed, the *holders* of its shares, and among them its *neighbors*. Two members
share a mask if either drew the other. Nobody can influence the draw of an honest member: neither the server,
which chooses the roster before, nor the colluders, whose own draws add edges of their own only. A member
verifies all of a roster before it draws, and draws once for an epoch, so no refusal depends on a draw. A
graph from a hash of the members' keys would not have this property, since a server with one colluding member
can try many keys until the hash suits it; nor would one from nonces that are committed to and revealed later,
since the server can leave out members after it has seen their nonces.

The server chooses who drops out when it knows the graph. Four events would help it. Their probabilities, for
an epoch of R members of which c collude, sum to at most 2^-40 (`Graph.risk_bits`); H is the tail of the
hypergeometric distribution, P[at least x of k draws are among b of N].

- Split: the mask key and the self seed of one honest member are both released. An honest holder releases a
  share of one of them, so this needs c' >= 2 shares - holders colluding holders:
  (R - c) H(N = R - 1, b = c, k = holders - 1, x = 2 shares - holders).
- Cut: some honest survivors share no mask with the other honest survivors, so that their sum is revealed. A
  sum is unmasked only if at least `present` neighbors of each survivor are survivors. So each member of a cut
  set of s honest members drew at least `present` neighbors among the s - 1 others and the c colluders, and
  draws are independent: sum over s <= (R - c) / 2 of C(R - c, s) H(R - 1, s - 1 + c, neighbors, present)^s.
- Fooled: honest members release shares for two different sets of survivors. Two sets cannot both have more
  than (n + c) / 2 valid signatures, and each member verifies `checked` signatures, chosen by its own secret
  randomness, of the T that the server shows once in each of E = 64 exchanges. It accepts a false set with
  probability q = C(V, checked) / C(T, checked), V = (n + c) / 2, independently of others; the release of a
  secret needs `shares` of its holders, of which c' collude:
  E (n - c) sum over c' of P[c'] P[Bin(holders - c', q) >= shares - c'].
- Twice: two sums of one model are unmasked. A member that has released shares for one of them masks this
  model no more, so the members X that released for the first do not sign the second. If X has more than half
  of the honest members, the second has at most (n + c) / 2 valid signatures: see above. A smaller X would
  have to hold enough shares of each of the Q - c honest survivors, its own among them; with h = (n - c) / 2,
  C(R - c, h) C(R - c, Q - c) H(R - 1, h + c, holders - 1, shares - 1)^(Q - c).

A roster has R = Q to n members, Q being the quorum, and each event counts with its largest bound. That of
Split is at Q, as it falls with R; of Cut at Q or Q + 1, as it falls for even and for odd R - c; of Twice
wherever it is found. Fooled has its factors of all n members, but P[c'] of Q.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from fedgc.errors import BadSetting
from fedgc.secagg.keys import digest
from fedgc.secagg.keystream import keystream
from fedgc.secagg.shamir import POINTS

MOST_EXCHANGES: Final = 64  # per epoch; T compromised sites reveal the rest of an epoch, so it is short
RISK_BITS: Final = 40  # statistical security of an epoch: the four events have probability 2^-40 at most
_FAILURE_BITS: Final = 10  # an exchange that loses the stated share of members fails once in 1000 times
_LOG_2: Final = math.log(2)
_EVENT: Final = -(RISK_BITS + 2) * _LOG_2  # log probability of each event, when a graph is chosen


@dataclass(frozen=True, slots=True)
class Graph:
    """The pinned numbers of a sparse federation.

    `colluders` is how many members may work with the server. Each member deals its secrets to `holders`
    members, itself among them, of which `shares` rebuild them; and adds masks with `neighbors` of them. Of
    these neighbors, `present` must be in a sum. It verifies `checked` signatures on the survivors.
    """

    colluders: int
    holders: int
    shares: int
    neighbors: int
    present: int
    checked: int

    def __post_init__(self) -> None:
        if not 1 <= self.present <= self.neighbors < self.holders <= POINTS:
            raise BadSetting(
                f"graph: saw {self.present} of {self.neighbors} neighbors and {self.holders} holders, needed "
                f"rising numbers of 1 to {POINTS}"
            )
        if not self.holders < 2 * self.shares <= 2 * self.holders:
            raise BadSetting(f"graph: saw {self.shares} shares of {self.holders}, needed more than half")
        if self.colluders < 0 or self.checked < 1:
            raise BadSetting(
                f"graph: saw {self.colluders} colluders, {self.checked} checks, needed 0 and 1 or more"
            )

    def check(self, members: int, threshold: int, quorum: int) -> None:
        """Raise unless these numbers give the security stated above for this many members."""
        if self.holders >= quorum or self.checked > threshold or 2 * threshold <= members + self.colluders:
            raise BadSetting(
                f"graph: saw {self.holders} holders and {self.colluders} colluders for {members} members of "
                f"whom {threshold} sign, needed more members or fewer colluders"
            )
        bits = self.risk_bits(members, threshold, quorum)
        if bits < RISK_BITS:
            raise BadSetting(
                f"graph: saw a risk of 2^-{bits:.1f} with {self.neighbors} neighbors and {self.holders} "
                f"holders of {quorum} to {members} members, needed 2^-{RISK_BITS}"
            )

    def risk_bits(self, members: int, threshold: int, quorum: int) -> float:
        """Return -log2 of the probability that one of the four events happens in an epoch."""
        found = (
            _twice(members, quorum, self.colluders, self.holders, self.shares),
            _split(quorum, self.colluders, self.holders, self.shares),
            _cut(members, quorum, self.colluders, self.neighbors, self.present),
            _fooled(self, members, threshold, quorum),
        )
        return max(0.0, -_sum(found) / _LOG_2)


def graph_for(members: int, threshold: int, quorum: int, colluders: int, lost: int) -> Graph | None:
    """Return the graph with the fewest neighbors, then holders, for this many colluding and lost members.

    With `lost` members lost at random, an exchange fails with probability 2^-10 at most. None if no graph is
    secure, or if about all members would be neighbors: then the complete graph is better.

    >>> graph_for(1000, 900, 900, colluders=50, lost=50)
    Graph(colluders=50, holders=45, shares=33, neighbors=26, present=17, checked=5)
    """
    if not (0 <= colluders <= members and 0 <= lost <= members):
        raise BadSetting(
            f"graph: saw {colluders} colluding and {lost} lost of {members} members, needed 0 to {members}"
        )
    if 2 * threshold <= members + colluders:
        return None
    neighbors, present = _fewest_neighbors(members, quorum, colluders, lost)
    holders, shares = _fewest_holders(members, quorum, colluders, lost, neighbors + 1)
    if not neighbors or not holders:
        return None
    for checked in range(1, threshold + 1):
        graph = Graph(colluders, holders, shares, neighbors, present, checked)
        if _fooled(graph, members, threshold, quorum) <= _EVENT:
            return graph
    return None


def drawn(items: Iterable[int], count: int, key: bytes) -> tuple[int, ...]:
    """Return `count` different items, sorted, drawn uniformly by a secret key.

    >>> drawn(range(5), 5, bytes(32))
    (0, 1, 2, 3, 4)
    """
    pool = list(items)
    numbers = np.frombuffer(keystream(key, 8 * count), "<u8").tolist()  # the bias of % is below 2^-40
    for at, number in enumerate(numbers):
        other = at + number % (len(pool) - at)
        pool[at], pool[other] = pool[other], pool[at]
    return tuple(sorted(pool[:count]))


def draw(graph: Graph, others: Iterable[int], chance: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the holders among the others, and the neighbors among these, that a member draws."""
    holders = drawn(others, graph.holders - 1, digest("holders", chance))
    return holders, drawn(holders, graph.neighbors, digest("neighbors", chance))


# ---- search


def _fewest_neighbors(members: int, quorum: int, colluders: int, lost: int) -> tuple[int, int]:
    for neighbors in range(2, (members - 1) // 2):
        present = 1
        while present <= neighbors and _alone(quorum, colluders, neighbors, present) > _EVENT:
            present += 1
        while present <= neighbors and _survives(members, lost, neighbors, present):
            if _cut(members, quorum, colluders, neighbors, present) <= _EVENT:
                return neighbors, present
            present += 1
    return 0, 0


def _fewest_holders(members: int, quorum: int, colluders: int, lost: int, at_least: int) -> tuple[int, int]:
    for holders in range(at_least, min(POINTS, quorum - 1) + 1):
        shares = holders // 2 + 1
        while shares <= holders and _split(quorum, colluders, holders, shares) > _EVENT:
            shares += 1
        while shares <= holders and _survives(members, lost, holders - 1, shares):  # a lost one holds its own
            if _twice(members, quorum, colluders, holders, shares) <= _EVENT:
                return holders, shares
            shares += 1
    return 0, 0


def _survives(members: int, lost: int, drawn_: int, needed: int) -> bool:
    """Return whether all members keep this many of those that they drew, except with a small probability."""
    losing = math.log(members) + _tail(members - 1, lost, drawn_, drawn_ - needed + 1)
    return losing <= -(_FAILURE_BITS + 1) * _LOG_2


# ---- logarithms of the probabilities


def _split(members: int, colluders: int, holders: int, shares: int) -> float:
    return math.log(members - colluders) + _tail(members - 1, colluders, holders - 1, 2 * shares - holders)


@cache
def _twice(members: int, quorum: int, colluders: int, holders: int, shares: int) -> float:
    rosters = range(quorum, members + 1)
    return max(_twice_of(members, roster, quorum, colluders, holders, shares) for roster in rosters)


def _twice_of(members: int, roster: int, quorum: int, colluders: int, holders: int, shares: int) -> float:
    honest, survivors, half = roster - colluders, quorum - colluders, (members - colluders) // 2
    sets = _choose(honest, half) + _choose(honest, survivors)
    return sets + survivors * _tail(roster - 1, half + colluders, holders - 1, shares - 1)


def _alone(members: int, colluders: int, neighbors: int, present: int) -> float:
    """Return the first term of `_cut`: one honest member is cut off."""
    return math.log(members - colluders) + _tail(members - 1, colluders, neighbors, present)


@cache
def _cut(members: int, quorum: int, colluders: int, neighbors: int, present: int) -> float:
    rosters = {quorum, min(quorum + 1, members)}
    return max(_cut_of(roster, colluders, neighbors, present) for roster in rosters)


def _cut_of(roster: int, colluders: int, neighbors: int, present: int) -> float:
    honest = roster - colluders
    sizes = range(1, honest // 2 + 1)
    return _sum(
        _choose(honest, size) + size * _tail(roster - 1, size - 1 + colluders, neighbors, present)
        for size in sizes
    )


@cache
def _fooled(graph: Graph, members: int, threshold: int, quorum: int) -> float:
    colluders, others = graph.colluders, graph.holders - 1
    valid = (members + colluders) // 2
    chance = max(_choose(valid, graph.checked), 0.0) - _choose(threshold, graph.checked)
    terms = []
    for bad in range(min(colluders, others) + 1):
        honest, needed = graph.holders - bad, max(0, graph.shares - bad)
        so_many = _choose(colluders, bad) + _choose(quorum - 1 - colluders, others - bad)
        terms += [
            so_many - _choose(quorum - 1, others) + _choose(honest, fooled)
            + fooled * chance + (honest - fooled) * math.log1p(-math.exp(chance))
            for fooled in range(needed, honest + 1)
        ]  # fmt: skip
    return math.log(MOST_EXCHANGES) + math.log(members - colluders) + _sum(terms)


def _tail(members: int, marked: int, draws: int, least: int) -> float:
    """Return log P[at least `least` of the draws, without replacement, are marked]."""
    return _sum(
        _choose(marked, seen) + _choose(members - marked, draws - seen) - _choose(members, draws)
        for seen in range(max(0, least), min(draws, marked) + 1)
    )


def _choose(items: int, count: int) -> float:
    if not 0 <= count <= items:
        return -math.inf
    return math.lgamma(items + 1) - math.lgamma(count + 1) - math.lgamma(items - count + 1)


def _sum(logarithms: Iterable[float]) -> float:
    terms = list(logarithms)
    largest = max(terms, default=-math.inf)
    if largest == -math.inf:
        return largest
    return largest + math.log(sum(math.exp(term - largest) for term in terms))
