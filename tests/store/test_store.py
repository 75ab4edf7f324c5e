"""Test the store on every database: written rows are read back equal."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from fedgc.config import RunConfig
from fedgc.errors import BadMessage, FedgcError, Unusable
from fedgc.history import WINDOW as LOOKED_BACK
from fedgc.history import ClientRow, Speeds
from fedgc.store.database import Store
from fedgc.store.records import Appended, Audited, Begun, Decided, Ended, Evaluated, Present, Scored, Seen
from fedgc.store.tables import WINDOW

START = 1_700_000_000.0
SETTINGS = {"task": "digits", "rounds": 3, "learning_rate": 0.1}


def begin(store: Store, run: str = "r1", now: float = START, task: str = "digits") -> None:
    store.write(Begun(now, run, {**SETTINGS, "task": task}))


def test_run_is_read_back_with_begin_and_end(store):
    begin(store)
    store.write(Present(START + 1, "r1", {"round": 0, "finished": [1, 2], "loss": math.nan}))
    store.write(Ended(START + 9, "r1", "finished", "all rounds done"))
    run = store.run()
    assert (run.run, run.task, run.state, run.reason) == ("r1", "digits", "finished", "all rounds done")
    assert (run.started, run.ended, run.heard) == (START, START + 9, START + 9)
    assert dict(run.settings) == SETTINGS
    assert dict(run.present) == {"round": 0, "finished": [1, 2], "loss": None}
    assert (run.rounds, run.last_round) == (0, None)


def test_resumed_run_stays_one_run(store, a_row):
    begin(store)
    store.write(Appended(START + 5, "r1", a_row(0)))
    store.write(Ended(START + 9, "r1", "stopped"))
    begin(store, now=START + 100)
    (run,) = store.runs()
    assert (run.state, run.started, run.ended, run.rounds, run.last_round) == ("running", START, None, 1, 0)


def test_round_after_return_to_earlier_model_removes_later_ones(store, a_row, a_client):
    begin(store)
    for number in range(1, WINDOW + 9):
        store.write(Appended(START + 10 * number, "r1", a_row(number, a_client())))
        store.write(Scored(START + 10 * number, "r1", number, "a", 5, {"accuracy": 0.1}))
    store.write(Appended(START + 999, "r1", a_row(3, a_client(step_s=0.5), started=990.0)))
    assert [each.row.round for each in store.rounds("r1")] == [1, 2, 3]
    assert [each.round for each in store.scores("r1")] == [1, 2]
    (pace,) = store.paces()
    assert (pace.rounds, pace.finished, pace.trend) == (3, 12, (0.5,)), "no round before is in the ring"
    for number in range(4, WINDOW + 9):
        store.write(Appended(START + 2000, "r1", a_row(number, a_client(), started=990.0 + number)))
    (pace,) = store.paces()
    assert (pace.rounds, len(pace.trend)) == (WINDOW + 8, WINDOW)
    assert store.check().faults == ()


def test_rounds_that_are_written_late_remove_none(store, a_row, a_client):
    begin(store)
    for number in (1, 3, 4, 2):
        store.write(Appended(START + 100, "r1", a_row(number, a_client())))
    assert [each.row.round for each in store.rounds("r1")] == [1, 2, 3, 4]


def test_rounds_and_client_rows_are_read_back(store, a_row, a_client):
    clients = (
        a_client("a"),
        a_client("b", failure="ValueError: no", step_s=None, finished=0, counted=0, spread_s=None),
        ClientRow("c", up_bytes=1 << 40),
    )
    told = a_row(4, *clients, short=(3, 5), outcome="approximate", error=None, metrics={"accuracy": 0.5})
    begin(store)
    store.write(Appended(START + 60, "r1", told))
    (read,) = store.rounds("r1")
    assert read.row == replace(told, clients=())
    assert store.client_rows("r1", 4) == clients
    assert (read.clients, read.finished, read.counted) == (3, 4, 3)
    assert read.up_bytes == 2000 + (1 << 40)
    assert store.client_history("r1", "b") == ((4, clients[1]),)


def test_rounds_are_read_from_given_position(store, a_row):
    begin(store)
    for number in range(5):
        store.write(Appended(START + number, "r1", a_row(number)))
    assert [each.row.round for each in store.rounds("latest", after=2)] == [3, 4]
    assert [each.row.round for each in store.rounds("r1", limit=2)] == [0, 1]


def test_repeated_round_counts_once(store, a_row, a_client):
    begin(store)
    store.write(Appended(START + 5, "r1", a_row(0, a_client("a"), a_client("b"))))
    store.write(Appended(START + 6, "r1", a_row(0, a_client("a", counted=1), a_client("c"), loss=0.25)))
    (read,) = store.rounds()
    assert (read.row.loss, read.clients) == (0.25, 2)
    assert [row.client for row in store.client_rows("r1", 0)] == ["a", "c"]
    totals = {pace.client.client: (pace.rounds, pace.finished, pace.counted) for pace in store.paces()}
    assert totals == {"a": (1, 4, 1), "b": (1, 0, 0), "c": (1, 4, 3)}
    assert sorted(store.speeds().known) == ["a", "c"]


def test_last_rounds_of_task_include_run_and_clients(store, a_row, a_client):
    for run, task, number in (("r1", "digits", 1), ("other", "text", 1), ("r2", "digits", 7)):
        begin(store, run, task=task)
        store.write(Appended(START + number, run, a_row(number, a_client("a"), a_client("b"))))
    store.write(Appended(START + 9, "r2", a_row(8, a_client("a"), outcome="skipped")))
    told = store.speeds("digits").recent
    assert [(each.run, each.row.round) for each in told] == [("r1", 1), ("r2", 7)]
    assert [row.client for row in told[1].row.clients] == ["a", "b"]
    for number in range(9, 9 + 2 * LOOKED_BACK):
        store.write(Appended(START + number, "r2", a_row(number, a_client("a"))))
    last = [each.row.round for each in store.speeds("digits").recent]
    assert last == list(range(9 + LOOKED_BACK, 9 + 2 * LOOKED_BACK))


def test_last_rounds_have_replays_of_their_plan(store, a_row, a_client):
    """The newest plan counts; the round after a skipped one had less to do than was predicted."""
    for run in ("r1", "other"):
        begin(store, run)
        for number, basis in (
            (1, {}),
            (2, {"replay_s": 2.5}),
            (4, {"replay_s": 3.0}),
            (7, {"replay_s": "?"}),
        ):
            store.write(Decided(START, run, number, "plan", basis, "why"))
        store.write(Decided(START, run, 3, "gate", {"replay_s": 9.0}, "why"))
    for number in range(1, 8):
        outcome = "skipped" if number == 5 else "synced"
        store.write(Appended(START + number, "r1", a_row(number, a_client("a"), outcome=outcome)))
    told = {each.row.round: each.replay_s for each in store.speeds().recent}
    assert told == {1: None, 2: 2.5, 3: 2.5, 4: 3.0, 6: None, 7: None}


def test_ring_holds_last_rounds_despite_repeats(store, a_row, a_client):
    begin(store)
    for number in range(WINDOW + 3):
        row = a_row(number, a_client("a", step_s=1.0 + number))
        store.write(Appended(START + 1000 + number, "r1", row))
        store.write(Appended(START + 1000 + number, "r1", row))
    (pace,) = store.paces()
    assert pace.trend == tuple(1.0 + number for number in range(3, WINDOW + 3))
    assert pace.rounds == WINDOW + 3


def test_evaluation_metrics_join_round_metrics(store, a_row):
    begin(store)
    store.write(Appended(START + 5, "r1", a_row(0, metrics={"accuracy": 0.5})))
    store.write(Evaluated(START + 6, "r1", 0, {"loss": 0.1, "broken": math.inf}))
    metrics = store.rounds()[0].row.metrics
    assert (metrics["accuracy"], metrics["loss"]) == (0.5, 0.1)
    assert math.isnan(metrics["broken"])


def test_client_keeps_place_and_history(store):
    store.write(Seen(START, "key1", name="ward-3", site="north", link="session"))
    store.write(Seen(START + 50, "key1", link="messages"))
    (client,) = store.clients()
    assert (client.client, client.name, client.site, client.link) == ("key1", "ward-3", "north", "messages")
    assert (client.first_seen, client.last_seen) == (START, START + 50)


def test_client_time_is_on_server_clock(store, a_row, a_client):
    begin(store)
    store.write(Appended(START + 5, "r1", a_row(0, a_client("new"), started=9e15)))
    (client,) = store.clients()
    assert (client.name, client.first_seen, client.last_seen) == ("new", START + 5, START + 5)


def test_decisions_record_choice_alternatives_and_reason(store):
    begin(store)
    decided = Decided(START + 1, "r1", 2, "blocks", {"candidates": [1, 2]}, "uploads are short")
    store.write(decided, stamp="s1")
    store.write(decided, stamp="s1")
    assert store.decisions() == (decided,)


def test_audit_is_read_in_order_and_stamp_is_written_once(store):
    begin(store)
    first = Audited(START, "joined", "a", "with key 12ab", "r1")
    second = Audited(START + 1, "refused", "b", "a foreign token")
    for record, stamp in ((first, "s1"), (second, "s2"), (first, "s1")):
        store.write(record, stamp)
    assert store.audited() == (first, second)
    assert store.audited("r1") == (first,)
    assert store.audited(limit=1) == (second,)


@pytest.mark.parametrize("change", ["UPDATE audit SET who = 'x'", "DELETE FROM audit"])
def test_audit_is_immutable(store, change):
    store.write(Audited(START, "joined", "a", "with key 12ab"))
    refusal = pytest.raises(FedgcError, match="the audit is only ever added to")
    with refusal, store._database.writing() as connection:
        connection.exec_driver_sql(change)
    assert [each.who for each in store.audited()] == ["a"]


@pytest.mark.parametrize(
    "record",
    [Evaluated(START, "none", 0, {}), Present(START, "none", {}), Ended(START, "none", "finished")],
)
def test_row_without_run_is_refused(store, record):
    begin(store)
    with pytest.raises(BadMessage, match="needed one that has begun"):
        store.write(record)


def test_round_without_run_is_refused_and_leaves_nothing(store, a_row, a_client):
    with pytest.raises(BadMessage, match="needed one that has begun"):
        store.write(Appended(START, "none", a_row(0, a_client("a"))))
    assert store.clients() == ()


def test_wrong_run_name_is_answered_with_nearest(store):
    with pytest.raises(Unusable, match="saw no run yet"):
        store.run()
    begin(store, "spring-run")
    with pytest.raises(Unusable, match="did you mean spring-run"):
        store.rounds("spring-rum")
    with pytest.raises(Unusable, match="saw no run"):
        store.run("x" * 5000)


def test_text_unsuitable_for_database_is_cleaned(store, a_row, a_client):
    begin(store)
    row = a_row(0, a_client("a", failure="bad\x00 \ud800" + "x" * 999), reason="nul\x00")
    store.write(Appended(START + 5, "r1", row))
    (read,) = store.client_rows("r1", 0)
    assert read.failure.startswith("bad ?xxx")
    assert len(read.failure) == 400
    assert store.rounds()[0].row.reason == "nul"


def test_round_with_overflowing_sample_count_is_kept(store, a_row):
    begin(store)
    claimed = 10**15 * 40_000  # as many chunks as one client may announce, each of as many samples as it may
    row = a_row(0, samples=claimed, known_samples=claimed, counted_samples=claimed)
    store.write(Appended(START + 5, "r1", row))
    (kept,) = [each.row for each in store.rounds("r1")]
    assert kept.samples == kept.known_samples == kept.counted_samples > 10**18


def test_history_outlives_run_and_process(url, a_row, a_client):
    if url == "sqlite://":
        pytest.skip("a database in memory ends with its process")
    with Store.open(url) as store:
        begin(store)
        store.write(Appended(START + 5, "r1", a_row(0, a_client("a"))))
    with Store.open(url) as store:
        begin(store, "r2", START + 100)
        assert store.speeds().known["a"].step_s == 0.1
        assert [run.run for run in store.runs()] == ["r2", "r1"]
        assert [client.client for client in store.clients()] == ["a"]


def test_speeds_are_separate_per_task(store, a_row, a_client):
    begin(store, "r1", START, "digits")
    store.write(Appended(START + 5, "r1", a_row(0, a_client("a", step_s=0.1))))
    begin(store, "r2", START + 50, "tabular")
    store.write(Appended(START + 55, "r2", a_row(0, a_client("a", step_s=0.4))))
    assert store.speeds("digits").known["a"].step_s == 0.1
    assert store.speeds().known["a"].step_s == 0.4
    assert store.speeds("unheard-of") == Speeds()


def test_impossible_claim_brings_no_additional_work(store, a_row, a_client):
    begin(store)
    for number in range(4):
        lies = [a_client(f"liar-{step}", step_s=step) for step in (0.0, -1.0, 1e-9, 1e9, math.nan, math.inf)]
        row = a_row(number, a_client("quick"), a_client("slow", step_s=0.5), *lies)
        store.write(Appended(START + 5 + number, "r1", row))
    speeds = store.speeds()
    slowest = max(speed.step_s for speed in speeds.known.values())
    for client, speed in speeds.known.items():
        if client.startswith("liar"):
            assert (speed.step_s, speed.failures) == (slowest, 1.0)
    assert {pace.implausible for pace in store.paces() if pace.client.client.startswith("liar")} == {8}
    assert speeds.known["quick"].failures == 0.0


@pytest.mark.parametrize(("set_back_s", "struck"), [(0.0, 3), (5 * 3600.0, 0)])
def test_clock_that_is_set_back_makes_no_claim_false(store, a_row, a_client, set_back_s, struck):
    begin(store)
    now = START + 60 - set_back_s
    carried = a_client("a", busy_s=90.0, step_s=80.0)  # its time from before the run, or while it was longer
    store.write(Appended(now, "r1", a_row(0, carried, a_client("b"))))
    assert [(pace.client.client, pace.implausible) for pace in store.paces()] == [("a", struck), ("b", 0)]


def test_newest_run_began_last_also_where_clock_was_set_back(store):
    begin(store, "r1", START + 5 * 3600)
    begin(store, "r2", START)
    assert store.run("latest").run == "r2"
    assert [run.run for run in store.runs()] == ["r2", "r1"]


def test_single_false_report_does_not_move_speed(store, a_row, a_client):
    begin(store)
    for number in range(9):
        step = 1e-5 if number == 4 else 0.1
        store.write(Appended(START + 5 + number, "r1", a_row(number, a_client("a", step_s=step))))
    assert store.speeds().known["a"].step_s == 0.1


def test_folding_keeps_totals_and_speeds(store, a_row, a_client):
    begin(store)
    rounds = WINDOW + 20
    for number in range(rounds):
        failure = "lost" if number < 5 else ""
        row = a_row(number, a_client("a", step_s=0.1 + number / 100, failure=failure), a_client("b"))
        store.write(Appended(START + 1000 + number, "r1", row))
    paces, speeds, read = store.paces(), store.speeds(), store.rounds()
    assert store.fold(keep_rounds=10) == 2 * (rounds - WINDOW)
    assert store.fold(keep_rounds=10) == 0
    assert (store.paces(), store.speeds(), store.rounds()) == (paces, speeds, read)
    assert store.client_rows("r1", 0) == ()
    health = store.check()
    assert (health.client_rounds, health.folded, health.faults) == (2 * WINDOW, 2 * (rounds - WINDOW), ())


def test_folding_twice_adds_up(store, a_row, a_client):
    begin(store)
    for number in range(WINDOW + 30):
        store.write(Appended(START + number, "r1", a_row(number, a_client("a"))))
        if number == WINDOW + 10:
            assert store.fold(keep_rounds=1) == 11
    assert store.fold(keep_rounds=1) == 19
    assert store.check().folded == 30


def test_client_with_only_summaries_is_known(store, a_row, a_client):
    begin(store)
    for number in range(WINDOW + 2):
        step = 0.2 if number < 2 else None
        done = 4 if number < 2 else 0
        row = a_client("a", step_s=step, finished=done, counted=done, spread_s=None)
        store.write(Appended(START + 5 + number, "r1", a_row(number, row)))
    assert "a" not in store.speeds().known
    store.fold(keep_rounds=1)
    speed = store.speeds().known["a"]
    assert (speed.step_s, speed.rounds) == (pytest.approx(0.2), 2)


def test_keeping_zero_rounds_folds_nothing(store):
    with pytest.raises(Unusable, match="needed at least 1"):
        store.fold(0)


def test_store_without_run_is_empty(store):
    assert (store.runs(), store.clients(), store.paces(), store.speeds()) == ((), (), (), Speeds())
    assert store.check().faults == ()
    store.vacuum()


def test_file_that_is_replaced_is_opened_anew(tmp_path: Path):
    """As by a backup that is restored: a page that runs on shows what is in it."""
    path, backup = tmp_path / "fedgc.db", tmp_path / "backup.db"
    for file, run in ((path, "one"), (backup, "two")):
        with Store.open(str(file)) as store:
            store.write(Begun(1000.0, run, RunConfig().table()))
    with Store.open(str(path), reads_only=True) as reader, Store.open(str(path)) as writer:
        assert [each.run for each in reader.runs()] == [each.run for each in writer.runs()] == ["one"]
        path.unlink()
        assert [each.run for each in reader.runs()] == ["one"], "nothing is there to open"
        backup.replace(path)
        assert [each.run for each in reader.runs()] == ["two"]
        writer.write(Begun(1001.0, "three", RunConfig().table()))
        assert {each.run for each in reader.runs()} == {"two", "three"}
