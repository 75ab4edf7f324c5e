"""Test that a site's server goes on with the run of its gateway, whatever store the gateway has."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.flower import run_memory
from fedgc.flower.recording import recorded
from fedgc.flower.run_memory import remembered
from fedgc.store import checkpoint
from fedgc.store.checkpoint import Checkpoint
from fedgc.store.database import Store
from fedgc.store.liveness import alive
from fedgc.store.views import Run
from tests.config_of import config_of

WAIT_S = 30.0
RUN = "spring-north"


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoints of the site's server."""
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "fedgc" / "runs"


def config(**settings: object) -> RunConfig:
    return config_of({"run": RUN, "work": "local", "gate": "every", **settings})


def record(*, until: ExitStack) -> None:
    recording = until.enter_context(recorded(config(), RUN, 1))
    assert recording.keeper.settled(WAIT_S)


def test_run_of_gateway_goes_on_from_last_checkpoint(runs: Path) -> None:
    with ExitStack() as ended:
        record(until=ended)
    checkpoint.save(runs / RUN, Checkpoint(3, 2, np.ones(8, np.float32), b"", "[]"), 1)
    with remembered(config(site_gateway="/gateway.json"), RUN, 2) as (_, memory):
        assert memory.resume is not None
        assert memory.resume.round == 3
    with pytest.raises(Unusable, match="there is one of that name already"), remembered(config(), RUN, 3):
        pass


def test_server_waits_for_run_of_earlier_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []

    def ends_once_seen(run: Run, now: float) -> bool:
        answers.append(alive(run, now))
        earlier.close()
        return answers[-1]

    with ExitStack() as earlier:
        record(until=earlier)
        monkeypatch.setattr(run_memory, "alive", ends_once_seen)
        with remembered(config(site_gateway="/gateway.json"), RUN, 2) as (_, memory):
            assert memory.resume is None
        assert answers == [True, False]
    with ExitStack() as earlier:
        record(until=earlier)
        monkeypatch.setattr(run_memory, "alive", alive)
        monkeypatch.setattr(run_memory, "END_S", 0.0)
        with (
            pytest.raises(EdgeFailed, match="saw it under way for 0 s, needed the end of it"),
            remembered(config(site_gateway="/gateway.json"), RUN, 3),
        ):
            pass
        with Store.open() as store:
            assert store.run(RUN).state == "running"
