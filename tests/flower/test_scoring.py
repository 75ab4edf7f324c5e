"""Test that clients score a saved model over real sessions, without training."""

import json
import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgc.errors import EdgeFailed
from fedgc.flower.job import Job
from fedgc.flower.scoring import RESULT, Parts, Scoring
from fedgc.flower.sink import Sink
from fedgc.history import Speeds
from fedgc.links.identity import Identity
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Held, Joined, LinkEvent, Lost, Scored, Stop
from fedgc.run.initialization import Initialization
from fedgc.store.checkpoint import Checkpoint
from fedgc.training import CommonModel
from fedgc.training.tasks import named
from tests.config_of import config_of
from tests.flower.test_driver import SETTINGS, norm_of, serve
from tests.links.conftest import WAIT_S
from tests.links.test_links import PlainLink

LOG = logging.getLogger("test")


def score(folder: Path, validate, clients: int = 2, stop: str = "", **settings: object) -> Mapping[str, Any]:
    """Score a model of ones on so many clients."""
    torch.set_num_threads(1)
    asked = {"resume": "r", "validate_only": 5, "min_clients": 2, **settings}
    config = config_of({**SETTINGS, "work": "local", "replicas": "auto", **asked})
    task = replace(named("digits", config), validate=validate)
    model = CommonModel(task, config)
    saved = Checkpoint(7, 5, np.ones(model.size, np.float32), b"", json.dumps({}))
    events = queue.SimpleQueue()
    around = Surroundings(time.monotonic, os.urandom, time.time, LOG)
    listener = Listener(config, "r@1", model.size, events.put, around)
    listener.start()
    job = Job(model, config, Sink(), Speeds())
    threads = [
        threading.Thread(
            target=serve,
            args=(job, listener.invite(), Identity(secrets.token_bytes(32)), folder / str(number)),
        )
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    if stop:
        events.put(Stop(0.0, stop))
    scoring = Scoring(config, saved, Initialization(model.layout), Parts(events, time.monotonic, LOG))
    try:
        return scoring.drive(listener)
    finally:
        listener.close("the model is scored", complete=True)
        for thread in threads:
            thread.join(WAIT_S)


@pytest.mark.parametrize("work", ["local", "coded"])
def test_every_client_scores_saved_model(tmp_path: Path, caplog: pytest.LogCaptureFixture, work: str) -> None:
    caplog.set_level(logging.INFO)
    result = score(tmp_path, norm_of, work=work)
    ones = CommonModel(named("digits", config := config_of({**SETTINGS, "work": work})), config)
    with torch.no_grad():
        expected = norm_of(ones.module(np.ones(ones.size, np.float32)))["norm"]
    assert (result["version"], result["round"], result["problems"]) == (5, 7, {})
    assert [each["metrics"]["norm"] for each in result["clients"]] == pytest.approx([expected] * 2)
    assert result["mean"] == pytest.approx({"norm": expected})
    said = [record.getMessage() for record in caplog.records if RESULT in record.getMessage()]
    assert [json.loads(line.removeprefix(RESULT)) for line in said] == [result]


def test_client_without_validate_is_named(tmp_path: Path) -> None:
    with pytest.raises(EdgeFailed, match=r"no client returned figures; .*: it has no function `validate`"):
        score(tmp_path, None)


def test_missing_clients_end_scoring(tmp_path: Path) -> None:
    with pytest.raises(EdgeFailed, match=r"waited 0.5 s for 2 clients, saw [01]"):
        score(tmp_path, norm_of, clients=1, start_timeout_s=0.5)


def test_stopped_scoring_ends_with_reason(tmp_path: Path) -> None:
    with pytest.raises(EdgeFailed, match="stopped by hand"):
        score(tmp_path, norm_of, clients=0, stop="stopped by hand")


class Played:
    """Events that are there at once; after them only time passes."""

    def __init__(self, *events: LinkEvent) -> None:
        self.events, self.now = list(events), 0.0

    def get(self, timeout: float) -> LinkEvent:
        self.now += timeout
        if not self.events:
            raise queue.Empty
        return self.events.pop(0)

    def put(self, event: LinkEvent) -> None:
        self.events.append(event)


def joined(client: str) -> Joined:
    return Joined(0.0, client, True, (Held("x", 1),))


def scored(client: str, value: float) -> Scored:
    return Scored(0.0, client, 5, 1, (("norm", value),), "")


def result_of(*events: LinkEvent) -> Mapping[str, Any]:
    config = config_of({**SETTINGS, "min_clients": 2, "start_timeout_s": 60.0})
    played, saved = Played(*events), Checkpoint(7, 5, np.ones(3, np.float32), b"", json.dumps({}))
    parts = Parts(played, lambda: played.now, LOG)
    return Scoring(config, saved, Initialization(), parts).drive(PlainLink("s"))


def test_client_without_figures_is_awaited_for_limited_time() -> None:
    result = result_of(joined("a"), joined("b"), scored("a", 2.0))
    assert result["mean"] == {"norm": 2.0}
    assert list(result["problems"].values()) == ["it returned no figures within 60 s of the last ones"]


def test_client_that_comes_back_is_awaited_again() -> None:
    result = result_of(
        joined("a"), joined("b"), Lost(0.0, "b"), joined("b"), scored("a", 2.0), scored("b", 4.0)
    )
    assert (result["mean"], result["problems"]) == ({"norm": 3.0}, {})
