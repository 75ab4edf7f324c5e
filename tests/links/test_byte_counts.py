"""Test byte counts: each byte counts in one round and is settled once."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from fedgc.links.byte_counts import KEPT_ROUNDS, Accounts, Amounts


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100)), max_size=30))
def test_byte_counts_of_rounds_add_up_to_total(steps: list[tuple[int, int]]) -> None:
    accounts = Accounts()
    for round_, count in steps:
        accounts.add("up_bytes", count, round_)
    total = sum(count for _, count in steps)
    assert sum(accounts.of(round_).up_bytes for round_ in range(6)) == total
    assert accounts.settle() == Amounts(up_bytes=total)
    assert accounts.settle() == Amounts()


def test_bytes_without_round_count_in_current_round() -> None:
    accounts = Accounts()
    accounts.round = 4
    accounts.add("control_bytes", 7)
    accounts.add("refused", 1)
    assert accounts.of(4) == Amounts(control_bytes=7, refused=1)


def test_amounts_of_another_process_count_in_current_round() -> None:
    amounts, accounts = Amounts(1, 2, 3, 0.5, 0.25, 6), Accounts()
    accounts.round = 2
    accounts.take_over(amounts)
    assert accounts.of(2) == accounts.settle() == amounts


def test_old_rounds_are_forgotten() -> None:
    accounts = Accounts()
    for round_ in range(KEPT_ROUNDS + 1):
        accounts.add("down_bytes", 1, round_)
    assert accounts.of(0) == Amounts()
    assert accounts.of(1) == Amounts(down_bytes=1)


def test_counting_and_settling_in_two_threads_loses_nothing() -> None:
    accounts, settled = Accounts(), []
    counting = threading.Thread(target=lambda: [accounts.add("up_bytes", 1) for _ in range(5000)])
    counting.start()
    while counting.is_alive():
        settled.append(accounts.settle().up_bytes)
    counting.join()
    assert sum(settled) + accounts.settle().up_bytes == 5000
