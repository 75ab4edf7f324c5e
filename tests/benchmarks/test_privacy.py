"""Test the benchmark of client-level privacy: its clients are uneven, and its noise follows the seed."""

import math

from benchmarks.membership import attack
from benchmarks.privacy import CLIENTS, Case, accuracy_of, task_of


def test_private_run_is_repeated_by_its_seed() -> None:
    case = Case("adaptive", 8.0, 0.3, 2, 0)
    assert accuracy_of(case) == accuracy_of(case) > 0.2


def test_largest_client_has_several_times_samples_of_smallest() -> None:
    sizes = list(task_of(0).sizes().values())
    assert len(sizes) == CLIENTS
    assert max(sizes) >= 5 * min(sizes)


def test_attack_on_unprotected_models_tells_members() -> None:
    """A few shadow models are enough to be right more often than by chance."""
    found = attack(0.0, 4)
    assert found.balanced_accuracy > 0.53
    assert found.model_accuracy > 0.8
    assert found.epsilon == math.inf
