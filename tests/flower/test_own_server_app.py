"""Test `FedGC.start` as a ServerApp of the user's own calls it: names of runs, checkpoints and resume."""

import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.supercore.task_identity import TaskIdentity

from fedgc import FedGC, RunConfig
from fedgc.cli.view import round_line
from fedgc.errors import EdgeFailed, Unusable
from fedgc.flower.run_memory import Memory
from fedgc.flower.sink import Sink
from fedgc.store.database import Store
from fedgc.store.engine import runs_folder
from fedgc.store.later_starts import submitted as submitted_settings
from tests.flower.test_stock_driver import FIRST, PlayedGrid, adds

RUNS = itertools.count(100)  # of Flower


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def strategy(**settings) -> FedGC:
    return FedGC(config=RunConfig(client_app="stock", evaluate_every=0, server_momentum=0.5, **settings))


def start(
    made: FedGC, num_rounds: int | None = None, flower_run: int = 0, submitted=None, grid=None
) -> list[np.ndarray]:
    grid = grid or PlayedGrid(adds(1.0))
    grid.run = SimpleNamespace(run_id=flower_run or next(RUNS), override_config=submitted or {})
    return made.start(grid, ArrayRecord(FIRST), num_rounds).arrays.to_numpy_ndarrays()


def recorded() -> dict[str, list[int]]:
    with Store.open() as store:
        return {each.run: [row.row.round for row in store.rounds(each.run)] for each in store.runs()}


def test_resume_goes_on_from_last_model() -> None:
    whole = start(strategy(rounds=3, run="whole"))
    start(strategy(rounds=1, run="demo"))
    for ours, theirs in zip(start(strategy(rounds=3, resume="demo")), whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert recorded()["demo"] == [1, 2, 3]


def test_resume_that_run_was_submitted_with_is_heeded() -> None:
    start(strategy(rounds=1), submitted={"run": "demo"})
    start(strategy(rounds=2), submitted={"resume": "demo"})
    assert recorded() == {"demo": [1, 2]}


def test_name_of_run_with_models_is_refused() -> None:
    start(strategy(rounds=2, run="demo"))
    with pytest.raises(Unusable, match="run demo: there is one of that name already"):
        start(strategy(rounds=1, run="demo"))
    assert recorded() == {"demo": [1, 2]}


def test_second_start_is_run_of_its_own_with_first_settings() -> None:
    made = strategy(rounds=3, run="demo")
    start(made, 1, flower_run=99)
    start(made, flower_run=99)
    assert recorded() == {"demo": [1], "demo-2": [1, 2, 3]}


def test_resume_goes_before_own_name_of_app() -> None:
    start(strategy(rounds=1, run="old"))
    start(strategy(rounds=2, run="hospital"), submitted={"resume": "old"})
    assert recorded() == {"old": [1, 2]}
    assert not (runs_folder("", os.environ) / "hospital").exists()


def test_resumed_app_goes_on_in_each_start() -> None:
    whole = start(strategy(rounds=3, run="whole"))
    made, submitted, resumed, again = strategy(rounds=3, run="demo"), next(RUNS), next(RUNS), next(RUNS)
    first = start(made, 1, submitted)
    start(made, 1, submitted)
    np.testing.assert_array_equal(start(made, 1, resumed, {"resume": "demo"})[0], first[0])
    np.testing.assert_array_equal(start(made, 3, resumed, {"resume": "demo"})[0], whole[0])
    assert recorded() == {"whole": [1, 2, 3], "demo": [1], "demo-2": [1, 2, 3]}
    with Store.open() as store:
        assert store.run("demo").settings["rounds"] == 1
        assert submitted_settings(store, store.run("demo")) == {"rounds": 3}
    start(made, 1, again, {"resume": "demo"})
    with pytest.raises(Unusable, match="run demo-2 is complete at round 3: --set rounds=N, above 3"):
        start(made, 3, again, {"resume": "demo"})


class Lost(PlayedGrid):
    """A grid whose SuperLink is lost."""

    def get_node_ids(self) -> list[int]:
        raise ConnectionError("lost")


def test_later_start_without_models_begins_anew() -> None:
    made, submitted, resumed = strategy(rounds=1, run="demo"), next(RUNS), next(RUNS)
    start(made, 1, submitted)
    with pytest.raises(EdgeFailed, match="lost"):
        start(made, 1, submitted, grid=Lost(adds(1.0)))
    for _ in range(2):
        start(made, 1, resumed, {"resume": "demo"})
    assert recorded() == {"demo": [1], "demo-2": [1]}


def test_app_is_resumed_by_its_first_start() -> None:
    made, submitted = strategy(rounds=1, run="demo"), next(RUNS)
    for _ in range(2):
        start(made, 1, submitted)
    with pytest.raises(Unusable, match=r"demo-2 is a later start of run demo, .*: --resume demo$"):
        start(made, 2, submitted={"resume": "demo-2"})
    assert recorded() == {"demo": [1], "demo-2": [1]}


def test_later_start_leaves_other_run_of_its_name_alone() -> None:
    made, resumed = strategy(rounds=1, run="demo"), next(RUNS)
    start(strategy(rounds=1, run="demo-2"))
    start(made)
    start(made, 2, resumed, {"resume": "demo"})
    with pytest.raises(Unusable, match="run demo-2: there is one of that name already"):
        start(made, 2, resumed, {"resume": "demo"})
    assert recorded() == {"demo-2": [1], "demo": [1, 2]}


def test_resume_or_memory_without_its_counterpart_is_refused() -> None:
    with pytest.raises(Unusable, match="saw memory without sink"):
        FedGC(memory=Memory())
    made = FedGC(config=RunConfig(client_app="stock", resume="demo"), sink=Sink())
    with pytest.raises(Unusable, match="setting resume: saw demo, needed none with a sink"):
        start(made)


def test_settings_without_effect_on_stock_clients_are_named(caplog: pytest.LogCaptureFixture) -> None:
    given = {"gate": "every", "gate_period": 2, "quorum": 0.5, "codec": "int8", "shared_momentum": 0.5}
    start(strategy(rounds=1, link="session", lines_per_s=10.0, **given))
    named = "optimizer.shared-momentum, timing.quorum, gate.name, gate.period, links.kind, links.codec, quota"
    assert f"without effect on stock clients: {named}" in caplog.text
    with Store.open() as store:
        (run,) = store.runs()
        (row,) = store.rounds(run.run)
    assert (run.task, run.present["unit"]) == ("stock", "clients")
    assert (run.present["round"], run.present["rounds"]) == (1, 1)
    assert "2 of 2 stock clients answered" in round_line(row)


def test_messages_are_those_of_stock_clients(caplog: pytest.LogCaptureFixture) -> None:
    start(strategy(rounds=1, link="messages"))
    assert "without effect" not in caplog.text


def test_stock_clients_get_no_config_of_ours() -> None:
    """A client that has a rate of its own unless it is sent one trains as under Flower's strategies."""
    for given in (None, ConfigRecord()):
        grid = PlayedGrid(adds(1.0))
        grid.run = SimpleNamespace(run_id=next(RUNS), override_config={})
        strategy(rounds=1).start(grid, ArrayRecord(FIRST), train_config=given)
        assert [dict(each.content["config"]) for each in grid.sent] == [{"server-round": 1}] * 2
