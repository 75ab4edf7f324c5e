"""Test whole rounds from placement to sum, with failures, steering, lost uploads and repairs."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.codewords import encode
from fedgc.codes import (
    FrameCode,
    GaussianCode,
    RunningSum,
    adopt,
    next_chunk,
    orders_for_round,
    place,
    repair,
)

SIZE = 23


class Fleet:
    """Clients that finish chunks in a random interleaving, and may die."""

    def __init__(self, code, rng):
        self.code, self.rng = code, rng
        self.placement = code.placement
        self.updates = rng.standard_normal((self.placement.chunks, SIZE))
        self.done = np.zeros((self.placement.clients_w, self.placement.chunks), bool)
        self.alive = np.ones(self.placement.clients_w, bool)

    def codeword(self, chunks, matrix, w):
        assert self.alive[w]
        held = {int(chunk): self.updates[chunk] for chunk in np.flatnonzero(self.done[w])}
        return encode(chunks, matrix, held)

    def counted(self):
        return self.done & self.alive[:, None]

    def work(self, steer):
        """Work until every chunk has enough replicas on live clients, or no client has work left."""
        left = [list(order) for order in orders_for_round(self.placement, int(self.rng.integers(1000)))]
        while (replicas := self.counted().sum(axis=0)).min() < self.code.blocks:
            able = [v for v in np.flatnonzero(self.alive) if left[v]]
            if not able:
                return False
            w = int(self.rng.choice(able))
            chunk = next_chunk(replicas, 0 * replicas, left[w], self.code.blocks) if steer else left[w][0]
            if chunk is None:
                left[w] = []
                continue
            left[w].remove(chunk)
            self.done[w, chunk] = True
            self.maybe_die(0.02)
        return True

    def maybe_die(self, chance):
        if self.rng.random() < chance and self.alive.sum() > 1:
            self.alive[self.rng.choice(np.flatnonzero(self.alive))] = False


def add_in_pieces(total, weights, codeword, rng):
    cuts = sorted(rng.integers(0, codeword.size + 1, 2).tolist())
    pieces = list(zip([0, *cuts], [*cuts, codeword.size], strict=True))
    for index in rng.permutation(len(pieces)):
        start, end = pieces[index]
        total.add(weights, codeword[start:end], start)


def collect(fleet, solution, total, lose):
    """Collect every (column, chunk) term once; lost terms are repaired by others or trained again."""
    rng = fleet.rng
    asked = [(w, w, solution.coefficients(w)) for w in sorted(solution.needed)]
    while asked:
        column, w, terms = asked.pop(int(rng.integers(len(asked))))
        if fleet.alive[w] and rng.random() >= lose:
            codeword = fleet.codeword(terms.chunks, terms.matrix, w)
            add_in_pieces(total, solution.column(column).tolist(), codeword, rng)
            continue
        fleet.alive[w] = fleet.alive[w] and fleet.alive.sum() == 1
        counted = fleet.counted()
        counted[w] = False
        again = repair(column, terms, counted)
        asked += [(column, part.helper, part.coefficients) for part in again.parts]
        if again.missing.chunks:
            holders = fleet.placement.holds[:, list(again.missing.chunks)] & fleet.alive[:, None]
            holders[column] = False
            if not holders.any(axis=0).all():
                return False
            for chunk, helper in zip(again.missing.chunks, holders.argmax(axis=0), strict=True):
                fleet.done[helper, chunk] = True
            asked += [
                (column, part.helper, part.coefficients)
                for part in repair(column, again.missing, fleet.counted()).parts
            ]
    return True


@given(
    clients_w=st.integers(2, 10),
    chunks=st.integers(1, 14),
    seed=st.integers(0, 100_000),
    kind=st.sampled_from(["frame", "gaussian", "adopted"]),
    steer=st.booleans(),
    lose=st.sampled_from([0.0, 0.1, 0.3]),
    data=st.data(),
)
@settings(max_examples=150)
def test_sum_is_exact_or_round_reports_gap_after_any_loss(clients_w, chunks, seed, kind, steer, lose, data):
    rng = np.random.default_rng(seed)
    replicas = data.draw(st.integers(1, clients_w))
    placement = place(chunks, rng.choice([1.0, 0.4], clients_w).tolist(), replicas)
    if kind == "adopted":
        placement = adopt([set(order) for order in placement.orders], chunks)
    blocks = data.draw(st.integers(1, replicas))
    code = GaussianCode(placement, blocks, rng) if kind == "gaussian" else FrameCode(placement, blocks)
    fleet = Fleet(code, rng)
    covered = fleet.work(steer)
    solution = code.solve(code.prune(fleet.counted()) if data.draw(st.booleans()) else fleet.counted())
    assert solution.exact == covered
    if not covered:
        assert set(solution.short) == set(np.flatnonzero(fleet.counted().sum(axis=0) < blocks))
        return
    total = RunningSum(SIZE, blocks)
    if collect(fleet, solution, total, lose):
        scale = max(1.0, solution.condition) * max(1.0, np.abs(solution.matrix_bw).max())
        np.testing.assert_allclose(
            total.total(), fleet.updates.sum(axis=0), rtol=0, atol=1e-8 * scale * chunks
        )
