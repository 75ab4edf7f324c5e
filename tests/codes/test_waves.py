"""Test the waves of work: each chunk has one client that begins with it, and then another one."""

import numpy as np
import pytest

from fedgc.codes import adopt, in_waves, orders_for_round, place
from fedgc.sim import Fedgc
from fedgc.sim.clock import MODELS, UNCONTENDED


def waves_of(clients: int, pieces: int, replicas: int, seed: int) -> tuple[tuple[int, ...], ...]:
    placement = place(clients * pieces, [1.0] * clients, replicas, seed=seed)
    return in_waves(placement, orders_for_round(placement, seed), [1.0] * clients)


@pytest.mark.parametrize(("clients", "replicas"), [(8, 2), (50, 4), (50, 8), (23, 5)])
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_each_wave_of_equal_clients_has_every_chunk(clients, replicas, pieces, seed):
    orders = waves_of(clients, pieces, replicas, seed)
    for wave in range(2):
        begun = [chunk for order in orders for chunk in order[wave * pieces : (wave + 1) * pieces]]
        assert sorted(begun) == list(range(clients * pieces))


@pytest.mark.parametrize("seed", range(5))
def test_waves_keep_chunks_of_each_client(seed):
    speeds = np.random.default_rng(seed).uniform(0.1, 3.0, 17).tolist()
    placement = place(60, speeds, 3, seed=seed)
    orders = orders_for_round(placement, seed)
    found = in_waves(placement, orders, speeds)
    assert [sorted(order) for order in found] == [sorted(order) for order in orders]
    assert found == in_waves(placement, orders, speeds)


def test_fast_client_begins_with_more_chunks():
    placement = place(12, [1.0, 1.0, 2.0], 3)
    first, second, fast = in_waves(placement, orders_for_round(placement, 0), [1.0, 1.0, 2.0])
    assert sorted((*first[:3], *second[:3], *fast[:6])) == list(range(12))


def test_client_continues_with_last_chunks_of_others():
    """Two clients hold four chunks: one begins where the other ends."""
    placement = place(4, [1.0, 1.0], 2)
    one, other = in_waves(placement, orders_for_round(placement, 0), [1.0, 1.0])
    assert one[2:] == other[1::-1]
    assert other[2:] == one[1::-1]


def test_chunk_of_single_holder_is_not_last():
    """A client that alone has most chunks does them before it helps others."""
    placement = adopt([[0, 1, 2, 3, 4], [4, 5], [4, 5]], 6)
    first, *_ = in_waves(placement, orders_for_round(placement, 0), [1.0] * 3)
    assert first[-1] == 4


def test_clients_without_shared_chunks_keep_their_order():
    placement = adopt([[0, 1], [2, 3]], 4)
    orders = orders_for_round(placement, 3)
    assert in_waves(placement, orders, [1.0, 5.0]) == orders


@pytest.mark.parametrize(("replicas", "pieces", "blocks"), [(4, 1, 1), (8, 1, 1), (8, 10, 1), (4, 1, 2)])
def test_round_without_stragglers_takes_no_longer_than_its_work(replicas, pieces, blocks):
    calm = MODELS["homogeneous"](50, 3, np.random.default_rng(0))
    played = Fedgc(replicas, pieces, blocks).play(calm, UNCONTENDED)
    assert [result.seconds for result in played] == pytest.approx([blocks * 1.0] * 3)
