"""Test the store's queries for the page against slow references that read every row."""

from collections.abc import Callable

import pytest

from fedgc.errors import Unusable
from fedgc.history import ClientRow, RoundRow
from fedgc.store.database import Store
from fedgc.store.records import Appended, Begun, Decided, Ended, Evaluated, Present, Seen
from fedgc.store.work import settled

START = 1_700_000_000.0
OUTCOMES = ("synced", "skipped", "approximate", "empty")


def begin(store: Store, run: str = "r1", now: float = START) -> None:
    store.write(Begun(now, run, {"task": "digits"}))


@pytest.fixture
def told(store: Store, a_row: Callable[..., RoundRow], a_client: Callable[..., ClientRow]) -> Store:
    """Twenty-three rounds of three clients: one fails now and then, one leaves after the tenth."""
    begin(store)
    for number in range(1, 24):
        clients = [
            a_client("a", finished=number, up_bytes=1 << 33),
            a_client("b", failure="lost" if number % 7 == 0 else "", refused=int(number == 9)),
        ]
        clients += [a_client("c")] if number <= 10 else []
        changes = {"outcome": OUTCOMES[number % 4], "loss": None if number % 5 == 0 else number / 10}
        metrics = {"accuracy": number / 100} if number % 3 == 0 else {}
        metrics |= {"epsilon": number / 10} if number != 5 else {}
        row = a_row(number, *clients, **changes, metrics=metrics)
        store.write(Appended(START + number, "r1", row))
    store.write(Seen(START, "a", "ward-a", "north"))
    begin(store, "r0", START - 100)
    store.write(Appended(START - 99, "r0", a_row(1, a_client("a"), a_client("z", failure="of another run"))))
    return store


@pytest.mark.parametrize("most", [1, 2, 3, 5, 12, 240])
def test_stretches_add_up_to_rounds(told: Store, most: int):
    stretches, rounds = told.stretches("r1", most), told.rounds("r1")
    assert len(stretches) <= most
    covered = [number for each in stretches for number in range(each.first, each.last + 1)]
    assert covered == [each.row.round for each in rounds]
    for each in stretches:
        inside = [one for one in rounds if each.first <= one.row.round <= each.last]
        outcomes = [one.row.outcome for one in inside]
        skipped = [one for one in inside if one.row.outcome == "skipped"]
        losses = [one.row.loss for one in inside if one.row.loss is not None]
        measured = {name: value for one in inside for name, value in one.row.metrics.items()}
        assert each.rounds == len(inside)
        assert each.working_s == pytest.approx(sum(one.row.working_s for one in inside))
        assert each.collecting_s == pytest.approx(sum(one.row.collecting_s for one in inside))
        for name in ("clients", "up_bytes", "down_bytes", "control_bytes"):
            assert getattr(each, name) == sum(getattr(one, name) for one in inside)
        assert (each.finished, each.counted) == settled(inside, local=False)
        assert (each.synced, each.approximate) == (outcomes.count("synced"), outcomes.count("approximate"))
        assert each.skipped == len(skipped)
        assert each.skipped_bytes == sum(one.up_bytes + one.control_bytes for one in skipped)
        assert each.skipped_clients == sum(one.clients for one in skipped)
        assert each.loss == (pytest.approx(sum(losses) / len(losses)) if losses else None)
        assert dict(each.metrics) == measured, "the newest value of each measure"


def test_run_without_rounds_has_no_strips(store: Store):
    begin(store)
    assert store.stretches() == ()
    assert store.lately("r1", 10) == store.faults("r1", 10) == store.strips("r1", ["a"], 10) == ()


@pytest.mark.parametrize("rounds", [1, 5, 14, 100])
def test_recent_client_activity_is_sum_of_newest_rows(told: Store, rounds: int):
    lately = {each.client: each for each in told.lately("r1", rounds)}
    first = max(1, 24 - rounds)
    for client in ("a", "b", "c"):
        history = told.client_history("r1", client, after=first - 1)
        rows = [row for _, row in history]
        if not rows:
            assert client not in lately
            continue
        each = lately[client]
        assert each.rounds == len(rows)
        assert each.failures == sum(bool(row.failure) for row in rows)
        assert each.busy_s == pytest.approx(sum(row.busy_s for row in rows))
        for name in ("steps", "up_bytes", "down_bytes", "control_bytes", "refused"):
            assert getattr(each, name) == sum(getattr(row, name) for row in rows)
        settling = [row for number, row in history if OUTCOMES[number % 4] != "skipped"]
        for name in ("finished", "counted"):
            assert getattr(each, name) == sum(getattr(row, name) for row in settling)
    assert "z" not in lately


def test_skipped_rounds_of_local_work_count(
    store: Store, a_row: Callable[..., RoundRow], a_client: Callable[..., ClientRow]
):
    store.write(Begun(START, "r1", {"task": "digits", "work": "local"}))
    store.write(Appended(START, "r1", a_row(1, a_client("a"), outcome="skipped")))
    (row,), (whole,) = store.rounds("r1"), store.stretches("r1", 1)
    assert (whole.finished, whole.counted) == (row.finished, row.counted) != (0, 0)
    lately = store.lately("r1", 1)
    assert sum(each.finished for each in lately) == row.finished


def test_strips_hold_rows_of_requested_clients_only(told: Store):
    strips = told.strips("r1", ["a", "c", "nobody"], 16)
    expected = [
        (number, row)
        for number in range(8, 24)
        for row in told.client_rows("r1", number)
        if row.client in ("a", "c")
    ]
    assert list(strips) == expected
    assert {row.client for _, row in strips} == {"a", "c"}


def test_faults_are_named_newest_first(told: Store):
    assert [(number, row.client) for number, row in told.faults("r1", 100)] == [
        (21, "b"),
        (14, "b"),
        (9, "b"),
        (7, "b"),
    ]
    assert [number for number, _ in told.faults("r1", 100, limit=2)] == [21, 14]
    assert [number for number, _ in told.faults("r1", 10)] == [21, 14]


def test_rows_between_rounds_belong_to_each_round(told: Store):
    expected = [(number, row) for number in range(9, 13) for row in told.client_rows("r1", number)]
    assert list(told.client_rounds("r1", 9, 12)) == expected


def test_only_requested_last_decisions_are_read(store: Store):
    begin(store)
    for number in range(5):
        store.write(Decided(START + number, "r1", number, "plan", {}, f"plan {number}"))
    assert [each.reason for each in store.decisions(limit=2)] == ["plan 3", "plan 4"]


def test_every_change_updates_heartbeat(store: Store, a_row, a_client):
    begin(store)
    seen = [store.pulse()]
    news = [
        Present(START + 1, "r1", {"round": 1}),
        Appended(START + 2, "r1", a_row(1, a_client("a"))),
        Evaluated(START + 2, "r1", 1, {"accuracy": 0.5}),
        Decided(START + 2, "r1", 2, "plan", {}, "speeds changed"),
        Appended(START + 2, "r1", a_row(2, a_client("a"))),
        Ended(START + 2, "r1", "completed"),
    ]
    for record in news:
        store.write(record)
        seen.append(store.pulse())
        assert store.pulse() == seen[-1]
    assert len(set(seen)) == len(seen)
    begin(store, "r2", START + 9)
    assert (store.pulse().run, store.pulse("r1")) == ("r2", seen[-1])
    assert (store.pulse().last_round, store.pulse("r1").last_round) == (None, 2)
    with pytest.raises(Unusable, match="did you mean r1"):
        store.pulse("r11")


def test_thousand_clients_are_shown_with_state(store: Store):
    begin(store)
    clients = [
        {
            "client": f"{n:016x}",
            "name": f"site-north-client-{n}",
            "present": True,
            "finished": 12,
            "link": "session",
        }
        for n in range(1000)
    ]
    store.write(Present(START, "r1", {"clients": clients}))
    assert len(store.run().present["clients"]) == 1000
