"""Test the code's public path, from a finished matrix to the sum."""

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.codewords import codeword_of, decode, encode
from fedgc.codes import FrameCode, GaussianCode, Placement, adopt, place, repair
from fedgc.errors import BadPlacement, BadSetting

TOLERANCE = {np.float64: 1e-9, np.float32: 2e-4}  # relative to the largest update, worst condition below 200


@st.composite
def placements(draw):
    clients_w = draw(st.integers(1, 9))
    chunks = draw(st.integers(1, 14))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    if draw(st.booleans()):
        speeds = rng.choice([1.0, 0.5, 0.2], clients_w).tolist()
        return place(chunks, speeds, draw(st.integers(1, clients_w)))
    holds = [set(np.flatnonzero(rng.random(chunks) < 0.6).tolist()) for _ in range(clients_w)]
    holds[0] |= set(range(chunks)) - set().union(*holds)
    return adopt(holds, chunks)


@st.composite
def finished(draw, enough=True):
    """Any code and any finished matrix, with enough replicas if requested."""
    placement = draw(placements())
    blocks = draw(st.integers(1, placement.replicas))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    code = FrameCode(placement, blocks) if draw(st.booleans()) else GaussianCode(placement, blocks, rng)
    done = placement.holds & (rng.random(placement.holds.shape) < draw(st.sampled_from([0.2, 0.6, 0.95])))
    if enough:
        for chunk in np.flatnonzero(done.sum(axis=0) < blocks):
            done[rng.permutation(np.flatnonzero(placement.holds[:, chunk]))[:blocks], chunk] = True
    return code, done, rng


def updates_of(done, w, updates):
    """The client's updates of its finished chunks."""
    return {int(chunk): updates[chunk] for chunk in np.flatnonzero(done[w])}


def coded_sum(solution, done, updates):
    codewords = {w: codeword_of(solution, w, updates_of(done, w, updates)) for w in solution.needed}
    return decode(solution, codewords, updates.shape[1])


@given(finished(), st.integers(0, 17), st.sampled_from([np.float64, np.float32]))
@settings(max_examples=200)
def test_enough_replicas_give_plain_sum(case, size, dtype):
    code, done, rng = case
    updates = rng.standard_normal((code.placement.chunks, size)).astype(dtype)
    solution = code.solve(done)
    assert solution.exact
    assert solution.short == ()
    assert solution.error is None
    plain = updates.astype(np.float64).sum(axis=0)
    scale = max(1.0, float(np.abs(updates).max(initial=0.0))) * code.placement.chunks
    allowed = TOLERANCE[dtype] * scale * max(1.0, solution.condition / 200.0)
    assert np.abs(coded_sum(solution, done, updates) - plain).max(initial=0.0) <= allowed


@given(finished(enough=False))
def test_too_few_replicas_never_claim_exactness(case):
    code, done, _ = case
    solution = code.solve(done)
    short = np.flatnonzero(done.sum(axis=0) < code.blocks)
    assert set(short) <= set(solution.short)
    assert solution.exact == (not solution.short)
    assert (solution.error is None) == solution.exact
    if isinstance(code, FrameCode):
        assert solution.short == tuple(short)


@given(finished(), st.randoms(use_true_random=False))
def test_renumbering_clients_changes_nothing(case, random):
    code, done, rng = case
    if not isinstance(code, FrameCode):
        return
    placement = code.placement
    turned = list(range(placement.clients_w))
    random.shuffle(turned)
    other = Placement(
        placement.chunks,
        tuple(placement.orders[w] for w in turned),
        tuple(placement.classes[w] for w in turned),
        placement.phases,
    )
    updates = rng.standard_normal((placement.chunks, 6))
    mine, theirs = code.solve(done), FrameCode(other, code.blocks).solve(done[turned])
    assert mine.condition == theirs.condition
    np.testing.assert_allclose(
        coded_sum(mine, done, updates), coded_sum(theirs, done[turned], updates), rtol=0, atol=1e-9
    )


@given(finished(enough=False))
def test_coefficients_equal_pseudo_inverse_per_chunk(case):
    code, done, _ = case
    solution = code.solve(done, correlation=0.0)  # least squares: nothing stands in for what is short
    if isinstance(code, FrameCode) and code.blocks == 1:
        return  # a work queue: one replica of each chunk, not the mean of all
    expected = np.zeros((code.placement.clients_w, code.placement.chunks, code.blocks))
    for chunk in range(code.placement.chunks):
        holders = np.flatnonzero(done[:, chunk])
        expected[holders, chunk] = np.linalg.pinv(code.matrix_bw[:, holders], rcond=1e-9)
    for w in range(code.placement.clients_w):
        told = solution.coefficients(w)
        found = np.zeros((code.placement.chunks, code.blocks))
        if told.chunks:
            found[list(told.chunks)] = told.matrix
        np.testing.assert_allclose(found, expected[w], rtol=0, atol=1e-7 * max(1.0, np.abs(expected).max()))


@given(finished())
def test_frame_code_with_one_block_is_work_queue(case):
    code, done, _ = case
    if not isinstance(code, FrameCode) or code.blocks > 1:
        return
    solution = code.solve(done)
    taken = [chunk for w in range(code.placement.clients_w) for chunk in solution.coefficients(w).chunks]
    assert sorted(taken) == list(range(code.placement.chunks))
    rows = {row for w in solution.needed for row in solution.coefficients(w).matrix}
    assert rows == {(1.0,)}


@given(finished(enough=False))
def test_only_needed_clients_mix(case):
    code, done, _ = case
    solution = code.solve(done)
    for w in range(code.placement.clients_w):
        assert bool(solution.coefficients(w).chunks) == (w in solution.needed)
        assert set(solution.coefficients(w).chunks) <= set(np.flatnonzero(done[w]))


@given(finished(), st.data())
def test_pruned_clients_need_not_send_and_sum_stays_exact(case, data):
    code, done, _ = case
    clients_w = code.placement.clients_w
    cost = data.draw(st.none() | st.lists(st.floats(0, 5), min_size=clients_w, max_size=clients_w))
    pruned = code.prune(done, cost=cost)
    assert not (pruned & ~done).any()
    solution = code.solve(pruned)
    assert solution.exact
    if cost is None:  # cheap uploads may be more of them
        assert len(solution.needed) <= len(code.solve(done).needed)
    for w in np.flatnonzero(pruned.any(axis=1)):  # no other client can be left out
        without = pruned.copy()
        without[w] = False
        assert (without.sum(axis=0) < code.blocks).any()


@given(finished(), st.floats(1.0, 8.0))
def test_pruning_keeps_amplification_within_its_limit(case, limit):
    code, done, _ = case
    before = code.solve(done).amplification
    after = code.solve(code.prune(done, limit=limit)).amplification
    assert after <= max(limit, before) + 1e-9 or (isinstance(code, FrameCode) and code.blocks == 1)


@given(finished(), st.integers(0, 12))
def test_encoding_is_linear(case, size):
    code, done, rng = case
    solution = code.solve(done)
    first, second = rng.standard_normal((2, code.placement.chunks, size))
    for w in solution.needed:
        one, two, both = (
            codeword_of(solution, w, updates_of(done, w, updates))
            for updates in (first, second, 3.0 * first - second)
        )
        np.testing.assert_allclose(
            both, 3.0 * one - two, rtol=1e-9, atol=1e-9 * max(1.0, np.abs(both).max(initial=0))
        )


@given(finished())
def test_any_lost_codeword_is_repaired_by_parts_of_others(case):
    code, done, rng = case
    updates = rng.standard_normal((code.placement.chunks, 7))
    solution = code.solve(done)
    codewords = {w: codeword_of(solution, w, updates_of(done, w, updates)) for w in solution.needed}
    for lost in solution.needed:
        left = done.copy()
        left[lost] = False
        repairs = repair(lost, solution.coefficients(lost), left)
        gone = [chunk for chunk in solution.coefficients(lost).chunks if not left[:, chunk].any()]
        assert list(repairs.missing.chunks) == gone
        terms = [chunk for part in repairs.parts for chunk in part.coefficients.chunks] + gone
        assert sorted(terms) == sorted(solution.coefficients(lost).chunks)
        if not gone:
            parts = [
                encode(*astuple(part.coefficients), updates_of(left, part.helper, updates))
                for part in repairs.parts
            ]
            rebuilt = codewords | {lost: np.sum(parts, axis=0)}
            np.testing.assert_allclose(
                decode(solution, rebuilt, 7), decode(solution, codewords, 7), rtol=0, atol=1e-6
            )


def test_conditioning_is_independent_of_number_of_clients():
    few, many = (
        FrameCode(place(chunks, [1.0] * clients_w, 8), 4) for clients_w, chunks in ((8, 8), (400, 800))
    )
    assert np.array_equal(few.frame, many.frame)


def test_codeword_enters_sum_with_column_of_class():
    placement = place(8, [1.0] * 8, 4)
    code = FrameCode(placement, 2)
    solution = code.solve(placement.holds)
    for w in range(8):
        assert solution.column(w).tolist() == code.frame[:, placement.classes[w]].tolist()


def test_many_classes_are_solved_on_demand():
    rng = np.random.default_rng(0)
    holds = [set(range(10)) for _ in range(14)]
    placement = adopt(holds, 10)
    assert placement.columns == 14
    done = rng.random((14, 10)) < 0.5
    done[:3] = True
    updates = rng.standard_normal((10, 9))
    solution = FrameCode(placement, 3).solve(done)
    np.testing.assert_allclose(coded_sum(solution, done, updates), updates.sum(axis=0), rtol=0, atol=1e-7)


def test_weights_scale_contribution_of_chunks():
    placement = place(6, [1.0] * 4, 2)
    weights = [1.0, 2.0, 1.0, 1.0, 3.0, 1.0]
    updates = np.random.default_rng(0).standard_normal((6, 5))
    solution = FrameCode(placement, 2).solve(placement.holds, weights=weights)
    assert not solution.exact
    assert solution.error > 0
    np.testing.assert_allclose(
        coded_sum(solution, placement.holds, updates), np.array(weights) @ updates, rtol=0, atol=1e-9
    )
    assert FrameCode(placement, 2).solve(placement.holds, weights=[1.0] * 6).exact


def test_solution_without_finished_work_lacks_every_chunk():
    placement = place(3, [1.0, 1.0], 2)
    solution = FrameCode(placement, 2).solve(np.zeros((2, 3), bool))
    assert solution.short == (0, 1, 2)
    assert solution.needed == frozenset()
    assert solution.error == 1.0
    assert solution.condition == np.inf
    assert decode(solution, {}, 4).tolist() == [0.0] * 4


def test_mix_is_fixed_when_solved():
    placement = place(4, [1.0, 1.0], 2)
    done = placement.holds.copy()
    solution = FrameCode(placement, 2).solve(done)
    before = solution.coefficients(0)
    done[:] = False
    assert solution.coefficients(0) == before


def test_invalid_numbers_are_refused_with_seen_value():
    placement = place(4, [1.0] * 4, 2)
    with pytest.raises(BadPlacement, match="3 blocks: 1 to 2 are possible"):
        FrameCode(placement, 3)
    with pytest.raises(BadPlacement, match="0 blocks"):
        GaussianCode(placement, 0, np.random.default_rng(0))
    code = FrameCode(placement, 2)
    solution = code.solve(placement.holds)
    with pytest.raises(BadPlacement, match="client 4: clients are numbered"):
        solution.coefficients(4)
    with pytest.raises(BadPlacement, match="client -1"):
        solution.column(-1)
    with pytest.raises(BadSetting, match="weights of shape"):
        code.solve(placement.holds, weights=[1.0])
    with pytest.raises(BadSetting, match="correlation 2"):
        code.solve(placement.holds, correlation=2.0)
    with pytest.raises(BadPlacement, match="costs of shape"):
        code.prune(placement.holds, cost=[1.0])
    with pytest.raises(BadPlacement, match="of which it holds no copy"):
        code.solve(np.ones((4, 4), bool))
