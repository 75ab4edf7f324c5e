"""Test the background worker: jobs run in order, a few at a time, and the last one always runs."""

import threading
from concurrent.futures import CancelledError

import pytest

from fedgc.flower.background import LARGE_BYTES, MOST_WAITING, BackgroundQueue

OVER = 3  # more than may wait


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def beside(told: list[str]):
    made = BackgroundQueue(told.append)
    yield made
    made.close()


def test_results_and_errors_reach_caller(beside: BackgroundQueue):
    assert beside.submit("sum", 1, lambda: 1 + 1).result() == 2
    with pytest.raises(ZeroDivisionError):
        beside.submit("quotient", 2, lambda: 1 // 0).result()


def test_full_queue_drops_oldest_waiting_job_and_runs_last(beside, told):
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


def test_one_large_model_waits(told):
    begun, go, large = threading.Event(), threading.Event(), BackgroundQueue(told.append, LARGE_BYTES)

    def first() -> None:
        begun.set()
        go.wait()

    large.submit("checkpoint", 0, first)
    begun.wait()
    for number in (1, 2, 3):
        large.submit("checkpoint", number, lambda: None)
    assert [said.split(":")[0] for said in told] == ["round 1", "round 2"]
    go.set()
    large.close()


def test_full_queue_of_one_kind_drops_no_other_kind(beside, told):
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


def test_waiting_jobs_finish_before_close(told):
    done: list[int] = []
    beside = BackgroundQueue(told.append)
    for each in range(MOST_WAITING):
        beside.submit("checkpoint", each, lambda each=each: done.append(each))
    beside.close()
    assert done == list(range(MOST_WAITING))
