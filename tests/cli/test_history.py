"""Test `fedgc speeds`, `fedgc status` and `fedgc store` on a store with two runs."""

import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.cli.history import must_be_over
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.history import ClientRow, RoundRow
from fedgc.store.database import Store
from fedgc.store.records import Appended, Audited, Begun, Decided, Ended, Evaluated, Present, Scored, Seen

FAST, SLOW = "aa" * 8, "bb" * 8


def round_row(number: int, slow_s: float) -> RoundRow:
    clients = (
        ClientRow(FAST, finished=8, counted=8, step_s=0.01, spread_s=0.001, up_bytes=2_000_000, upload_s=1.0),
        ClientRow(
            SLOW, finished=4, counted=2, step_s=slow_s, spread_s=0.01, failure="lost" if number == 2 else ""
        ),
    )
    return RoundRow(
        round=number,
        version=number - 1,
        started=1000.0 + number,
        working_s=1.0,
        collecting_s=0.5,
        outcome="synced",
        chunks=8,
        covered=8,
        short=(),
        replicas=2,
        blocks=2,
        needed=2,
        amplification=1.5,
        error=None,
        loss=0.5,
        samples=80,
        skips=3,
        takes=2,
        pruned=1,
        repairs=0,
        reason="every round",
        clients=clients,
    )


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "fedgc.db"
    monkeypatch.setenv("FEDGC_DB", str(path))
    with Store.open() as store:
        for run in ("first", "second"):
            store.write(Begun(1000.0, run, RunConfig(task="digits", work="coded").table()))
            store.write(Decided(1000.5, run, 1, "plan", {}, "8 chunks on 2 clients"))
            for number in (1, 2, 3):
                store.write(Appended(1001.0 + number, run, round_row(number, 0.04)))
        store.write(Seen(1000.0, FAST, "quick", link="session"))
        store.write(Seen(1000.0, SLOW, "slow", link="session"))
        store.write(Audited(1002.0, "joined", FAST, "over a session, with key 12ab", "second"))
        store.write(Audited(1003.0, "refused", SLOW, "too long", "second"))
        store.write(Audited(1003.0, "refused", "", "a foreign token", "second"))
        store.write(Audited(1003.0, "app failed", "node 7", "No module named pandas", "second"))
        store.write(Audited(1003.0, "rollback", "server", "round 3: the run goes back", "second"))
        store.write(Ended(1010.0, "first", "completed", ""))
        present = {"round": 4, "rounds": 9, "phase": "working", "covered": 3, "chunks": 8, "replicas": 2}
        store.write(Present(1011.0, "second", present))
    return path


def fedgc(*words: str) -> str:
    said = CliRunner().invoke(app, list(words), catch_exceptions=False, env={"COLUMNS": "200"})
    return said.stdout


def test_speeds_command_lists_speed_of_each_client(told: Path):
    answer = json.loads(fedgc("speeds", "--json"))
    slow = next(client for client in answer["clients"] if client["name"] == "slow")
    assert answer["task"] == "digits"
    assert slow["speed"]["step_s"] == pytest.approx(0.04)
    assert slow["counted_share"] == pytest.approx(0.5)
    assert slow["failures"] == 2
    assert len(slow["trend_step_s"]) == slow["rounds"] == 6


def test_speeds_are_of_clients_of_newest_run_with_rounds(told: Path):
    other = "cc" * 8
    with Store.open() as store:
        for at, (run, rows) in enumerate({"third": (other,), "fourth": ()}.items(), 2):
            store.write(Begun(1000.0 * at, run, RunConfig(task="digits", work="coded").table()))
            clients = tuple(ClientRow(each, finished=8, counted=8, step_s=0.01) for each in rows)
            if clients:
                store.write(Appended(1000.0 * at, run, replace(round_row(1, 0.0), clients=clients)))
        store.write(Seen(1000.0, other, "slow"))
    found = json.loads(fedgc("speeds", "--json"))
    assert (found["run"], [each["client"] for each in found["clients"]]) == ("third", [other])
    every = json.loads(fedgc("speeds", "--all", "--json"))
    assert {each["client"] for each in every["clients"]} == {FAST, SLOW, other}
    assert f"slow {other}" in fedgc("speeds", "--all"), "two clients have this name"
    assert json.loads(fedgc("speeds", "fourth", "--json"))["clients"] == []


def test_speeds_command_prints_same_data_as_text(told: Path):
    said = fedgc("speeds")
    line = next(line for line in said.splitlines() if "slow" in line)
    assert "25.0" in line
    assert "50%" in line
    assert "██████" in line


def test_status_of_server_that_has_only_started_says_so(told: Path):
    with Store.open() as store:
        store.write(Present(time.time(), "second", {"server": {}, "superlink": ""}))
    said = fedgc("status")
    assert "second:\n  the server has started, and has recorded nothing yet\n" in said


def test_figures_of_clients_of_one_name_are_told_apart(told: Path):
    with Store.open() as store:
        for client in (FAST, SLOW):
            store.write(Seen(1000.0, client, "laptop"))
            store.write(Scored(1011.0, "second", 3, client, 10, {"accuracy": 0.5}))
    assert f"laptop {SLOW}" in fedgc("status")


def test_status_shows_state_and_reason_of_newest_run(told: Path):
    said = fedgc("status")
    assert "round 4 of 9, working: 3 of 8 chunks have a replica, 2 aimed for" in said
    assert "last round 3: synced, 2 replicas, 2 blocks, amplification 1.50" in said
    assert "plan: 8 chunks on 2 clients" in said
    assert "running, silent for" in said
    assert "refused: slow: too long" in said
    assert "refused: an unknown client: a foreign token" in said
    assert "app failed: node 7: No module named pandas" in said
    assert "round 3: the run goes back" in said


def test_status_reports_skipped_rounds_and_gate_setting(told: Path):
    assert "skipped by the gate" not in fedgc("status")
    settings = RunConfig(work="local", rounds=100, gate_budget=0.1).table()
    with Store.open() as store:
        store.write(Begun(2000.0, "third", settings))
        for number in range(1, 13):
            outcome = "skipped" if number < 12 else "synced"
            store.write(Appended(2001.0, "third", replace(round_row(number, 0.04), outcome=outcome)))
    said = "11 of 12 rounds were skipped by the gate (drift, gate.budget 0.1 of the rounds)"
    assert said in fedgc("status")
    assert json.loads(fedgc("status", "--json"))["skips"].startswith(said)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are seen in /proc")
def test_run_of_killed_server_is_shown_as_stopped(told: Path):
    program = (
        "import os, signal, time; from fedgc.config import RunConfig; "
        "from fedgc.store.database import Store; from fedgc.store.records import Begun, Present; "
        "from fedgc.store.liveness import SERVER, this_process; "
        "store = Store.open(); store.write(Begun(time.time(), 'third', RunConfig().table())); "
        "present = {'round': 4, 'rounds': 9, 'phase': 'working', SERVER: this_process().words()}; "
        "store.write(Present(time.time(), 'third', present)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    with Store.open() as store:
        store.write(Appended(time.time(), "third", round_row(3, 0.04)))
        must_be_over(store.run("third"))
    said = fedgc("status")
    assert "crashed: the server process is gone in round 4, last heard of at 2" in said
    assert "`fedgc run --resume third` goes on" in said
    assert "working" not in said
    answer = json.loads(fedgc("status", "--json"))
    assert answer["state"] == "crashed"
    assert answer["reason"].startswith("the server process is gone")


def test_runs_and_clients_may_have_any_name(told: Path):
    with Store.open() as store:
        store.write(Seen(1000.0, FAST, "[/x]", link="session"))
        store.write(Begun(2000.0, "[/third]", RunConfig(task="digits", work="coded").table()))
        store.write(Present(2005.0, "[/third]", {"round": 1, "clients": [{"client": FAST}]}))
        store.write(Ended(2010.0, "[/third]", "failed", "[/bold] no disk"))
    said = fedgc("status")
    assert all(each in said for each in ("[/x]", "[/third]", "[/bold] no disk"))
    assert "[/x]" in fedgc("speeds")


def test_status_lists_clients_of_run(told: Path):
    other = replace(round_row(1, 0.04), clients=(ClientRow("cc" * 8, finished=1),))
    with Store.open() as store:
        store.write(Begun(2000.0, "third", RunConfig(task="digits", work="coded").table()))
        store.write(Appended(2001.0, "third", other))
        store.write(Seen(2001.0, "dd" * 8, "early"))
        store.write(Present(2002.0, "third", {"round": 2, "clients": [{"client": "dd" * 8}]}))

    def listed(*words: str) -> list[str]:
        return [each["client"] for each in json.loads(fedgc("status", *words, "--json"))["clients"]]

    assert listed("first") == [FAST, SLOW]
    assert listed() == ["cc" * 8, "dd" * 8]


def test_answer_is_json_also_with_measures_that_are_no_numbers(told: Path):
    with Store.open() as store:
        store.write(Evaluated(2000.0, "second", 3, {"accuracy": math.nan, "loss": 0.123456789}))

    def refused(constant: str) -> None:
        raise AssertionError(constant)

    answer = json.loads(fedgc("status", "second", "--json"), parse_constant=refused)
    assert answer["last_round"]["metrics"] == {"accuracy": None, "loss": 0.123456789}


def test_status_of_named_run_is_printed_as_json(told: Path):
    answer = json.loads(fedgc("status", "first", "--json"))
    assert answer["run"]["state"] == "completed"
    assert answer["last_round"]["counted"] == 10
    assert [client["name"] for client in answer["clients"]] == ["quick", "slow"]
    assert answer["decisions"][0]["reason"] == "8 chunks on 2 clients"
    assert answer["audit"] == []
    joined, *_ = json.loads(fedgc("status", "--json"))["audit"]
    assert (joined["kind"], joined["who"]) == ("joined", FAST)


def test_missing_run_and_missing_store_are_named(told: Path, monkeypatch, tmp_path):
    with pytest.raises(Unusable, match="third"):
        fedgc("status", "third")
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "none.db"))
    with pytest.raises(Unusable, match="saw nothing there"):
        fedgc("speeds")


def test_watch_needs_terminal(told: Path):
    with pytest.raises(Unusable, match="saw no terminal"):
        fedgc("status", "--watch")


def test_store_is_checked_copied_and_folded(told: Path, tmp_path: Path):
    assert json.loads(fedgc("store", "check", "--json"))["rounds"] == 6
    assert "copied to" in fedgc("store", "backup", str(tmp_path / "copy.db"))
    with Store.open(str(tmp_path / "copy.db")) as copy:
        assert len(copy.runs()) == 2
    assert "client rows folded" in fedgc("store", "vacuum", "--keep", "1")
    with pytest.raises(Unusable, match="--keep: saw 0"):
        fedgc("store", "vacuum", "--keep", "0")


def test_damaged_store_is_reported(told: Path):
    told.write_bytes(told.read_bytes()[:4096] + b"x" * 8192 + told.read_bytes()[12288:])
    with pytest.raises((EdgeFailed, Unusable)):
        fedgc("store", "check")


@pytest.mark.parametrize("words", [("check",), ("vacuum",)])
def test_maintenance_commands_create_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words):
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "none.db"))
    with pytest.raises(Unusable, match="saw nothing there, needed the store of an earlier run"):
        fedgc("store", *words)
    assert not (tmp_path / "none.db").exists()


def test_status_reports_sample_share_and_refused_clients(told: Path):
    row = replace(
        round_row(4, 0.04),
        known_samples=120,
        counted_samples=80,
        left_out="1 client was refused data: c: why",
    )
    with Store.open() as store:
        store.write(Appended(1009.0, "second", row))
        store.write(Ended(1020.0, "second", "completed", "66% of the samples in the last round"))
    said = fedgc("status")
    assert (
        "last round 4: synced, 2 replicas, 2 blocks, amplification 1.50, 66% of the samples (1 client" in said
    )
    assert "66% of the samples in the last round" in said
    answer = json.loads(fedgc("status", "--json"))
    assert answer["last_round"]["coverage"] == pytest.approx(2 / 3)
    assert answer["last_round"]["left_out"] == row.left_out


def test_status_says_why_last_round_is_aborted(told: Path):
    row = replace(round_row(4, 0.04), outcome="aborted", reason="too few sites are left")
    with Store.open() as store:
        store.write(Appended(1009.0, "second", row))
    last = next(line for line in fedgc("status").splitlines() if "last round 4: aborted" in line)
    assert last.endswith(" (too few sites are left)")


def test_status_shows_figures_of_clients_and_best_model(told: Path):
    with Store.open() as store:
        for client, samples, value in ((FAST, 10, 0.5), (SLOW, 30, 0.9)):
            store.write(Scored(1005.0, "second", 3, client, samples, {"f1": value}))
        store.write(Evaluated(1005.0, "second", 3, {"f1": 0.8}))
        basis = {"figure": "f1", "version": 3, "round": 3, "value": 0.8}
        store.write(Decided(1005.0, "second", 3, "best", basis, "better"))
    run = CliRunner()
    said = run.invoke(app, ["status", "second"], catch_exceptions=False).stdout
    rows = [line.replace("│", " ").split() for line in said.splitlines()]
    assert ["quick", "3", "10", "0.5"] in rows
    assert ["slow", "3", "30", "0.9"] in rows
    assert ["mean", "3", "40", "0.8"] in rows
    assert "best model: version 3, round 3, f1 0.8" in said
    assert "8 chunks on 2 clients" in said
    told_as_json = json.loads(run.invoke(app, ["status", "second", "--json"]).stdout)
    assert told_as_json["best"] == basis
    assert [(each["name"], each["metrics"]) for each in told_as_json["scores"]] == [
        ("quick", {"f1": 0.5}),
        ("slow", {"f1": 0.9}),
    ]


def test_status_why_begins_with_first_cause(told: Path):
    reason = "the run did not complete: quick: no disk; 3 rounds in a row gave nothing"
    with Store.open() as store:
        store.write(Ended(1012.0, "second", "failed", reason))
    said = fedgc("status", "--why")
    assert said.splitlines()[0] == "failed: quick: no disk; 3 rounds in a row gave nothing"
    assert "round 3 was synced" in said
    lines = json.loads(fedgc("status", "--why", "--json"))["lines"]
    assert lines == said.splitlines()
    assert json.loads(fedgc("status", "--json"))["why"]["lines"] == lines
    assert "failed: quick: no disk" in fedgc("status").split("second:")[1].splitlines()[1]
