"""Test byte counts: each byte is settled once."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from fedgc.links.byte_counts import Accounts, Amounts


@given(st.lists(st.integers(0, 100), max_size=30))
def test_amounts_add_up_and_are_settled_once(counts: list[int]) -> None:
    accounts = Accounts()
    for count in counts:
        accounts.add("up_bytes", count)
    assert accounts.settle() == Amounts(up_bytes=sum(counts))
    assert accounts.settle() == Amounts()


def test_amounts_of_another_process_are_taken_over() -> None:
    amounts, accounts = Amounts(1, 2, 3, 0.5, 0.25, 6), Accounts()
    accounts.take_over(amounts)
    assert accounts.settle() == amounts


def test_counting_and_settling_in_two_threads_loses_nothing() -> None:
    accounts, settled = Accounts(), []
    counting = threading.Thread(target=lambda: [accounts.add("up_bytes", 1) for _ in range(5000)])
    counting.start()
    while counting.is_alive():
        settled.append(accounts.settle().up_bytes)
    counting.join()
    assert sum(settled) + accounts.settle().up_bytes == 5000
