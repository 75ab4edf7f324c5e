"""Test history rows: discarded work is counted, speeds are finite and have a default."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadMessage
from fedgc.history import ClientRow, RoundRow, Speed, Speeds


def row(clients: tuple[ClientRow, ...]) -> RoundRow:
    return RoundRow(
        round=1, version=0, started=0.0, working_s=1.0, collecting_s=1.0, outcome="synced", chunks=4,
        covered=4, short=(), replicas=2, blocks=1, needed=2, amplification=1.0, error=None, loss=0.5,
        samples=40, skips=0, takes=0, pruned=0, repairs=0, reason="every round", clients=clients,
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=5))
def test_discarded_work_was_finished_and_is_in_no_sum(pairs):
    clients = tuple(
        ClientRow(f"client {at}", finished=counted + rest, counted=counted)
        for at, (counted, rest) in enumerate(pairs)
    )
    assert row(clients).discarded == sum(rest for _, rest in pairs)


def test_row_keeps_its_own_read_only_metrics():
    first, second = row(()), row(())
    assert dict(first.metrics) == {}
    with pytest.raises(TypeError):
        first.metrics["loss"] = 1.0
    assert first == second


@pytest.mark.parametrize("name", ["step_s", "spread_s", "failures"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.1])
def test_speed_is_finite_and_not_below_0(name, wrong):
    values = {"step_s": 1.0, name: wrong}
    with pytest.raises(BadMessage, match=f"speed of a: saw {name}={wrong}, needed a finite number"):
        Speed("a", **values)


@pytest.mark.parametrize("name", ["up_bytes_s", "down_bytes_s"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 0.0])
def test_measured_link_has_positive_rate(name, wrong):
    assert getattr(Speed("a", 1.0, **{name: 0.5}), name) == 0.5
    with pytest.raises(BadMessage, match=f"speed of a: saw {name}={wrong}, needed a number above 0, or none"):
        Speed("a", 1.0, **{name: wrong})


def test_step_takes_positive_time():
    with pytest.raises(BadMessage, match="speed of a: saw step_s=0, needed more"):
        Speed("a", 0.0)


@given(known=st.dictionaries(st.sampled_from("abc"), st.floats(1e-6, 1e6)), default=st.floats(1e-6, 1e6))
def test_client_without_history_has_default_speed(known, default):
    speeds = Speeds({client: Speed(client, step_s) for client, step_s in known.items()})
    for client in "abc":
        assert speeds.step_s(client, default) == known.get(client, default)


def test_new_history_is_empty():
    assert not Speeds().known
    assert Speeds().step_s("a", 2.5) == 2.5


def test_steps_of_client_without_counted_update_are_not_counted():
    synced = row((ClientRow("a", finished=4, counted=4), ClientRow("b", finished=2, counted=2)))
    assert [each.counted for each in synced.without_steps_of({"b"}).clients] == [4, 0]
    assert synced.without_steps_of(()) is synced
    skipped = replace(synced, outcome="skipped")
    assert skipped.without_steps_of({"b"}) is skipped
