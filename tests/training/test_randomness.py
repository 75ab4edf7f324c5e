import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgc.training.randomness import draws, key, permutation, restored, seeded

WORD = st.one_of(st.integers(), st.text(max_size=5))
KEY = st.integers(0, 2**64 - 1)


def splitmix(start, count):
    """The generator as published, one number at a time."""
    state, numbers = start, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        numbers.append(z ^ (z >> 31))
    return numbers


@given(KEY, st.integers(0, 20), st.integers(0, 40))
def test_draws_equal_splitmix_from_any_position(start, first, count):
    assert draws(start, first, count).tolist() == splitmix(start, first + count)[first:]


@given(st.lists(WORD, max_size=4), st.lists(WORD, max_size=4))
def test_keys_of_different_words_differ(one, other):
    assert (key(*one) == key(*other)) == (one == other)


@given(KEY, st.integers(0, 50))
def test_permutation_holds_every_number_once(start, count):
    assert sorted(permutation(start, count).tolist()) == list(range(count))


def test_permutations_are_uniform():
    """Each of the six orders of three things comes up about as often."""
    orders = [tuple(permutation(key(i), 3).tolist()) for i in range(6000)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert max(abs(count - 1000) for count in counts) < 150  # five standard deviations


def test_seeding_covers_global_generators_and_restores_state():
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002  the legacy generator is what is looked at
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002  the legacy generator is what is looked at

    def exchange(start):
        with seeded(start):
            return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002, S311  the legacy generator is what is looked at

    first, other, again = exchange(2**64 - 1), exchange(3), exchange(2**64 - 1)
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002  the legacy generator is what is looked at


def test_state_is_restored_after_many_seeded_blocks():
    before = random.getstate()
    with restored():
        for start in (1, 2):
            with seeded(start):
                random.random()  # noqa: S311  the generator is what is looked at
        assert random.getstate() != before
    assert random.getstate() == before
