"""The numbers of sparse graphs: bounds beside slow references, and what a descriptor refuses."""

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import comb

import pytest

from fedgc.errors import BadMessage, BadSetting
from fedgc.secagg import Descriptor, Federation, guarantees
from fedgc.secagg.canonical import pack, unpack
from fedgc.secagg.graph import MOST_EXCHANGES, RISK_BITS, Graph, draw, drawn, graph_for

FEW_HOLDERS = Graph(colluders=5, holders=18, shares=12, neighbors=16, present=11, checked=9)
SMALL = graph_for(24, 21, 21, colluders=2, lost=1)
LARGE = graph_for(1000, 900, 900, colluders=50, lost=50)


def tail(members, marked, draws, least):
    """Slow reference: P[at least `least` of the draws are marked]."""
    good = sum(comb(marked, x) * comb(members - marked, draws - x) for x in range(max(0, least), draws + 1))
    return Fraction(good, comb(members, draws))


def risk(graph, members, threshold, quorum):
    """Slow reference: the exact sum of the module's four bounds, each for its worst roster."""
    bad, rosters = graph.colluders, range(quorum, members + 1)
    split = max(
        (n - bad) * tail(n - 1, bad, graph.holders - 1, 2 * graph.shares - graph.holders) for n in rosters
    )
    cut = max(
        sum(
            comb(n - bad, s) * tail(n - 1, s - 1 + bad, graph.neighbors, graph.present) ** s
            for s in range(1, (n - bad) // 2 + 1)
        )
        for n in rosters
    )
    q = Fraction(comb((members + bad) // 2, graph.checked), comb(threshold, graph.checked))
    fooled = Fraction(0)
    for c in range(min(bad, graph.holders - 1) + 1):
        so_many = Fraction(
            comb(bad, c) * comb(quorum - 1 - bad, graph.holders - 1 - c), comb(quorum - 1, graph.holders - 1)
        )
        left = graph.holders - c
        fooled += so_many * sum(
            comb(left, x) * q**x * (1 - q) ** (left - x) for x in range(max(0, graph.shares - c), left + 1)
        )
    half, left = (members - bad) // 2, quorum - bad
    twice = max(
        comb(roster - bad, half) * comb(roster - bad, left)
        * tail(roster - 1, half + bad, graph.holders - 1, graph.shares - 1) ** left
        for roster in rosters
    )  # fmt: skip
    return split + cut + MOST_EXCHANGES * (members - bad) * fooled + twice


@pytest.mark.parametrize(
    ("graph", "members", "threshold"),
    [
        (SMALL, 24, 21),
        (graph_for(60, 41, 41, colluders=3, lost=1), 60, 41),
        (graph_for(100, 90, 90, colluders=5, lost=5), 100, 90),  # of 91 members most are cut off
        (FEW_HOLDERS, 100, 90),  # of 91 members most help with two sums
    ],
)
def test_risk_equals_slow_exact_sum(graph, members, threshold):
    exact = risk(graph, members, threshold, threshold)
    assert graph.risk_bits(members, threshold, threshold) == pytest.approx(-math.log2(exact), abs=1e-6)


def test_risk_is_largest_for_smallest_roster():
    bits = [LARGE.risk_bits(1000, 900, roster) for roster in range(900, 1001, 5)]
    assert min(bits) == bits[0] >= RISK_BITS


def test_graph_that_is_weak_in_small_roster_is_refused():
    with pytest.raises(BadSetting, match=r"risk of 2\^-37"):
        FEW_HOLDERS.check(100, 90, 90)


def test_degree_grows_with_logarithm_of_members():
    found = [graph_for(n, n - n // 10, n - n // 10, n // 20, n // 20) for n in (100, 1000, 10_000)]
    assert [each.neighbors for each in found] == [16, 26, 31]


def test_small_federation_keeps_complete_graph():
    assert graph_for(10, 7, 7, colluders=1, lost=1) is None
    assert graph_for(1000, 667, 667, colluders=334, lost=50) is None  # two sets could be signed


@pytest.mark.parametrize(
    "change",
    [{"present": 16}, {"shares": 32}, {"checked": 1}, {"colluders": 60}, {"holders": 46}],
)
def test_weaker_graph_is_refused(change):
    with pytest.raises(BadSetting, match="risk of 2"):
        replace(LARGE, **change).check(1000, 900, 900)


@pytest.mark.parametrize(
    "change",
    [{"present": 0}, {"present": 27}, {"neighbors": 45}, {"holders": 256}, {"shares": 22}, {"shares": 46},
     {"colluders": -1}, {"checked": 0}],
)  # fmt: skip
def test_impossible_graph_is_refused(change):
    with pytest.raises(BadSetting, match="graph: saw"):
        replace(LARGE, **change)


@pytest.mark.parametrize(("members", "threshold", "quorum"), [(1000, 525, 525), (1000, 3, 900), (60, 45, 45)])
def test_graph_needs_enough_signers_and_members(members, threshold, quorum):
    with pytest.raises(BadSetting, match="needed more members or fewer colluders"):
        LARGE.check(members, threshold, quorum)


def test_draw_is_uniform_and_without_repetition():
    seen = Counter(item for key in range(2000) for item in drawn(range(10, 20), 3, key.to_bytes(32, "big")))
    assert set(seen) == set(range(10, 20))
    assert all(abs(count - 600) < 5 * math.sqrt(600 * 0.7) for count in seen.values())
    assert all(len(set(drawn(range(9), 5, bytes([key]) * 32))) == 5 for key in range(50))


def test_neighbors_are_drawn_among_holders_by_same_secret():
    others = range(SMALL.holders - 1)  # all of them are holders
    drew = {draw(SMALL, others, bytes([chance]) * 32) for chance in range(20)}
    assert {holders for holders, _ in drew} == {tuple(others)}
    assert len({neighbors for _, neighbors in drew}) > 10
    assert all(len(neighbors) == SMALL.neighbors and set(neighbors) <= set(others) for _, neighbors in drew)
    more = {draw(SMALL, range(100), bytes([chance]) * 32)[0] for chance in range(20)}
    assert len(more) == 20


def test_graph_with_more_holders_or_checks_than_members_is_refused():
    for graph, members, threshold, quorum in (
        (LARGE, 90, 75, 45),
        (replace(LARGE, checked=901), 1000, 900, 900),
    ):
        with pytest.raises(BadSetting, match="needed more members or fewer colluders"):
            graph.check(members, threshold, quorum)


def test_sparse_descriptor_is_decoded_equal(kit):
    federation = kit.federation(24, threshold=21, graph=SMALL)
    assert Federation.unpack(federation.pack()) == federation
    assert Descriptor(federation).endorse(kit.identities(24)[0]).federation.fid == federation.fid
    others = {kit.federation(24, threshold=21).fid}
    stricter = ({"checked": SMALL.checked + 1}, {"colluders": 1}, {"present": 9}, {"shares": 11})
    others |= {
        kit.federation(24, threshold=21, graph=replace(SMALL, **each)).fid
        for each in stricter
        if replace(SMALL, **each).risk_bits(24, 21, 21) >= RISK_BITS
    }
    assert federation.fid not in others
    assert federation.colluders == SMALL.colluders
    assert federation.shares == SMALL.shares


def test_descriptor_with_weak_graph_is_refused(kit):
    weak = replace(SMALL, checked=1)
    with pytest.raises(BadSetting, match="risk of 2"):
        kit.federation(24, threshold=21, graph=weak)
    packed = kit.federation(24, threshold=21, graph=SMALL).pack()
    label, version, members, counts, *rest = unpack(packed)
    with pytest.raises(BadSetting, match="risk of 2"):
        Federation.unpack(pack(label, version, members, (*counts[:-1], 1), *rest))


def test_descriptor_with_part_of_graph_is_refused(kit):
    label, version, members, counts, *rest = unpack(kit.federation(24, threshold=21, graph=SMALL).pack())
    with pytest.raises(BadMessage, match="graph of 5 numbers"):
        Federation.unpack(pack(label, version, members, counts[:-1], *rest))


def test_thousand_members_need_graph(kit):
    with pytest.raises(BadSetting, match="needed 3 to 255, or a sparse graph"):
        kit.federation(1000)
    federation = kit.federation(1000, threshold=900, exchanges=32, graph=LARGE)
    said = " ".join(guarantees(federation))
    assert "at most 50 of them work with the server" in said
    assert "12 of the 45 holders" in said
    assert "9 of the 26 neighbors" in said
    assert "any 33 of its 45" in said
