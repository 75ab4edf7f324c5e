import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadTask
from fedgc.training.tasks.partition import by_owner, dirichlet, iid


def rng(seed):
    return np.random.default_rng(seed)


def is_a_partition(chunks, samples):
    return sorted(np.concatenate(chunks).tolist()) == list(range(samples)) and all(map(len, chunks))


@given(st.integers(1, 200), st.data(), st.integers(0, 9))
def test_iid_assigns_samples_evenly(samples, data, seed):
    chunks = iid(samples, data.draw(st.integers(1, samples)), rng(seed))
    assert is_a_partition(chunks, samples)
    sizes = [len(chunk) for chunk in chunks]
    assert max(sizes) - min(sizes) <= 1


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=120),
    st.data(),
    st.floats(0.01, 100),
    st.integers(0, 9),
)
def test_dirichlet_assigns_every_sample_and_no_chunk_is_empty(labels, data, alpha, seed):
    count = data.draw(st.integers(1, len(labels)))
    chunks = dirichlet(np.array(labels), count, alpha, rng(seed))
    assert len(chunks) == count
    assert is_a_partition(chunks, len(labels))


@given(st.lists(st.text(max_size=2), min_size=1, max_size=60))
def test_owner_partition_keeps_every_sample_with_owner(owners):
    held = by_owner(owners)
    assert list(held) == list(dict.fromkeys(owners))
    assert is_a_partition(list(held.values()), len(owners))
    assert all(owners[sample] == owner for owner, chunk in held.items() for sample in chunk)


def test_partition_depends_only_on_seed():
    labels = np.arange(60) % 3
    for cut in (lambda seed: iid(60, 4, rng(seed)), lambda seed: dirichlet(labels, 4, 0.5, rng(seed))):
        first, again, other = cut(1), cut(1), cut(2)
        assert all(map(np.array_equal, first, again))
        assert not all(map(np.array_equal, first, other))


def skew(chunks, labels):
    """Mean over chunks of the share of the commonest label."""
    return np.mean([np.bincount(labels[chunk]).max() / len(chunk) for chunk in chunks])


def test_small_alpha_skews_labels_and_large_alpha_does_not():
    labels = np.arange(4000) % 10
    assert skew(dirichlet(labels, 8, 0.05, rng(0)), labels) > 0.5
    assert skew(dirichlet(labels, 8, 1000.0, rng(0)), labels) < 0.2


@pytest.mark.parametrize("chunks", [0, 4])
def test_more_chunks_than_samples_are_refused(chunks):
    with pytest.raises(BadTask, match=f"saw {chunks} chunks of 3 samples"):
        iid(3, chunks, rng(0))
    with pytest.raises(BadTask, match=f"saw {chunks} chunks of 3 samples"):
        dirichlet(np.zeros(3), chunks, 1.0, rng(0))


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_alpha_is_refused(alpha):
    with pytest.raises(BadTask, match="alpha"):
        dirichlet(np.zeros(3), 2, alpha, rng(0))


def test_missing_owners_are_refused():
    with pytest.raises(BadTask, match="no samples"):
        by_owner([])
