"""Test the benchmark of client-level privacy: its clients are uneven, and its noise follows the seed."""

from benchmarks.privacy import CLIENTS, Case, accuracy_of, task_of


def test_private_run_is_repeated_by_its_seed() -> None:
    case = Case("adaptive", 8.0, 0.3, 2, 0)
    assert accuracy_of(case) == accuracy_of(case) > 0.2


def test_largest_client_has_several_times_samples_of_smallest() -> None:
    sizes = list(task_of(0).sizes().values())
    assert len(sizes) == CLIENTS
    assert max(sizes) >= 5 * min(sizes)
