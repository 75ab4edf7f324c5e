"""Test rounds with stock clients as values, with a clock controlled by the test."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadMessage
from fedgc.flower.stock_rounds import (
    FIRST_DEADLINE_S,
    FRUITLESS_DEADLINES,
    LEAST_ANSWERS,
    LEAST_DEADLINE_S,
    Aggregate,
    Ask,
    Closed,
    StockRounds,
    StockState,
    Trained,
    staleness_weight,
)
from fedgc.run.outputs import Finished
from tests.config_of import config_of

TEN = Trained(10.0)


def stock(resume: StockState | None = None, **settings) -> StockRounds:
    return StockRounds(
        config_of({"work": "coded", "rounds": 3, "min_clients": 2, "deadline_s": 20.0, **settings}),
        0.0,
        resume,
    )


def of(outputs, kind: type) -> list:
    return [each for each in outputs if isinstance(each, kind)]


def test_round_asks_every_client_and_ends_with_last_answer() -> None:
    machine = stock()
    assert machine.nodes_seen(1.0, [1]) == ()
    assert machine.nodes_seen(2.0, [1, 2]) == (Ask(1, 1, 0), Ask(2, 1, 0))
    assert machine.answered(3.0, 1, 1, Trained(10.0, 0.5)) == (Aggregate(1, 0, 10.0),)
    used, closed, *asks = machine.answered(4.0, 2, 1, Trained(30.0, 1.0))
    assert used == Aggregate(2, 0, 30.0)
    assert (closed.version, closed.weight) == (1, 40.0)
    assert (closed.row.outcome, closed.row.samples, closed.row.loss) == ("synced", 40, 0.875)
    assert [row.busy_s for row in closed.row.clients] == [1.0, 2.0]
    assert asks == [Ask(1, 2, 1), Ask(2, 2, 1)]


def test_late_answer_joins_next_round_with_lower_weight() -> None:
    machine = stock()
    machine.nodes_seen(0.0, [1, 2])
    machine.answered(1.0, 1, 1, TEN)
    assert machine.tick(19.0) == ()
    (closed, *asks) = machine.tick(20.0)
    assert (closed.row.outcome, closed.version) == ("approximate", 1)
    assert {row.client: row.failure for row in closed.row.clients} == {"node-1": "", "node-2": "not in time"}
    assert asks == [Ask(1, 2, 1)]
    assert machine.versions == {0, 1}, "from the older model somebody still trains"
    assert machine.answered(22.0, 2, 1, TEN) == (Aggregate(2, 0, 10.0 / math.sqrt(2)),)
    assert machine.versions == {1}
    (_, closed, *asks) = machine.answered(23.0, 1, 2, TEN)
    assert closed.row.outcome == "synced"
    assert "late" in next(row.failure for row in closed.row.clients if row.client == "node-2")
    assert [ask.node for ask in asks] == [1, 2]


def test_round_without_free_client_ends_with_late_answer() -> None:
    machine = stock(rounds=9)
    machine.nodes_seen(0.0, [1, 2])
    machine.failed(1.0, 1, 1, "code 2")
    assert not of(machine.tick(30.0), Closed), "nobody has answered: it waits longer"
    assert of(machine.answered(31.0, 2, 1, TEN), Closed)


def test_failed_or_vanished_node_is_not_awaited() -> None:
    machine = stock()
    machine.nodes_seen(0.0, [1, 2, 3])
    machine.failed(1.0, 1, 1, "code 2")
    machine.nodes_seen(2.0, [1, 2])
    (_, closed, *asks) = machine.answered(3.0, 2, 1, TEN)
    failures = {row.client: row.failure for row in closed.row.clients}
    assert failures == {"node-1": "code 2", "node-2": "", "node-3": "lost"}
    assert [ask.node for ask in asks] == [1, 2]
    assert machine.answered(4.0, 3, 1, TEN) == (), "what is gone is not heard"


def test_old_message_of_returned_node_is_not_heard() -> None:
    machine = stock()
    machine.nodes_seen(0.0, [1, 2])
    machine.nodes_seen(1.0, [1])
    machine.nodes_seen(2.0, [1, 2])
    assert Ask(2, 2, 1) in machine.answered(3.0, 1, 1, TEN)
    assert machine.answered(4.0, 2, 1, TEN) == ()
    assert machine.failed(5.0, 2, 1, "code 3") == ()
    assert machine.answered(6.0, 2, 2, TEN) == (Aggregate(2, 1, 10.0),)


def test_deadline_is_long_until_speeds_are_known() -> None:
    machine = stock(**{"deadline_s": "auto"}, rounds=99)
    machine.nodes_seen(0.0, [1, 2])
    now = 0.0
    for _ in range(LEAST_ANSWERS // 2):
        now += 4.0
        round_ = machine.number
        machine.answered(now, 1, round_, TEN)
        machine.answered(now, 2, round_, TEN)
    machine.answered(now + 1.0, 1, machine.number, TEN)
    assert not of(machine.tick(now + 9.9), Closed)
    assert of(machine.tick(now + 10.1), Closed)
    fresh = stock(**{"deadline_s": "auto"})
    fresh.nodes_seen(0.0, [1, 2])
    fresh.answered(1.0, 1, 1, TEN)
    assert not fresh.tick(FIRST_DEADLINE_S - 1.0)
    assert fresh.tick(FIRST_DEADLINE_S)


def test_run_ends_after_its_rounds_or_without_progress() -> None:
    machine = stock(rounds=1)
    machine.nodes_seen(0.0, [1, 2])
    machine.answered(1.0, 1, 1, TEN)
    assert machine.answered(1.0, 2, 1, TEN)[-1] == Finished("1 round done", True)
    idle = stock(rounds=1)
    idle.nodes_seen(0.0, [1])
    idle.nodes_seen(0.0, [1, 2])
    idle.failed(1.0, 1, 1, "no labels")
    said = "node-1 and 1 more: no labels; 1 round done, and no work was ever counted"
    assert idle.failed(1.0, 2, 1, "no labels")[-1] == Finished(said, False)
    barren = stock()
    barren.nodes_seen(0.0, [1, 2])
    for round_ in (1, 2, 3):
        now = 20.0 * round_
        barren.tick(now)
        barren.failed(now, 1, round_, "code 2, it raised")
        barren.failed(now, 2, round_, "code 2, it raised")
    assert not barren.finished.complete
    assert barren.finished.reason == "node-1 and 1 more: code 2, it raised; 3 rounds in a row gave nothing"
    few = stock(**{"start_timeout_s": 5.0, "min_clients": 2})
    assert few.nodes_seen(1.0, [1]) == ()
    assert few.nodes_seen(5.0, [1])[-1] == Finished(
        "waited 5 s for 2 clients, saw 1; min-clients = 1 begins with them", False
    )
    lonely = stock(**{"start_timeout_s": 5.0})
    assert lonely.nodes_seen(1.0, []) == ()
    assert "needed" not in lonely.nodes_seen(5.0, [])[0].reason
    assert not lonely.finished.complete


def test_next_round_waits_after_one_that_gave_nothing_at_once() -> None:
    machine = stock()
    machine.nodes_seen(0.0, [1, 2])
    machine.failed(1.0, 1, 1, "the SuperLink did not take the message")
    (closed,) = machine.failed(1.0, 2, 1, "the SuperLink did not take the message")
    assert closed.row.outcome == "empty"
    assert machine.tick(LEAST_DEADLINE_S + 0.9) == ()
    assert machine.tick(LEAST_DEADLINE_S + 1.0) == (Ask(1, 2, 0), Ask(2, 2, 0))


def test_answer_in_pause_begins_round_in_which_it_counts() -> None:
    machine = stock(deadline_s=10.0)
    machine.nodes_seen(0.0, [1, 2])
    empty_at = FRUITLESS_DEADLINES * 10.0
    (closed,) = machine.tick(empty_at)
    assert closed.row.outcome == "empty"
    outputs = machine.answered(empty_at + 5.0, 1, 1, TEN)
    assert of(outputs, Aggregate) == [Aggregate(1, 0, 10.0)]
    (closed,) = of(outputs, Closed)  # the other one owes an answer of round 1
    assert (closed.row.outcome, closed.row.round, closed.version) == ("synced", 2, 1)
    assert of(outputs, Ask) == [Ask(1, 3, 1)]


def test_resumed_run_starts_at_next_round() -> None:
    first = stock()
    first.nodes_seen(0.0, [1, 2])
    first.answered(4.0, 1, 1, TEN)
    first.answered(5.0, 2, 1, TEN)
    state = first.state()
    second = stock(resume=state)
    assert second.nodes_seen(0.0, [1, 2]) == (Ask(1, 2, 1), Ask(2, 2, 1))
    assert state == StockState(2, 1, (4.0, 5.0))
    over = stock(resume=StockState(4, 3, ()))
    assert over.nodes_seen(0.0, [1, 2]) == (Finished("3 rounds done", True),)


@pytest.mark.parametrize("examples", [0.0, -1.0, math.nan, math.inf, 1e308, 1.1e15])
def test_answer_without_plausible_example_count_is_refused(examples: float) -> None:
    with pytest.raises(BadMessage, match="num-examples"):
        Trained(examples)


STEPS = st.tuples(st.sampled_from("afgt"), st.integers(1, 4), st.floats(0.0, 9.0), st.sampled_from((0, -1)))


def played(machine: StockRounds, steps) -> list:
    """Return the outputs; a node answers, or fails in, the oldest or the newest message that it got."""
    asked = {node: [] for node in (1, 2, 3, 4)}
    now, new, outputs = 0.0, machine.nodes_seen(0.0, [1, 2, 3, 4]), []
    for what, node, wait_s, which in steps:
        outputs += new
        for ask in of(new, Ask):
            asked[ask.node].append(ask)
        now += wait_s
        if what == "g":
            new = machine.nodes_seen(now, [1, 2, 3, 4][:node])
        elif what == "t" or not asked[node]:
            new = machine.tick(now)
        elif what == "f":
            new = machine.failed(now, node, asked[node].pop(which).round, "code 2")
        else:
            ask = asked[node].pop(which)
            new = machine.answered(now, node, ask.round, TEN)
            assert {each.version for each in of(new, Aggregate)} <= {ask.version}
    return [*outputs, *new]


@given(st.lists(STEPS, max_size=60))
def test_requests_are_used_at_most_once_and_rounds_are_ordered(steps) -> None:
    outputs, owed = played(stock(rounds=5), steps), {}
    weight = 0.0
    rounds = []
    for each in outputs:
        match each:
            case Ask(node, _, version):
                owed[node] = version
            case Aggregate(node, version, w):
                assert owed.pop(node) == version
                assert 0 < w <= 10.0
                weight += w
            case Closed(row, _, total):
                assert total == pytest.approx(weight)
                weight = 0.0
                rounds.append(row.round)
    assert rounds == list(range(1, len(rounds) + 1))
    assert len(of(outputs, Finished)) <= 1


def test_answer_weight_decreases_with_model_age() -> None:
    weights = [staleness_weight(age) for age in range(10)]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] == 1.0
