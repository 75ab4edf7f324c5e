"""Test the explanation of a run: the first cause, whom it waits for, the data, what to do."""

import time
from pathlib import Path

import pytest

from fedgc.config import RunConfig
from fedgc.history import APP_FAILED, APP_FAILS_NOT, BY_SITE, ClientRow, RoundRow
from fedgc.store.database import Store
from fedgc.store.explanation import Explanation, explain
from fedgc.store.liveness import SERVER, SUPERLINK, SUPERLINK_ENDED, this_process
from fedgc.store.records import Appended, Audited, Begun, Ended, Present, Seen

NOW = 1_700_000_000.0
KEYS = {"aa": "north", "bb": "south", "cc": "west"}


def row(number: int, outcome: str, clients: tuple[ClientRow, ...] = (), **changes: object) -> RoundRow:
    values = {
        "round": number, "version": number - 1, "started": NOW, "working_s": 1.0, "collecting_s": 0.5,
        "outcome": outcome, "chunks": 3, "covered": 3, "short": (), "replicas": 1, "blocks": 0, "needed": 3,
        "amplification": None, "error": None, "loss": 0.5, "samples": 60, "skips": 0, "takes": 0, "pruned": 0,
        "repairs": 0, "reason": "", "known_samples": 60, "counted_samples": 60,
    }  # fmt: skip
    return RoundRow(**{**values, **changes}, clients=clients)


def client(key: str, **changes: object) -> dict[str, object]:
    usual = {
        "client": key, "name": KEYS[key], "present": True, "finished": 3, "held": 8, "awaited": False,
        "chunks": 1, "samples": 20,
    }  # fmt: skip
    return {**usual, **changes}


def live(*clients: dict[str, object], **changes: object) -> dict[str, object]:
    here = sum(bool(each["present"]) for each in clients)
    data = {"present_chunks": here, "present_samples": 20 * here, "known_chunks": 3, "known_samples": 60}
    usual = {
        "round": 3, "rounds": 9, "phase": "working", "unit": "clients", "since": NOW - 12, "until": NOW + 40,
        "needed": 0, "clients": clients, "data": data, SERVER: this_process().words(),
    }  # fmt: skip
    return {**usual, **changes}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    with Store.open(str(tmp_path / "fedgc.db")) as opened:
        opened.write(Begun(NOW - 60, "ward", RunConfig().table()))
        for key, name in KEYS.items():
            opened.write(Seen(NOW - 200, key, name, link="session"))
        yield opened


def told(store: Store) -> Explanation:
    return explain(store, store.run("ward"), NOW)


def test_working_round_names_awaited_clients_with_progress_and_limit(store: Store):
    store.write(Present(NOW, "ward", live(client("aa"), client("bb", awaited=True), client("cc"))))
    found = told(store)
    assert found.lines[0] == (
        "round 3 of 9, working; awaited: south (3 of 8 steps), for 12 s, at most 40 s longer"
    )
    assert found.lines[1] == "data present: 60 of 60 samples, 3 of 3 chunks"
    state = live()
    state["data"] |= {"fetched_chunks": 4, "fetched_bytes": 3_400_000}
    store.write(Present(NOW, "ward", state))
    assert "chunks fetched from stores of sites: 4, 3.4 MB" in told(store).lines
    until = time.strftime("%H:%M:%S %Z", time.localtime(NOW + 40))
    assert found.lines[-1] == f"to do: nothing; at {until} the round goes on with what is there"
    assert [(each.name, each.finished) for each in found.awaited] == [("south", 3)]
    assert (found.since, found.until) == (NOW - 12, NOW + 40)


def test_clients_that_have_left_are_named_and_not_to_be_restarted(store: Store):
    left = client("bb", awaited=True, leaves=True), client("cc", present=False, leaves=True)
    store.write(Appended(NOW - 90, "ward", row(2, "synced", counted_samples=20)))
    store.write(Present(NOW, "ward", live(client("aa"), *left, phase="gathering", needed=1, until=None)))
    lines = told(store).lines
    assert "known and awaited: south (has left the run)" in lines[0]
    assert any(
        "not counted" in line and "south (can load 20 samples; has left the run)" in line for line in lines
    )
    assert lines[-1].startswith("to do: start more clients; south, west left; min-clients says")


def test_finished_chunks_of_lost_client_count_later(store: Store):
    store.write(Present(NOW, "ward", live(client("aa"), client("cc", present=False), unit="chunks")))
    assert told(store).lines[-1] == "to do: restart west; what it has finished counts once it is back"


def test_stock_round_lacks_answers_and_not_chunks(store: Store):
    store.write(Appended(NOW, "ward", row(2, "approximate", chunks=2, covered=1, replicas=0)))
    store.write(Ended(NOW, "ward", "completed"))
    assert any("1 of 2 clients gave no answer that counts" in line for line in told(store).lines)


def test_client_that_has_not_reported_its_steps_trains(store: Store):
    store.write(Present(NOW, "ward", live(client("aa"), client("bb", awaited=True, finished=0))))
    assert told(store).lines[0].startswith("round 3 of 9, working; awaited: south (trains for 8 steps), for")


@pytest.mark.parametrize(("round_", "follows"), [(3, "; the next one begins"), (9, "")])
def test_round_that_is_stored_is_over(store: Store, round_: int, follows: str):
    store.write(Appended(NOW, "ward", row(round_, "synced")))
    store.write(Present(NOW, "ward", live(client("aa", awaited=True), round=round_)))
    assert told(store).lines[0] == f"round {round_} of 9 is over{follows}"
    store.write(Present(NOW, "ward", live(client("aa"), round=round_, phase="gathering", since=NOW + 2)))
    assert told(store).lines[0].startswith(f"round {round_} of 9, gathering"), "once more, after a resume"


def test_masked_run_tells_chunks_in_place_of_unknown_samples(store: Store):
    """A site tells no number of samples, and each of its chunks counts as one."""
    store.write(Begun(NOW - 50, "ward", {**RunConfig().table(), "secrecy": "masked"}))
    data = {"present_chunks": 2, "present_samples": 2, "known_chunks": 3, "known_samples": 3}
    clients = (client("aa", samples=1), client("bb", samples=1), client("cc", samples=1, present=False))
    store.write(Present(NOW, "ward", live(*clients, data=data)))
    store.write(Appended(NOW, "ward", row(2, "synced", known_samples=3, counted_samples=2)))
    lines = told(store).lines
    assert lines[1] == "data present: 2 of 3 chunks; not connected: west (can load 1)"
    assert "counted 2 of 3 chunks" in " ".join(lines)
    assert "samples" not in " ".join(lines)


def test_missing_data_names_its_client_and_remedy(store: Store):
    store.write(
        Present(NOW, "ward", live(client("aa", awaited=True), client("bb"), client("cc", present=False)))
    )
    lines = told(store).lines
    assert lines[1] == "data present: 40 of 60 samples, 2 of 3 chunks; not connected: west (can load 20)"
    assert lines[-1] == "to do: restart west; until then the model lacks its data"


def test_refusals_by_sites_and_their_hours_are_said(store: Store):
    store.write(Present(NOW, "ward", live(client("aa", closes=NOW + 7200), client("bb"))))
    for who, kind in (("aa", "policy"), ("aa", "joined"), ("cc", "policy"), ("cc", "policy")):
        store.write(Audited(NOW, kind, who, f"client {KEYS[who]}: site.toml, line 2 (hours.open)", "ward"))
    lines = told(store).lines
    assert "hours: may train longer: north for 2 h" in lines
    refused = [each for each in lines if each.startswith("refused")]
    assert refused == ["refused by its site: client west: site.toml, line 2 (hours.open)"]


def test_gathering_run_says_how_many_clients_must_come(store: Store):
    away = client("cc", present=False, awaited=True)
    store.write(Present(NOW, "ward", live(client("aa"), away, phase="gathering", needed=2)))
    lines = told(store).lines
    assert lines[0] == (
        "round 3 of 9, gathering: 2 more clients must come; known and awaited: "
        "west (not connected, last seen 3 min ago), for 12 s, at most 40 s longer"
    )
    assert lines[-1].startswith("to do: start west by ")
    assert lines[-1].endswith("min-clients says how many a run needs to begin")


def test_gathering_run_says_whose_data_it_cannot_use(store: Store):
    why = "chunk west: no other client announces it, and the run's data is shared"
    of_no_use = client("cc", awaited=True, idle=why)
    store.write(Present(NOW, "ward", live(client("aa"), of_no_use, phase="gathering", needed=1)))
    lines = told(store).lines
    assert lines[0].startswith("round 3 of 9, gathering: 1 more client must come, for 12 s")
    assert f"takes no part: west: {why}" in lines
    assert lines[-1].startswith("to do: start more clients with data that the run can use by ")
    assert lines[-1].endswith("min-clients says how many a run needs to begin")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            "hospital:1",
            "run night has the clients (a SuperNode serves one run at a time): wait for its end, or stop it; "
            "otherwise this run ends at {at} (timing.start-timeout-s)",
        ),
        (
            "hospital:2",
            "start more clients by {at}, or the run ends (timing.start-timeout-s); min-clients says how many "
            "a run needs to begin; a SuperNode serves one run at a time, so clients may be busy with another "
            "one",
        ),
    ],
)
def test_run_on_busy_clients_names_run_that_they_serve(store: Store, other: str, said: str):
    place = {"phase": "gathering", "needed": 2, "clients": (), SUPERLINK: "hospital:1"}
    store.write(Present(NOW, "ward", live(**place)))
    store.write(Begun(NOW - 60, "night", RunConfig().table()))
    store.write(Present(NOW, "night", live(**{SUPERLINK: other})))
    last = told(store).lines[-1]
    at = time.strftime("%H:%M:%S %Z", time.localtime(NOW + 40))
    assert last == "to do: " + said.format(at=at)
    store.write(Ended(NOW, "night", "stopped"))
    assert told(store).lines[-1].startswith("to do: start more clients")


def test_gathering_of_refused_clients_asks_for_sites_that_allow_run(store: Store):
    store.write(Present(NOW, "ward", live(phase="gathering", needed=2)))
    store.write(Audited(NOW, BY_SITE, "aa", "client north: the limit of today is reached", "ward"))
    *_, refused, advice = told(store).lines
    assert refused == "refused by its site: client north: the limit of today is reached"
    assert advice.startswith("to do: start clients whose sites allow the run by ")
    assert "another one" not in advice


def test_gathering_of_clients_with_failing_apps_names_their_failure(store: Store):
    missing = "ModuleNotFoundError: No module named 'pandas'"
    store.write(Present(NOW, "ward", live(phase="gathering", needed=2)))
    for number, what in enumerate((missing, missing, "client west: task: saw none", "an error of before")):
        store.write(Audited(NOW, APP_FAILED, f"node {number}", what, "ward"))
    store.write(Audited(NOW, APP_FAILS_NOT, "node 3", "its session is open", "ward"))
    *_, first, second, advice = told(store).lines
    assert first == f"app failed: node 0, node 1: {missing}"
    assert second == "app failed: client west: task: saw none"
    assert advice.startswith("to do: remove what makes the apps fail, or start more clients by ")
    assert "another one" not in advice
    store.write(Begun(NOW + 1, "ward", RunConfig().table()))
    store.write(Present(NOW + 1, "ward", live(phase="gathering", needed=2)))
    assert not [each for each in told(store).lines if each.startswith("app failed")]


def test_refusal_of_app_ends_when_its_client_joins(store: Store):
    """The app was refused before it began, so that its client had no identity yet."""
    store.write(Present(NOW, "ward", live(phase="gathering", needed=2)))
    for number, name in enumerate(("north", "south", "north-2")):
        store.write(Audited(NOW, BY_SITE, f"node {number}", f"client {name}: saw another app", "ward"))
    store.write(Audited(NOW + 1, "joined", "aa", "over a session, with key aa", "ward"))
    refused = [each for each in told(store).lines if each.startswith("refused")]
    assert refused == [
        f"refused by its site: client {name}: saw another app" for name in ("south", "north-2")
    ]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            row(2, "approximate", (ClientRow("aa", finished=8, counted=8), ClientRow("cc", failure="lost")),
                short=(1,), counted_samples=40),
            "round 2 was approximate; counted 40 of 60 samples; 1 of 3 chunks are not in the sum; "
            "not counted: west (can load 20 samples; lost), south (can load 20 samples; not in this round)",
        ),
        (
            row(2, "skipped", (ClientRow("aa", finished=8),), reason="drift 0.1 of 0.3", counted_samples=0),
            "round 2 was skipped; drift 0.1 of 0.3; clients continue from where they are",
        ),
        (
            row(2, "empty", (ClientRow("aa", failure="ValueError: no labels"), ClientRow("bb", finished=8)),
                counted_samples=0),
            "round 2 was empty; nothing was finished in time, or no update came; not counted: "
            "north (can load 20 samples; ValueError: no labels), "
            "south (can load 20 samples), west (can load 20 samples; not in this round)",
        ),
        (
            row(2, "empty", tuple(ClientRow(key, failure="lost") for key in KEYS), reason="a limit of 9 s",
                counted_samples=0),
            "round 2 was empty; all its clients failed or were lost; a limit of 9 s; not counted: "
            "north (can load 20 samples; lost), south (can load 20 samples; lost), "
            "west (can load 20 samples; lost)",
        ),
        (
            row(2, "synced", (ClientRow("aa", finished=8, counted=8), ClientRow("cc", failure="lost"))),
            "round 2 was synced; counted 60 of 60 samples; not counted: west (lost)",
        ),
        (
            row(2, "synced", (ClientRow("aa", finished=8, counted=8), ClientRow("bb", finished=8))),
            "round 2 was synced; counted 60 of 60 samples",
        ),
    ],
)  # fmt: skip
def test_last_round_is_explained(store: Store, made: RoundRow, said: str):
    store.write(Appended(NOW, "ward", made))
    store.write(Present(NOW, "ward", live(client("aa"), client("bb"), client("cc"))))
    assert told(store).lines[2] == said


def test_clients_that_were_not_asked_are_not_missed(tmp_path: Path):
    asked = (ClientRow("aa", finished=8, counted=8), ClientRow("cc", failure="lost"))
    with Store.open(str(tmp_path / "fedgc.db")) as store:
        store.write(Begun(NOW - 60, "ward", RunConfig(clients_per_round=2).table()))
        store.write(Appended(NOW, "ward", row(2, "approximate", asked, counted_samples=20, known_samples=40)))
        store.write(Present(NOW, "ward", live(client("aa"), client("bb"), client("cc"))))
        assert told(store).lines[2] == (
            "round 2 was approximate; asked 2 of 3 clients; counted 20 of 40 samples; "
            "0 of 3 chunks are not in the sum; not counted: cc (can load 20 samples; lost)"
        )


def test_first_line_of_failed_run_is_first_cause(store: Store):
    reason = "the run did not complete: north: no disk; 3 rounds in a row gave nothing"
    store.write(Appended(NOW, "ward", row(2, "synced")))
    store.write(Ended(NOW, "ward", "failed", reason))
    lines = told(store).lines
    assert lines[0] == "failed: north: no disk; 3 rounds in a row gave nothing"
    assert lines[-1] == "to do: remove the cause, then `fedgc run --resume ward` goes on"


def test_run_that_was_stopped_has_no_cause_to_remove(store: Store):
    store.write(Appended(NOW, "ward", row(2, "synced")))
    store.write(Ended(NOW, "ward", "stopped", "stopped by the user"))
    lines = told(store).lines
    assert lines[0] == "stopped: stopped by the user"
    assert lines[-1] == "to do: nothing; `fedgc run --resume ward` goes on"


def test_run_whose_superlink_has_ended_sends_user_to_its_log(store: Store):
    store.write(Appended(NOW, "ward", row(2, "synced")))
    store.write(Ended(NOW, "ward", "stopped", f"{SUPERLINK_ENDED}; the other settings are not kept"))
    lines = told(store).lines
    assert lines[0].startswith("stopped: its SuperLink has ended")
    assert lines[-1] == "to do: see in its log why the SuperLink has ended; `fedgc run --resume ward` goes on"


def test_crashed_run_says_how_server_ended_and_how_to_resume(store: Store):
    gone = {**this_process().words(), "began": 0}
    store.write(Appended(NOW, "ward", row(2, "synced")))
    store.write(Present(NOW, "ward", live(client("aa"), **{SERVER: gone})))
    lines = told(store).lines
    assert lines[0].startswith("crashed: the server process is gone in round 3")
    assert lines[-1] == "to do: `fedgc run --resume ward` goes on"


def test_silent_run_of_another_machine_is_said_to_be_silent(store: Store):
    store.write(Present(NOW - 300, "ward", live(client("aa"), **{SERVER: {"where": "other", "pid": 1}})))
    assert told(store).lines[0].startswith("no record for 5 min: the server is gone")


def test_record_from_future_says_that_clocks_differ(store: Store):
    store.write(Present(NOW + 7200, "ward", live(client("aa"), **{SERVER: {"where": "other", "pid": 1}})))
    assert told(store).lines[0].startswith("its last record is 2 h ahead of this machine's clock")


@pytest.mark.parametrize("state", [{}, {"phase": "working", "clients": [3, {"client": "aa"}], "data": []}])
def test_state_of_other_version_is_explained_where_understood(store: Store, state: dict[str, object]):
    store.write(Present(NOW, "ward", {**state, SERVER: this_process().words()}))
    assert told(store).lines
