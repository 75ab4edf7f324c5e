"""Test the page's snapshot against the rows of the store."""

import json
import math
import time
from dataclasses import asdict, replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.config import RunConfig
from fedgc.errors import Unusable
from fedgc.history import BestModel, ClientRow
from fedgc.store.explanation import explain
from fedgc.store.records import Appended, Audited, Begun, Decided, Ended, Evaluated, Present, Scored
from fedgc.store.work import settled
from fedgc.web import fleet as room
from fedgc.web.fleet import Wanted
from fedgc.web.json_values import as_json
from fedgc.web.measures import MOST_MEASURES
from fedgc.web.snapshot import one_round, picture, thinned
from tests.web.run_of_four import MODEL_BYTES, NAMES, START, round_of, tell_a_run


def test_snapshot_shows_progress_of_current_round(told):
    now = picture(told, Wanted()).now
    assert (now.run, now.state, now.round, now.phase, now.covered, now.chunks) == (
        "spring", "running", 13, "working", 9, 16,
    )  # fmt: skip
    assert (now.clients, now.present) == (4, 3)
    assert now.finished == dict.fromkeys(NAMES, 5)


def test_snapshot_totals_equal_sum_of_rounds(told):
    rounds, totals = told.rounds("spring"), picture(told, Wanted()).totals
    assert (totals.rounds, totals.wanted, totals.model_bytes) == (len(rounds), 99, MODEL_BYTES)
    assert (totals.finished, totals.counted) == settled(rounds, local=False)
    assert totals.skipped == sum(each.row.outcome == "skipped" for each in rounds)
    assert totals.median_s == pytest.approx(
        median(each.row.working_s + each.row.collecting_s for each in rounds)
    )
    assert totals.measure == "accuracy"


def test_snapshot_series_holds_every_round_of_short_run(told):
    series, rounds = picture(told, Wanted()).series, told.rounds("spring")
    assert series.first == series.last == tuple(each.row.round for each in rounds)
    assert series.loss == tuple(each.row.loss for each in rounds)
    assert series.metrics["accuracy"] == tuple(each.row.metrics.get("accuracy") for each in rounds)
    work = [settled([each], local=False) for each in rounds]
    assert series.counted == tuple(counted for _, counted in work)
    assert series.discarded == tuple(finished - counted for finished, counted in work)
    assert series.plain_bytes == tuple(2 * MODEL_BYTES * each.clients for each in rounds)


def test_snapshot_has_limited_number_of_measures(told):
    run = told.run("latest")
    for number in (1, 2):
        many = {f"{number}-{each}": 0.5 for each in range(MOST_MEASURES)}
        told.write(Evaluated(START, run.run, number, {"accuracy": 0.5, "zeal": 0.5, **many}))
    seen = picture(told, Wanted())
    assert {"accuracy", "zeal"} <= seen.series.metrics.keys()
    assert len(seen.series.metrics) == MOST_MEASURES
    assert seen.totals.measure == "accuracy"


def test_client_is_shown_with_recent_work_and_plan(told):
    lines = {each.name: each for each in picture(told, Wanted()).fleet.lines}
    slow, dead = lines["slow"], lines["dead"]
    assert (slow.present, slow.load, slow.finished, slow.counted) == (True, 3, 27, 18)
    assert slow.step_s == pytest.approx(0.08)
    assert (dead.present, dead.load, dead.failures, dead.rounds) == (False, None, 1, 3)
    assert [cell and cell.failure for cell in dead.strip] == ["", "", "lost", *[None] * 9]
    assert [cell.finished - cell.counted for cell in slow.strip if cell] == [1] * 12


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("name", ["dead", "quick", "slow", "steady"]),
        ("speed", ["slow", "steady"]),
        ("discarded", ["slow", "dead"]),
        ("faults", ["dead"]),
        ("counted", ["quick", "steady", "slow"]),
        ("seen", ["dead"]),
    ],
)
def test_clients_are_sorted_as_requested(told, sort: str, names: list[str]):
    lines = picture(told, Wanted(sort=sort)).fleet.lines
    assert [each.name for each in lines][: len(names)] == names


def test_clients_are_found_by_name_key_and_site(told):
    for find, found in (("QUI", 1), ("bb", 1), ("north", 4), ("nobody", 0)):
        fleet = picture(told, Wanted(find=find)).fleet
        assert (fleet.found, len(fleet.lines), fleet.clients) == (found, found, 4)


def test_measures_of_clients_do_not_depend_on_search(told):
    told.write(Scored(START, "spring", 12, "aa", 10, {"accuracy": 0.5}))
    for find in ("", "quick", "nobody"):
        assert picture(told, Wanted(find=find)).fleet.measures == ("accuracy",)


def test_large_fleet_is_paged(empty):
    clients = [ClientRow(f"{n:03d}", 2, 2, 8, 0.1, 0.01) for n in range(120)]
    empty.write(Begun(START, "wide", {"task": "digits"}))
    empty.write(Appended(START + 5, "wide", round_of(1, clients=clients)))
    seen = []
    for page in range(3):
        fleet = picture(empty, Wanted(page=page)).fleet
        assert (fleet.page, fleet.clients, fleet.screen) == (page, 120, room.SCREEN)
        seen += [each.client for each in fleet.lines]
    assert seen == [f"{n:03d}" for n in range(120)]
    assert picture(empty, Wanted(page=99)).fleet.page == 2


def test_plans_show_expected_and_actual_times(told):
    newest, first = picture(told, Wanted()).plans
    took = {each.row.round: each.row.working_s + each.row.collecting_s for each in told.rounds("spring")}
    assert (newest.round, newest.band_s, newest.predicted_s) == (4, (1.1, 1.6), 1.3)
    assert newest.took_s == pytest.approx(median(took[number] for number in range(4, 13)))
    assert first.took_s == pytest.approx(median(took[number] for number in range(1, 4)))
    assert (first.band_s, first.predicted_s) == (None, None)
    assert newest.reason == "16 chunks, because of slow: 0.08 s"


def test_faults_and_record_name_client(told):
    shown = picture(told, Wanted())
    assert [(each.round, each.name, each.failure) for each in shown.faults] == [(3, "dead", "lost")]
    assert [(each.kind, each.name) for each in shown.record] == [("joined", "quick")]


def test_run_without_round_has_snapshot(empty):
    empty.write(Begun(START, "new", {"task": "digits"}))
    shown = picture(empty, Wanted())
    assert (shown.series.last, shown.fleet.lines, shown.totals.median_s, shown.plans) == ((), (), None, ())
    json.loads(as_json(shown))


def test_newest_run_is_shown_and_all_are_listed(told):
    tell_a_run(told, "summer", 2)
    told.write(Begun(START + 9, "autumn", {"task": "digits"}))
    told.write(Ended(START + 10, "autumn", "failed", "no clients"))
    shown = picture(told, Wanted())
    assert (shown.now.run, shown.now.state, shown.now.reason) == ("autumn", "failed", "no clients")
    assert {each.run for each in shown.runs} == {"spring", "summer", "autumn"}
    assert picture(told, Wanted(run="summer")).totals.rounds == 2


def test_state_of_other_version_is_shown_where_understood(told):
    told.write(Present(START + 99, "spring", {"clients": ["aa", {"name": "x"}], "round": "many"}))
    now = picture(told, Wanted()).now
    assert (now.round, now.clients, now.phase) == (0, 0, "")


def test_round_shows_every_working_client(told):
    found = one_round(told, "spring", 3)
    assert {each.name for each in found.bars} == set(NAMES.values())
    assert [each.row for each in found.bars] == sorted(
        told.client_rows("spring", 3), key=lambda row: (-row.busy_s, row.client)
    )
    assert not found.folded
    told.fold(keep_rounds=1)
    assert one_round(told, "spring", 3).round.clients == 4


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda store: picture(store, Wanted(run="sprung")), "did you mean spring"),
        (lambda store: one_round(store, "spring", 99), "saw no round 99"),
        (lambda store: Wanted(sort="sped"), "did you mean speed"),
        (lambda store: Wanted(page=-1), "needed 0 or more"),
    ],
)
def test_missing_resource_is_named(told, ask, sentence: str):
    with pytest.raises(Unusable, match=sentence):
        ask(told)


ROWS = st.lists(
    st.builds(
        ClientRow,
        client=st.text("abcdef", min_size=1, max_size=8),
        busy_s=st.floats(0, 9),
        failure=st.sampled_from(["", "", "lost"]),
    ),
    max_size=30,
    unique_by=lambda row: row.client,
)


@given(rows=ROWS, most=st.integers(2, 40))
def test_thinned_round_keeps_longest_shortest_and_failures(rows: list[ClientRow], most: int):
    kept = thinned(rows, most)
    assert len(kept) <= max(most, 0)
    assert [row.busy_s for row in kept] == sorted((row.busy_s for row in kept), reverse=True)
    assert {row.client for row in kept} <= {row.client for row in rows}
    assert len({row.client for row in kept}) == len(kept)
    assert len(kept) == min(len(rows), most)
    failed = sum(bool(row.failure) for row in rows)
    assert sum(bool(row.failure) for row in kept) >= min(failed, most // 2)


def test_round_of_mostly_failed_clients_shows_each_other_one_once():
    failed = [ClientRow(f"failed {each}", busy_s=each, failure="lost") for each in range(100)]
    others = [ClientRow(f"other {each}", busy_s=each) for each in range(10)]
    kept = [row.client for row in thinned([*failed, *others], 60)]
    assert len(set(kept)) == 60
    assert {row.client for row in others} <= set(kept)


@given(
    st.recursive(
        st.none() | st.floats() | st.integers() | st.text(),
        lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
    )
)
def test_snapshot_is_json_readable_by_browsers(value):
    read = json.loads(as_json({"value": value}), parse_constant=lambda word: pytest.fail(word))
    if isinstance(value, float) and math.isfinite(value):
        assert read["value"] == pytest.approx(value, rel=1e-4, abs=1e-300)


def test_snapshot_shows_sample_share_and_refused_clients(told):
    refused = ClientRow("stranger", refused=1, failure="chunk x: saw 11 samples, others have 10")
    row = replace(round_of(98, clients=[refused]), known_samples=120, counted_samples=80, left_out="1 client")
    told.write(Appended(START + 500.0, "spring", row))
    told.write(Appended(START + 501.0, "spring", replace(round_of(99, "skipped"), left_out="1 client")))
    seen = picture(told, Wanted())
    assert (seen.totals.coverage, seen.totals.left_out) == (pytest.approx(2 / 3), "1 client")
    assert ("stranger", 1) in {(each.client, each.refused) for each in seen.faults}


def test_unknown_sample_share_is_omitted(told):
    assert picture(told, Wanted()).totals.coverage is None


def test_crash_and_resume_are_faults_on_record(told):
    settings = dict(told.run("spring").settings)
    told.write(Begun(START + 900.0, "spring", settings))
    seen = picture(told, Wanted())
    assert [(each.round, each.client, each.failure) for each in seen.faults if each.round is None] == [
        (None, "server", "the server crashed")
    ]
    assert [each.kind for each in seen.record[:2]] == ["resumed", "crash"]
    told.write(Ended(START + 901.0, "spring", "stopped", "it was asked to"))
    told.write(Begun(START + 902.0, "spring", settings))
    crashes = [each for each in picture(told, Wanted()).faults if each.round is None]
    assert len(crashes) == 1, "a run that was stopped has not crashed"


def test_refusal_outside_round_is_fault_with_its_reason(told):
    told.write(Audited(START + 5.0, "refused", "ee", "chunk x: saw 11 samples, others have 10", "spring"))
    fault = picture(told, Wanted()).faults[0]
    assert (fault.round, fault.client, fault.refused) == (None, "ee", 1)
    assert fault.failure == "chunk x: saw 11 samples, others have 10"


def test_failed_app_is_fault_with_its_error(told):
    told.write(Audited(START + 5.0, "app failed", "node 7", "No module named pandas", "spring"))
    fault = picture(told, Wanted()).faults[0]
    assert (fault.client, fault.failure, fault.refused) == ("node 7", "No module named pandas", 0)


def test_settings_different_from_defaults_come_first(told):
    seen = picture(told, Wanted())
    assert seen.work == "coded"
    changed = [each.name for each in seen.settings if not each.usual]
    assert changed == ["rounds", "work"]
    assert [each.name for each in seen.settings[:2]] == changed
    assert len(seen.settings) == len(RunConfig().table())


def test_time_left_is_estimated_for_running_run(told):
    assert picture(told, Wanted()).totals.left_s is None, "silent for years"
    told.write(Present(time.time(), "spring", {}))
    totals = picture(told, Wanted()).totals
    assert totals.left_s == pytest.approx((99 - 12) * totals.median_s)
    told.write(Ended(START + 901.0, "spring", "completed", ""))
    assert picture(told, Wanted()).totals.left_s is None


def test_snapshot_shows_figures_of_clients_and_best_model(told):
    client = next(key for key, name in NAMES.items() if name == "slow")
    for number, value in ((0, 0.1), (11, 0.7)):
        told.write(Scored(START, "spring", number, client, 10, {"accuracy": value}))
    best = BestModel("accuracy", 9, 11, 0.7)
    before = picture(told, Wanted()).plans
    told.write(Decided(START, "spring", 11, "best", {**asdict(best)}))
    shown = picture(told, Wanted())
    lines = {each.name: each for each in shown.fleet.lines}
    assert (lines["slow"].metrics, lines["slow"].scored) == ({"accuracy": 0.7}, 11)
    assert (lines["quick"].metrics, lines["quick"].scored) == ({}, None)
    assert shown.totals.best == best
    assert shown.plans == before
    assert '"metrics":{"accuracy":0.7}' in as_json(shown)


def test_snapshot_shows_queue_without_old_entries(told):
    for number in range(8):
        told.queue.add(f"run-{number}", "/apps/ward", {}, number % 2, 1000.0)
    for number in range(6):
        entry = told.queue.take({}, 1001.0)
        told.queue.finish(entry.id, "failed", "no disk", 1002.0 + number)
    told.queue.take({}, 1010.0)
    queue = picture(told, Wanted()).queue
    assert [(each.run, each.state) for each in queue[:2]] == [("run-4", "running"), ("run-6", "waiting")]
    assert [each.run for each in queue[2:]] == ["run-2", "run-0", "run-7", "run-5", "run-3"]
    assert {each.reason for each in queue[2:]} == {"no disk"}


def test_snapshot_explains_run_as_status_does(told):
    why = picture(told, Wanted()).now.why
    assert why == explain(told, told.run(), time.time()).lines
    assert why[0].startswith("no record for ")
