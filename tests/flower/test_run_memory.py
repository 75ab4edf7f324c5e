"""Test which run a server goes on with: no other server has it, and a site's is that of its gateway."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.flower import run_memory
from fedgc.flower.recording import recorded
from fedgc.flower.run_memory import remembered
from fedgc.history import BestModel, KnownBest
from fedgc.store import checkpoint
from fedgc.store.checkpoint import Checkpoint
from fedgc.store.database import Store
from fedgc.store.liveness import alive
from fedgc.store.views import Run
from tests.cli.test_follow import ROW
from tests.config_of import config_of

WAIT_S = 30.0
RUN = "spring-north"
SERVER = f"""
from fedgc.flower.recording import recorded
from tests.flower.test_run_memory import WAIT_S, config
with recorded(config(), "{RUN}", 1) as recording:
    recording.keeper.settled(WAIT_S)
    print("recorded", flush=True)
    input()
"""


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


@pytest.fixture
def server(runs: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has the run under way."""
    words = [sys.executable, "-c", SERVER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"recorded\n"
        yield process
        process.kill()


def test_run_of_gateway_goes_on_from_last_checkpoint(runs: Path) -> None:
    with ExitStack() as ended:
        record(until=ended)
    checkpoint.save(runs / RUN, Checkpoint(3, 2, np.ones(8, np.float32), b"", "[]"), 1)
    with remembered(config(site_gateway="/gateway.json"), RUN, 2) as (_, memory):
        assert memory.resume is not None
        assert memory.resume.round == 3
    with pytest.raises(Unusable, match="there is one of that name already"), remembered(config(), RUN, 3):
        pass


def test_resume_knows_evaluations_since_best_model(runs: Path) -> None:
    best = BestModel("accuracy", 1, 1, 0.9)
    with remembered(config(), RUN, 1) as (sink, _):
        for number in range(1, 5):
            sink.append(replace(ROW, round=number))
            sink.evaluated(number, {"accuracy": 0.8 if number < 4 else 0.7})
        sink.improved(best)
    checkpoint.save(runs / RUN, Checkpoint(4, 4, np.ones(8, np.float32), b"", "[]"), 1)
    with remembered(config(resume=RUN), RUN, 2) as (_, memory):
        assert memory.best == KnownBest(*astuple(best), since=2), "the model of round 4 is evaluated again"


@pytest.mark.parametrize("resume", ["", RUN])
def test_run_of_living_server_is_not_begun_again(
    runs: Path, monkeypatch: pytest.MonkeyPatch, server: subprocess.Popen[bytes], resume: str
) -> None:
    monkeypatch.setattr(run_memory, "END_S", 0.0)
    if resume:
        checkpoint.save(runs / RUN, Checkpoint(3, 2, np.ones(8, np.float32), b"", "[]"), 1)
    refused = pytest.raises(EdgeFailed, match=f"run {RUN}: saw it under way for 0 s")
    with refused, remembered(config(resume=resume), RUN, 2):
        pass
    with Store.open() as store:
        assert store.run(RUN).state == "running"
    server.kill()
    server.wait()
    with remembered(config(resume=resume), RUN, 3) as (_, memory):
        assert (memory.resume is not None) is bool(resume)


@pytest.mark.parametrize("resume", ["", RUN])
def test_second_server_of_run_that_begins_is_refused(
    runs: Path, monkeypatch: pytest.MonkeyPatch, resume: str
) -> None:
    second: list[str] = []

    def begin_second(*_: object) -> None:
        monkeypatch.setattr(run_memory.preconditions, "must_be_kept", lambda *_: None)
        with pytest.raises(EdgeFailed) as refused, remembered(config(resume=resume), RUN, 2):
            pass
        second.append(str(refused.value))

    if resume:
        with ExitStack() as ended:
            record(until=ended)
        checkpoint.save(runs / RUN, Checkpoint(3, 2, np.ones(8, np.float32), b"", "[]"), 1)
    monkeypatch.setattr(run_memory, "END_S", 0.0)
    monkeypatch.setattr(run_memory.preconditions, "must_be_kept", begin_second)
    with remembered(config(resume=resume), RUN, 1):
        pass
    assert second == [f"run {RUN}: saw it under way for 0 s, needed the end of it"]
    with Store.open() as store:
        assert store.run(RUN).state == "completed"


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
