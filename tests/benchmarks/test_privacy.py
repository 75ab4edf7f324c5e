"""Test the benchmark of client-level privacy: its clients are uneven, and its noise follows the seed."""

import numpy as np
import pytest

from benchmarks.membership import guesses, halves
from benchmarks.privacy import CLIENTS, Case, accuracy_of, task_of


def test_private_run_is_repeated_by_its_seed() -> None:
    case = Case("adaptive", 8.0, 0.3, 2, 0)
    assert accuracy_of(case) == accuracy_of(case) > 0.2


def test_largest_client_has_several_times_samples_of_smallest() -> None:
    sizes = list(task_of(0).sizes().values())
    assert len(sizes) == CLIENTS
    assert max(sizes) >= 5 * min(sizes)


@pytest.mark.parametrize(("shift", "least", "most"), [(0.0, 0.45, 0.53), (2.0, 0.8, 0.86)])
def test_attack_tells_members_as_far_as_scores_differ(shift: float, least: float, most: float) -> None:
    """For unit variance the best guess is right with the probability Phi(shift / 2)."""
    members = halves(40)
    rng = np.random.default_rng(0)
    said = guesses(rng.standard_normal(members.shape) + shift * members, members)
    assert least < (said[members].mean() + (~said[~members]).mean()) / 2 < most
    assert (members.sum(0) == 20).all(), "each record is in half of the models"
