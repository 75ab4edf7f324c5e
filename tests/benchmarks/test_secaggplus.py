"""Test that the benchmark drives Flower's SecAgg+ to a correct mean."""

import numpy as np
import pytest

from benchmarks.secaggplus import CLIP, STEPS, PlusSites
from fedgc.errors import NotRecoverable


@pytest.mark.parametrize("lost", [(), (3,), (1, 5)])
def test_mean_over_surviving_clients_is_correct(lost: tuple[int, ...]) -> None:
    plus = PlusSites(5, 3, 1000.0)
    for do in (plus.open, plus.share):
        assert all(do(number) > 0 for number in plus.numbers)
    rng = np.random.default_rng(1)
    updates = {number: rng.normal(0, 0.2, 40).astype(np.float32) for number in plus.numbers}
    uploads = {number: plus.mask(number, updates[number], 100 * number) for number in plus.numbers}
    stay = [number for number in plus.numbers if number not in lost]
    opened = [plus.unlock(number, stay) for number in stay]
    mean = plus.mean(plus.total(uploads[number] for number in stay), opened, stay)
    true = sum(number * updates[number] for number in stay) / sum(stay)
    assert np.abs(mean - true).max() < 100 * len(stay) * CLIP / STEPS


def test_missing_vector_gives_no_sum() -> None:
    with pytest.raises(NotRecoverable, match="saw no vector"):
        PlusSites(3, 3, 1.0).total([])
