"""Test `fedgc plan` from a store, from a trace and without history."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgc.cli import plan_local
from fedgc.cli.commands import app
from fedgc.cli.plan_local import explain_local
from fedgc.config import RunConfig
from fedgc.errors import Unusable
from fedgc.history import ClientRow, RoundRow, Speed
from fedgc.store.database import Store
from fedgc.store.records import Appended, Begun, Decided, Seen

NAMES = {"aa" * 8: "north", "bb" * 8: "south", "cc" * 8: "west"}
CLIENTS = tuple(NAMES)


def told_round(number: int, step_s: Sequence[float | None], *, failed: str = "") -> RoundRow:
    clients = tuple(
        ClientRow(
            client,
            finished=4,
            counted=4,
            steps=16,
            busy_s=16 * (each or 0.0),
            step_s=each,
            spread_s=0.0,
            failure="lost" if client == failed else "",
        )
        for client, each in zip(CLIENTS, step_s, strict=False)
    )
    return RoundRow(
        *(number, number - 1, 1000.0 + number, 60.0, 0.5, "synced", 12, 12, (), 3, 1, 3, 1.0, None, 0.5),
        *(120, 0, 0, 0, 0, "every round"),
        clients=clients,
    )


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    return tmp_path / "fedgc.db"


def tell(
    run: str, rounds: Sequence[RoundRow], clients: Sequence[str] = CLIENTS, *, replay_s: float | None = None
) -> None:
    with Store.open() as store:
        store.write(Begun(1000.0, run, RunConfig(task="digits", replicas="auto", work="coded").table()))
        loads = dict.fromkeys(clients, 4)
        basis = {
            "loads": loads,
            "chunks": 12,
            "numbers": 1000,
            "replicas": 3,
            "free": True,
            "replay_s": replay_s,
            "predicted_s": replay_s and 2.2 * replay_s,
        }
        store.write(Decided(1000.5, run, 1, "plan", basis, "12 chunks"))
        for client in clients:
            store.write(Seen(1000.2, client, NAMES[client]))
        for row in rounds:
            store.write(Appended(1100.0 + row.round, run, row))


def asked(*words: str) -> dict:
    said = CliRunner().invoke(app, ["plan", "--json", *words], catch_exceptions=False)
    assert said.exit_code == 0
    return json.loads(said.stdout)


def shown(*words: str) -> str:
    said = CliRunner().invoke(app, ["plan", *words], catch_exceptions=False)
    return " ".join(said.stdout.replace("│", " ").split())


def test_history_rows_behind_plan_are_named(path: Path) -> None:
    tell("spring", [told_round(number, (0.5, 0.5, 2.0)) for number in range(3, 10)])
    plan = asked("--add", "0.25", "--add", "4")
    assert plan["rows"][0]["client"] == "west"
    assert plan["rows"][0]["rounds"] == {"spring": [3, 4, 5, 6, 7, 8, 9]}
    assert "west" in plan["reason"]
    loads = plan["choice"]["loads"]
    assert loads["west"] < loads["north"]
    assert plan["fluid_bound_s"] <= plan["predicted_s"] < plan["uncoded_s"] * 1.5
    quick, slow = plan["one_more_client"]
    assert quick["predicted_s"] < plan["predicted_s"]
    assert quick["predicted_s"] < slow["predicted_s"]
    assert [cut["chunks"] * cut["local_steps"] for cut in plan["cuts"]] == [48, 48, 48]
    words = shown()
    assert "3 to 9 of spring" in words
    assert "west: 2 s a step, 4 times the median" in words


def test_run_without_rounds_is_passed_over(path: Path) -> None:
    table = RunConfig(task="digits", work="coded").table()
    with Store.open() as store:
        for run, now in [(f"before-{at}", 100.0 + at) for at in range(3)]:
            store.write(Begun(now, run, table))
            client = ClientRow(f"{now:.0f}" * 5, finished=4, counted=4, step_s=0.5)
            store.write(Appended(now, run, replace(told_round(1, ()), clients=(client,))))
    tell("spring", [told_round(number, (0.5, 0.5)) for number in range(3, 10)], CLIENTS[:2])
    with Store.open() as store:
        store.write(Begun(5000.0, "summer", table))
    found = asked()
    assert found["source"].endswith("run spring of task digits")
    assert set(found["choice"]["loads"]) == {"north", "south"}


def test_clients_wanted_depend_on_least_gain(path: Path) -> None:
    tell("spring", [told_round(number, (0.5, 0.5, 0.5)) for number in range(3, 10)])
    assert asked("--client-gain", "0.4")["clients_wanted"] < 3


def test_closed_hours_of_three_time_zones_lengthen_round(path: Path) -> None:
    """Each client may train for eight hours of each day; the third one is not there now."""
    tell("spring", [told_round(number, (0.5, 0.5, 0.5)) for number in range(3, 10)], CLIENTS[:2])
    day_s, window_s = 86_400.0, 8 * 3600.0
    with Store.open() as store:
        store.write(Seen(1000.2, CLIENTS[2], NAMES[CLIENTS[2]]))
        for at, client in enumerate(CLIENTS):
            opens = [number * day_s + at * window_s for number in range(7)]
            basis = {"client": client, "hours": [[each, each + window_s] for each in opens]}
            store.write(Decided(1001.0, "spring", 1, "hours", basis, "hours"))
    plan = asked()
    assert plan["week"]["idle_h"] == 0
    assert plan["week"]["round_s"] > 2 * plan["predicted_s"], "one of three clients at a time"
    with Store.open() as store:
        for client in CLIENTS:
            store.write(Decided(1002.0, "spring", 2, "hours", {"client": client, "hours": []}, "no hours"))
    assert "week" not in asked(), "a client that has no hours any more is not kept from training"


def test_different_history_gives_different_plan(path: Path) -> None:
    tell("spring", [told_round(number, (0.5, 0.5, 0.5)) for number in range(1, 9)])
    first = asked()
    steps = (0.5, 0.5, 2.0)
    tell("summer", [told_round(number, steps, failed=CLIENTS[number % 3]) for number in range(1, 21)])
    second = asked()
    assert first["choice"] != second["choice"]
    assert set(second["rows"][0]["rounds"]) == {"summer"}


def test_prediction_is_corrected_by_past_predictions(path: Path) -> None:
    """All past rounds took 60.5 s: twice the replays, a tenth less than was predicted after correction."""
    rounds = [told_round(number, (0.5, 0.5, 0.5)) for number in range(1, 21)]
    tell("spring", rounds, replay_s=60.5 / 2)
    plan = asked()
    assert plan["correction"] == pytest.approx(2.0)
    low_s, high_s = plan["band_s"]
    assert low_s < plan["predicted_s"] < high_s < 1.01 * low_s
    assert "four rounds in five take" in shown()
    assert "past rounds took 2.00 times as long as simulated" in shown()
    assert (plan["past_predictions"], plan["past_error_median"]) == (20, pytest.approx(0.1))
    assert "off by 10% (median), 10% at most" in shown()


NO_HISTORY = {
    "one client": [told_round(number, (0.5,)) for number in range(1, 6)],
    "a single round": [told_round(1, (0.5, 1.0, 2.0))],
    "no round": [],
    "contradictory rows": [told_round(number, (None, None, 0.5)) for number in range(1, 6)],
}


@pytest.mark.parametrize("case", NO_HISTORY)
def test_missing_history_gives_wide_band_and_explanation(path: Path, case: str) -> None:
    tell("spring", NO_HISTORY[case], CLIENTS[:1] if case == "one client" else CLIENTS)
    plan = asked()
    assert "no history" in plan["reason"]
    assert plan["band_s"][1] >= 9 * plan["band_s"][0]
    assert plan["choice"]["deadline_s"] is None
    assert "no history" in shown()


def test_empty_or_missing_store_still_gives_plan(path: Path) -> None:
    plan = asked()
    assert not path.exists(), "to ask leaves no store behind"
    assert "no history" in plan["reason"]
    Store.open().close()
    assert "no history" in asked()["reason"]


def test_named_run_is_not_planned_without_its_store(path: Path) -> None:
    with pytest.raises(Unusable, match="saw nothing there, needed the store of an earlier run"):
        asked("spring")


def test_clients_of_same_name_are_told_apart(path: Path) -> None:
    tell("spring", [told_round(number, (0.5, 0.5, 2.0)) for number in range(3, 10)])
    with Store.open() as store:
        for client in CLIENTS[:2]:
            store.write(Seen(2000.0, client, "ward", "", ""))
        store.write(Seen(2000.0, "dd" * 8, "west", "", ""))  # of another run
    loads = asked()["choice"]["loads"]
    assert set(loads) == {f"ward {CLIENTS[0]}", f"ward {CLIENTS[1]}", "west"}


def test_trace_is_planned_with_its_machines(tmp_path: Path) -> None:
    trace = tmp_path / "three.csv"
    step_s = {"north": 4.0, "south": 4.0, "west": 16.0}
    rows = [f"{name},{number},0,{step}" for number in range(12) for name, step in step_s.items()]
    trace.write_text("\n".join(["client,round,chunk,seconds", *rows]) + "\n")
    plan = asked("--trace", str(trace))
    assert plan["choice"]["chunks"] == 12
    assert plan["choice"]["loads"]["west"] == min(plan["choice"]["loads"].values())
    assert plan["rows"][0]["rounds"] == {"trace": list(range(1, 13))}


def test_local_work_is_planned_by_its_quorum(path: Path) -> None:
    tell("spring", [told_round(number, (0.5, 0.5, 2.0)) for number in range(3, 10)])
    plan = asked("--set", "work=local", "--set", "local-steps=16")
    assert (plan["way"], plan["quorum"], plan["clients_with_measured_links"]) == ("partial", 0.6666, 0)
    assert plan["rounds"]["round_s"] == pytest.approx(8.0)
    assert plan["waiting"] == {"round_s": 32.0, "update_s": 32.0}
    assert "chosen timing.quorum = 0.6666: rounds of 8 s" in shown(
        "--set", "work=local", "--set", "local-steps=16"
    )
    assert plan["groups"] is None, "three clients make no groups"
    with pytest.raises(Unusable, match="saw --add or --client-gain with local work"):
        asked("--set", "work=local", "--add", "1")


def test_plan_tells_groups_and_how_to_train_without_them() -> None:
    speeds = [Speed(f"c{at}", each) for at, each in enumerate((0.1, 0.1, 0.1, 1.0, 1.0, 9.0))]
    config = RunConfig(late_updates="count", groups="speed", local_steps=10)
    found = explain_local("the test", speeds, config, 0)
    assert found.choice.groups == (3, 2, 1)
    facts = plan_local.facts(found)
    assert "timing.quorum = 0.75 of any one group" in facts["aggregation.groups = speed"]
    assert "in groups of 3, 2, 1 clients: rounds of 1 s" in facts["aggregation.groups = speed"]
    assert "aggregation.groups = off: rounds of" in facts["chosen"]


def test_fragments_shorten_planned_transfers() -> None:
    speeds = [Speed(name, 0.01, up_bytes_s=1e5, down_bytes_s=1e6) for name in CLIENTS]
    plans = [
        explain_local("the test", speeds, RunConfig(fragments=fragments, link="session"), numbers)
        for fragments, numbers in ((4, 1_000_001), (1, 250_001), (1, 1_000_001))
    ]
    assert plans[0].choice == plans[1].choice
    assert plans[0].choice.rounds.round_s < plans[2].choice.rounds.round_s / 3


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, ""),
        ({"fragments": 4, "link": "session"}, "links.fragments"),
        ({"clients_per_round": 4, "placement": "private"}, "aggregation.clients-per-round"),
        ({"gate": "drift"}, "gate.name"),
        ({"client_app": "stock"}, "client.app"),
    ],
)
def test_late_updates_are_chosen_only_where_settings_allow(settings, key: str) -> None:
    links = [1e7] * 6 + [2e4, 1e4]
    speeds = [Speed(f"c{at}", 0.01, up_bytes_s=each, down_bytes_s=1e7) for at, each in enumerate(links)]
    found = explain_local("the test", speeds, RunConfig(work="local", **settings), 250_000)
    assert found.choice.way == "late"
    assert found.way == ("sync" if key else "late")
    assert key in found.obstacle
    assert ("needed" in found.obstacle) == bool(key)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--trace", "a.csv", "spring"), "--trace: saw run spring beside it, needed one of them"),
        (("--uplink-mb-s", "5"), "--uplink-mb-s: saw 5 alone, needed --trace and --model-mb, or --model-gb"),
        (("--uplink-mb-s", "5", "--trace", "a.csv"), "--uplink-mb-s: saw 5 alone"),
    ],
)
def test_option_without_effect_is_refused(path: Path, words: tuple[str, ...], reason: str) -> None:
    tell("spring", [])
    with pytest.raises(Unusable, match=reason):
        asked(*words)


@pytest.mark.parametrize(
    "words",
    [
        ("winter",),
        ("--add", "-1"),
        ("--model-mb", "-3"),
        ("--trace", __file__),
        ("--set", "work=local"),
    ],
)
def test_invalid_request_gives_one_line(path: Path, words: tuple[str, ...]) -> None:
    tell("spring", [])
    with pytest.raises(Unusable):
        CliRunner().invoke(app, ["plan", *words], catch_exceptions=False)
