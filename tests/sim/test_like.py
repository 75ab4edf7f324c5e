"""Test predictions of recorded runs: what is rebuilt from rows, the errors, and what is refused."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.config import RunConfig
from fedgc.history import ClientRow, RoundRow
from fedgc.sim.clock import NEVER, Failure
from fedgc.sim.past_run import PastClients, rebuilt
from fedgc.sim.play import TimedClients, play, seconds_of
from fedgc.store.database import Store
from fedgc.store.records import Appended, Begun, Decided

CONFIG = RunConfig(work="local", rounds=40, local_steps=10, min_clients=3, gate="every", grace_s=2.0)
NUMBERS = 1000
STEPS_S = (0.10, 0.12, 0.11, 0.40)


def round_row(number: int, clients: Sequence[ClientRow], *, working_s: float = 4.0) -> RoundRow:
    return RoundRow(
        *(number, number - 1, 0.0, working_s, 1.0, "synced", 4, 4, (), 1, 0, 4, None, None, 0.5),
        *(4, 0, 0, 0, 0, "every round"),
        clients=tuple(clients),
    )


def worked(client: str, step_s: float = 0.1, **changes: object) -> ClientRow:
    row = ClientRow(client, finished=10, counted=10, steps=10, busy_s=10 * step_s, step_s=step_s)
    return replace(row, upload_s=0.5, up_bytes=2000, download_s=0.1, down_bytes=4000, **changes)


def seen_rows(config: RunConfig, rounds: int) -> list[RoundRow]:
    """Play four clients, of which one is away twice, as a real run would be recorded."""
    step_s_rw = np.tile(STEPS_S, (rounds, 1))
    failures = {at: [(1, Failure(0.5, 6.0))] for at in (5, rounds // 2 + 4)}
    links_rw = np.full_like(step_s_rw, 0.2)
    clients = PastClients(("a", "b", "c", "d"), step_s_rw, links_rw, links_rw, np.zeros(4), failures)
    model = clients.model(config.round_steps, 1)
    rows = play(config, TimedClients(clients.names, model, NUMBERS, 1), rounds).rows
    models: set[tuple[str, int]] = set()
    return [
        replace(row, clients=tuple(with_traffic(each, row.version, models) for each in row.clients))
        for row in rows
    ]


def with_traffic(row: ClientRow, version: int, models: set[tuple[str, int]]) -> ClientRow:
    """Count an update of each exchange, and each model that comes to a client."""
    if row.failure:
        return row
    row = replace(row, control_bytes=100)
    if row.counted:
        row = replace(row, up_bytes=4000, upload_s=0.2)
    if (row.client, version) not in models:
        models.add((row.client, version))
        row = replace(row, down_bytes=4000, download_s=0.2)
    return row


def record(path: Path, config: RunConfig, rows: Sequence[RoundRow]) -> None:
    with Store.open(str(path)) as store:
        store.write(Begun(0.0, "r", config.table()))
        store.write(Decided(0.0, "r", 1, "plan", {"numbers": NUMBERS, "chunks": 4, "free": False}, ""))
        store.write_all([(Appended(1e4, "r", row), None) for row in rows])


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    return tmp_path / "fedgc.db"


@pytest.mark.parametrize("gate", [{}, {"gate": "drift", "gate_budget": 0.4}])
def test_second_half_is_predicted_from_first(path: Path, gate: dict[str, object]):
    config = replace(CONFIG, **gate)
    record(path, config, seen_rows(config, 40))
    done = CliRunner().invoke(app, ["sim", "--like", "latest", "--json"])
    figures = json.loads(done.stdout)["figures"]
    assert figures["rounds_known"] == figures["rounds_predicted"] == 20
    assert figures["exchanges_predicted"] == pytest.approx(figures["exchanges_seen"], abs=1)
    assert figures["round_s_error"] < 0.06
    assert figures["bytes_error"] < 0.1
    assert figures["waste_error"] < 0.02
    shown = CliRunner().invoke(app, ["sim", "--like", "r"]).stdout
    assert "rounds 21 to 40" in shown


def test_absences_and_links_are_rebuilt_from_rows():
    """b is lost in round 2 and back in round 4, a in round 4; c leaves; d joins late and is mute once."""
    lost = ClientRow("b", control_bytes=10, failure="lost")
    mute = replace(
        worked("d"), counted=0, up_bytes=0, upload_s=0.0, failure="no update by the upload deadline"
    )
    rows = [
        round_row(1, [worked("a"), worked("b", 0.2), worked("c")]),
        round_row(2, [worked("a"), lost, worked("c"), worked("d")]),
        round_row(3, [worked("a"), ClientRow("c", failure="left"), mute]),
        round_row(4, [worked("a", 0.3, failure="lost"), worked("b"), worked("d")]),
    ]
    found = rebuilt(rows, NUMBERS, grace_s=1.0)
    assert found.names == ("a", "b", "c", "d")
    assert found.arrives_s_w.tolist() == [0.0, 0.0, 0.0, 5.0]
    assert found.failures == {
        1: [(1, Failure(2.0, 10.0, noticed_s=2.0))],
        2: [(2, Failure(2.0, 2.0 + 4.5, noticed_s=0.0))],
        3: [(0, Failure(0.0, 1.0))],
    }
    assert found.step_s_rw[:, 1].tolist() == [0.2, 0.2, 0.2, 0.1]
    assert found.up_s_rw[:, 3].tolist() == [1.0, 1.0, NEVER, 1.0]
    assert found.down_s_rw[:, 0].tolist() == [0.1] * 4


@pytest.mark.parametrize(
    ("changes", "rounds", "outcome", "why"),
    [
        ({}, 7, "synced", "saw 7 rounds, needed at least 8"),
        ({}, 8, "skipped", "saw no exchange in its first half, needed one"),
        ({"client_app": "stock"}, 8, "synced", "saw clients of plain Flower, needed those of fedgc"),
        ({"secrecy": "masked", "federation": "f"}, 8, "synced", "saw masked exchanges, needed open ones"),
        ({"site_gateway": "line"}, 8, "synced", "saw the fleet of a site, needed a run of its own"),
        ({"clients_per_round": 2}, 8, "synced", "saw a sample of the clients in each round, needed all"),
        ({"work": "coded", "local_steps": 2}, 8, "synced", "saw coded work on data that only some clients"),
    ],
)
def test_run_that_cannot_be_predicted_is_refused(
    path: Path, changes: dict[str, object], rounds: int, outcome: str, why: str
):
    rows = [replace(round_row(n, [worked("a")]), outcome=outcome) for n in range(1, rounds + 1)]
    record(path, replace(CONFIG, **changes), rows)
    done = CliRunner().invoke(app, ["sim", "--like", "latest"])
    assert f"run r: {why}" in str(done.exception)


def test_run_without_plan_or_with_damaged_one_is_refused(path: Path):
    with Store.open(str(path)) as store:
        store.write(Begun(0.0, "r", CONFIG.table()))
        store.write(Decided(0.0, "r", 1, "plan", {"numbers": "many"}, ""))
    done = CliRunner().invoke(app, ["sim", "--like", "latest"])
    assert str(done.exception) == "run r: saw no round, needed one with rounds"
    with Store.open(str(path)) as store:
        store.write(Appended(1e4, "r", round_row(1, [worked("a")])))
    done = CliRunner().invoke(app, ["sim", "--like", "latest"])
    assert str(done.exception) == "run r: saw no plan with the size of its model, needed one"


def test_folded_rows_and_other_options_are_refused(path: Path):
    record(path, CONFIG, [round_row(n, [worked("a")]) for n in range(1, 51)])
    with Store.open(str(path)) as store:
        store.fold(1)
    folded = CliRunner().invoke(app, ["sim", "--like", "latest"])
    assert "saw rounds whose client rows were folded, needed all rows" in str(folded.exception)
    beside = CliRunner().invoke(app, ["sim", "--like", "latest", "--clients", "4"])
    assert str(beside.exception) == "--like: saw --clients beside it, needed no option but --json"


def test_client_that_arrives_late_joins_at_its_time():
    step_s_rw = np.full((3, 2), 0.1)
    zero_rw = np.zeros_like(step_s_rw)
    clients = PastClients(("a", "b"), step_s_rw, zero_rw, zero_rw, np.array([0.0, 1.5]), {})
    config = replace(CONFIG, min_clients=1, rounds=3)
    timed = TimedClients(clients.names, clients.model(10, 1), NUMBERS, 1, (0.0, 1.5))
    played = play(config, timed, 3)
    assert [[each.client for each in row.clients] for row in played.rows] == [["a"], ["a"], ["a", "b"]]
    assert [seconds_of(row) for row in played.rows] == pytest.approx([1.0, 1.0, 1.0])
    assert (played.up, played.down) == (4.0, 4)
