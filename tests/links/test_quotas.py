"""Test the limits of one client, on a virtual clock: rates, bursts, and pauses that grow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import NotAdmitted
from fedgc.links.quotas import (
    CALM_S,
    FIRST_PAUSE_S,
    LEAST_BURST_BYTES,
    LONGEST_PAUSE_S,
    MOST_CHUNKS,
    MOST_JOINS,
    MOST_REFUSALS,
    Bucket,
    Quotas,
    Spent,
)
from fedgc.links.session.channel import KEPT_BYTES


@given(
    st.floats(0.1, 1e4),
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0.0, 10.0), st.integers(1, 200)), max_size=60),
)
def test_bucket_gives_rate_times_time_and_one_burst(per_s, burst, asked) -> None:
    bucket, now, taken = Bucket(per_s, burst), 0.0, 0
    for pause_s, amount in asked:
        now += pause_s
        taken += amount if bucket.take(amount, now) else 0
        assert taken <= (burst + per_s * now) * (1 + 1e-9)


def test_bucket_refuses_nothing_within_rate() -> None:
    bucket = Bucket(8.0, 1.0)
    assert all(bucket.take(1.0, at / 8.0) for at in range(1000))


def test_bucket_of_standing_clock_is_empty_after_its_burst() -> None:
    bucket = Bucket(10.0, 3.0)
    assert [bucket.take(1.0, 5.0) for _ in range(4)] == [True, True, True, False]


def test_lines_beyond_rate_and_burst_are_named() -> None:
    quotas = Quotas(lines_per_s=10.0)
    assert not quotas.spend("a", Spent(lines=100), 0.0)
    assert quotas.spend("a", Spent(lines=1), 0.0) == (
        "it sent more than 10 lines a second, and more than 100 at once"
    )
    assert not quotas.spend("b", Spent(lines=1), 0.0), "another client has its own"
    assert not quotas.spend("a", Spent(lines=10), 1.0)


def test_burst_of_bytes_covers_all_that_session_keeps() -> None:
    quotas = Quotas(bytes_per_s=1.0)
    assert LEAST_BURST_BYTES > KEPT_BYTES
    assert not quotas.spend("a", Spent(size_bytes=KEPT_BYTES), 0.0)
    assert "bytes of lines" in quotas.spend("a", Spent(size_bytes=KEPT_BYTES), 1.0)


def test_joins_refusals_and_chunks_are_limited() -> None:
    quotas = Quotas()
    for _ in range(int(MOST_JOINS)):
        assert not quotas.spend("a", Spent(joins=1, chunks=MOST_CHUNKS), 0.0)
    assert "30 joins a minute" in quotas.spend("a", Spent(joins=1), 0.0)
    assert not quotas.spend("a", Spent(joins=1), 2.0)
    assert not quotas.spend("b", Spent(refusals=int(MOST_REFUSALS)), 0.0)
    assert "1 messages to refuse a second" in quotas.spend("b", Spent(refusals=1), 0.0)
    told = quotas.spend("c", Spent(joins=1, chunks=MOST_CHUNKS + 1), 0.0)
    assert told == "it announced 20001 chunks, needed at most 20000"


def test_excluded_client_is_admitted_after_pause() -> None:
    quotas = Quotas()
    quotas.check("a", 0.0)
    assert quotas.exclude("a", "too much", 10.0) == FIRST_PAUSE_S
    with pytest.raises(NotAdmitted, match="client a is excluded for 4 s more: too much"):
        quotas.check("a", 11.0)
    quotas.check("b", 11.0)
    quotas.check("a", 10.0 + FIRST_PAUSE_S)


def test_pause_doubles_up_to_limit_and_begins_again_after_calm() -> None:
    quotas, now, pauses = Quotas(), 0.0, []
    for _ in range(9):
        pauses.append(quotas.exclude("a", "", now))
        now += pauses[-1]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert quotas.exclude("a", "", now + CALM_S - 1) == LONGEST_PAUSE_S
    assert quotas.exclude("a", "", now + 2 * CALM_S + LONGEST_PAUSE_S) == FIRST_PAUSE_S


def test_excluded_client_returns_with_full_buckets() -> None:
    quotas = Quotas(lines_per_s=1.0)
    assert not quotas.spend("a", Spent(lines=10), 0.0)
    quotas.exclude("a", "", 0.0)
    assert not quotas.spend("a", Spent(lines=10), 0.0)
