"""Test injected samples: which client gives which samples at which step, equally on every client."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgc.messages import Pool
from fedgc.training.data import batch_rows
from fedgc.training.injection import injected_rows, pool_chunks
from fedgc.training.randomness import key

SIZES = {f"c{at}": 20 + at for at in range(6)}
HOLDERS = (("a", ("c0", "c1")), ("b", ("c2", "c3")), ("c", ("c4", "c5")))
BATCH = 12


def sample(name: str, row: int) -> str:
    return f"{name}:{row}"


def named(pool: Pool, rows: np.ndarray) -> list[str]:
    everywhere = [sample(name, row) for name in pool_chunks(pool) for row in range(SIZES[name])]
    return [everywhere[row] for row in rows]


def own_batch(holder: str, size: int, step: int, seed: int) -> list[str]:
    """Slow reference: the draws of a client without a pool and with a batch of this size."""
    held = [sample(name, row) for name in dict(HOLDERS)[holder] for row in range(SIZES[name])]
    return [held[row] for row in batch_rows(len(held), size, step, key(seed, holder, "order"))]


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 50), st.integers(0, 2**32))
def test_batch_is_own_samples_and_first_of_every_giver(givers, given_, step, seed):
    pool = Pool(givers, given_, HOLDERS)
    own = BATCH - givers * given_
    gifts = {}
    for client, _ in HOLDERS:
        found = named(pool, injected_rows(pool, SIZES, (seed, client), step, BATCH))
        assert found[:own] == own_batch(client, own, step, seed)
        gifts[client] = found[own:]
    first = gifts["a"]
    assert gifts == dict.fromkeys("abc", first), "all get the same"
    parts = [first[at : at + given_] for at in range(0, len(first), given_)]
    possible = [own_batch(holder, own, step, seed)[:given_] for holder, _ in HOLDERS]
    assert len(parts) == givers
    assert all(part in possible for part in parts)
    assert len({tuple(part) for part in parts}) == givers, "nobody gives twice"


def test_clients_contribute_equally_often_over_steps():
    pool = Pool(1, 1, HOLDERS)
    turns = np.zeros(3)
    for step in range(300):
        (gift,) = named(pool, injected_rows(pool, SIZES, (0, "a"), step, BATCH))[BATCH - 1 :]
        turns[[gift.split(":")[0] in names for _, names in HOLDERS].index(True)] += 1
    assert (abs(turns - 100) < 4 * np.sqrt(300 * 2 / 9)).all(), "four standard deviations"


def test_chunk_with_two_holders_counts_once():
    assert pool_chunks(Pool(1, 1, (("a", ("c0", "c1")), ("b", ("c1", "c2"))))) == ("c0", "c1", "c2")
