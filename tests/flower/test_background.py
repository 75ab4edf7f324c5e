"""What is done beside the rounds: in order, a few at a time, and the last of them always."""

import threading
from concurrent.futures import CancelledError

import pytest

from fedgc.flower.background import MOST_WAITING, Beside

OVER = 3  # more than may wait


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def beside(told: list[str]):
    made = Beside(told.append)
    yield made
    made.close()


def test_results_and_errors_reach_whoever_asks(beside: Beside):
    assert beside.submit("sum", 1, lambda: 1 + 1).result() == 2
    with pytest.raises(ZeroDivisionError):
        beside.submit("quotient", 2, lambda: 1 // 0).result()


def test_where_it_is_too_slow_the_oldest_that_waits_is_left_out_and_the_last_is_done(beside, told):
    begun, go, done = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        go.wait()

    slow = beside.submit("evaluation", 0, first)
    begun.wait()
    many = [
        beside.submit("evaluation", each, lambda each=each: done.append(each))
        for each in range(MOST_WAITING + OVER)
    ]
    assert len(told) == OVER
    assert all(f"round {each}: its evaluation is left out" in said for each, said in enumerate(told))
    go.set()
    slow.result()
    many[-1].result()
    assert done == list(range(OVER, MOST_WAITING + OVER))
    with pytest.raises(CancelledError):
        many[0].result()


def test_many_of_one_kind_push_out_none_of_another(beside, told):
    begun, go = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        go.wait()

    beside.submit("checkpoint", 0, first)
    begun.wait()
    only = beside.submit("evaluation", 1, lambda: "measured")
    for each in range(MOST_WAITING + OVER):
        beside.submit("checkpoint", each, int)
    go.set()
    assert only.result() == "measured"
    assert len(told) == OVER


def test_all_that_waits_is_done_before_it_is_closed(told):
    done: list[int] = []
    beside = Beside(told.append)
    for each in range(MOST_WAITING):
        beside.submit("checkpoint", each, lambda each=each: done.append(each))
    beside.close()
    assert done == list(range(MOST_WAITING))
