"""Test a whole run over real sessions without Flower: engines train, the driver executes commands."""

import hashlib
import json
import logging
import os
import queue
import random
import re
import secrets
import threading
import time
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgc.codecs.model_change import ChangeForm
from fedgc.errors import BadSetting
from fedgc.flower.client_loop import ClientLoop
from fedgc.flower.driver import Driver
from fedgc.flower.job import Job
from fedgc.flower.sink import Live, Sink
from fedgc.flower.strategy import _result
from fedgc.history import BestModel, ClientRow, RoundRow, Speeds
from fedgc.links.identity import Identity
from fedgc.links.receivers.receivers import session_link
from fedgc.links.session.client import Session, Terms
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Joined, Lost, Mix, Work
from fedgc.run.machine import Append
from fedgc.secagg.privacy import epsilon
from fedgc.store.checkpoint import Checkpoint
from fedgc.training import CommonModel, Engine, ServerOptimizer, new_engine
from fedgc.training.pace import Pace
from fedgc.training.tasks import Task, named
from tests.config_of import config_of
from tests.links.conftest import GRACE_S, WAIT_S
from tests.turns import step_by_turns

SETTINGS = {"rounds": 2, "chunks": 4, "replicas": 2, "min_clients": 3, "threads": 1, "grace_s": GRACE_S}


UNMEASURED = {"evaluate_every": 0}  # evaluation draws from the same generator


class Kept(Sink):
    """A sink that keeps all records."""

    def __init__(self) -> None:
        self.rows: list[RoundRow] = []
        self.metrics: dict[int, dict[str, float]] = {}
        self.phases: list[str] = []
        self.live: list[Live] = []
        self.scores: dict[int, dict[str, dict[str, float]]] = {}
        self.best: BestModel | None = None
        self.early = ""
        self.audit: list[tuple[str, str, str]] = []

    def append(self, row: RoundRow) -> None:
        self.rows.append(row)

    def present(self, live) -> None:
        self.phases.append(live.phase)
        self.live.append(live)

    def evaluated(self, round_: int, metrics) -> None:
        self.metrics[round_] = dict(metrics)

    def scored(self, round_: int, client: str, samples: int, metrics) -> None:
        self.scores.setdefault(round_, {})[client] = dict(metrics)

    def improved(self, best) -> None:
        self.best = best

    def ended_early(self, reason: str) -> None:
        self.early = reason

    def stopped(self, reason: str) -> None:
        self.phases.append("stopped")

    def chose(self, round_: int, basis, reason: str) -> None:
        self.phases.append("planned")

    def audited(self, kind: str, who: str, what: str) -> None:
        self.audit.append((kind, who, what))


class Travelled:
    """Chunks of which each came from a store just before it was trained."""

    def digest(self, name: str) -> str:
        return name[-4:]

    def has(self, name: str) -> bool:
        return True

    def hold(self, names: list[str]) -> None:
        pass

    def fetched(self) -> tuple[int, int, float]:
        return 1, 500, 0.1


def no_labels(model: object, batch: object) -> torch.Tensor:
    raise ValueError("no labels")


def no_validation(model: object) -> dict[str, float]:
    raise ValueError("no data")


def run(folder: Path, **settings: object) -> tuple[Driver, Kept, list[Checkpoint]]:
    """Run to the end with as many engines as the settings wait for."""
    torch.set_num_threads(1)
    wrapped = settings.pop("wrapped", lambda sink: sink)
    resume, changes = settings.pop("resume", None), settings.pop("changes", {})
    pinned, others = settings.pop("pinned", []), settings.pop("others", ())
    own = settings.pop("own", None)  # engines of the task; by default as many as the run waits for
    late_after = settings.pop("late_after", 0)  # rounds, after which one more client joins
    keys = settings.pop("keys", folder)  # of a run that goes on: its clients come back
    config = config_of({"work": "coded", **SETTINGS, **settings})
    sink, saved, log = Kept(), [], logging.getLogger("test")
    task = replace(named("digits", config), **changes)
    job = Job(
        CommonModel(task, config), config, wrapped(sink), Speeds(), saved.append, resume, pin=pinned.append
    )
    driver = Driver(job, time.monotonic, log)
    around = Surroundings(time.monotonic, os.urandom, time.time, log)
    listener = session_link(config, "run-1", driver.events.put, around)
    listener.expect(driver.common.size, driver.common.layout.buffer_size)
    listener.start()
    clients = [
        threading.Thread(
            target=serve,
            args=(job, listener.invite(), identity(keys / str(n)), folder / str(n)),
        )
        for n in range(config.min_clients if own is None else own)
    ]
    clients += [
        threading.Thread(
            target=serve,
            args=(job, listener.invite(), identity(folder / f"other-{n}"), folder / f"other-{n}", other),
        )
        for n, other in enumerate(others)
    ]
    if late_after:
        late = identity(folder / "late"), folder / "late"
        clients.append(
            threading.Thread(target=serve_late, args=(sink, late_after, job, listener.invite(), *late))
        )
    for client in clients:
        client.start()
    try:
        driver.drive(listener)
    finally:
        listener.close("the run is over")
        for client in clients:
            client.join(WAIT_S)
    return driver, sink, saved


def identity(folder: Path) -> Identity:
    """Return an identity that is the same in every test session: clients draw from their names."""
    seed = hashlib.sha256(f"{folder.parent.name}/{folder.name}".encode()).digest()
    return Identity(seed)


def serve_late(sink: Kept, rounds: int, *args: object) -> None:
    end = time.monotonic() + WAIT_S
    while len(sink.rows) < rounds and time.monotonic() < end:
        time.sleep(0.001)
    serve(*args)


def serve(job: Job, invitation, who, folder: Path, task: Task | None = None) -> None:
    def engine(rest) -> Engine:
        trained = task or job.model.task
        return step_by_turns(new_engine(trained, job.config, Pace(time.monotonic, rest), folder))

    loop = ClientLoop(engine)
    changes = ChangeForm(job.config.fragments, job.config.download_codec)
    terms = Terms(GRACE_S, 64 * 1024, loop.engine.size, time.monotonic, random.random, changes=changes)
    with Session(invitation, who, terms) as session:
        loop.serve(session, who.client)
    loop.engine.close()


def frozen_at(number: float) -> torch.nn.Module:
    """The model of the task, with a frozen parameter of this value."""
    module = named("digits", config_of(SETTINGS)).model()
    module.register_parameter("base", torch.nn.Parameter(torch.full((4,), number), requires_grad=False))
    return module


def test_client_with_other_base_takes_no_part(tmp_path: Path) -> None:
    task = replace(named("digits", config_of(SETTINGS)), model=lambda: frozen_at(1.0))
    other = replace(task, model=lambda: frozen_at(2.0))
    driver, sink, _ = run(tmp_path, changes={"model": task.model}, min_clients=2, others=[other], rounds=3)
    refusals = [what for kind, _, what in sink.audit if kind == "refused"]
    assert len(refusals) == 1
    assert f"needed {driver.common.layout.frozen[:12]}; load the same base model" in refusals[0]
    assert all(len(row.clients) == 2 for row in sink.rows)


def test_run_of_known_fleet_ends_once_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run does not wait for `timing.start-timeout-s`, nor for the other client."""
    task = replace(named("digits", config_of(SETTINGS)), model=lambda: frozen_at(1.0))
    monkeypatch.setattr("tests.flower.test_driver.Job", partial(Job, fleet=2))
    other = replace(task, model=lambda: frozen_at(2.0))
    words = {"own": 0, "others": [other], "min_clients": 2, "start_timeout_s": 600.0}
    driver, _, _ = run(tmp_path, changes={"model": task.model}, **words)
    assert driver.finished is not None
    assert "its model differs from the run's" in driver.finished.reason
    assert driver.finished.reason.endswith("; 1 of 2 clients are left, needed min-clients, 2")


def test_run_without_enough_clients_names_last_refusal(tmp_path: Path) -> None:
    other = replace(named("digits", config_of(SETTINGS)), model=lambda: frozen_at(2.0))
    driver, _, _ = run(tmp_path, own=0, others=[other], min_clients=1, start_timeout_s=5.0)
    assert driver.finished is not None
    assert re.fullmatch(
        r"\S+ was refused: its model differs from the run's: .*; waited 5 s for 1 client, saw 0",
        driver.finished.reason,
    )


@pytest.mark.parametrize("rollback", ["auto", "off"])
def test_run_returns_to_best_model_after_collapse(tmp_path: Path, rollback: str) -> None:
    accuracies = iter([0.1, 0.5, 0.7, 0.8, 0.9, 0.2, *[0.85] * 20])
    evaluate = {"evaluate": lambda _: {"accuracy": next(accuracies)}}
    _, sink, saved = run(tmp_path, rounds=12, changes=evaluate, rollback=rollback)
    (best,) = [round_ for round_, figures in sink.metrics.items() if figures["accuracy"] == 0.9]
    models = {each.version: each.model for each in saved}
    again = [v for v, model in models.items() if v > best and np.array_equal(model, models[best])]
    audit = [what for kind, _, what in sink.audit if kind == "rollback"]
    assert len(again) == len(audit) == (rollback == "auto")
    if audit:
        assert (
            f": accuracy 0.2 after 0.9 (on the server): the run goes back to the model of round {best};"
            in audit[0]
        )
        assert all(client in audit[0] for client in counted(sink.rows[best]))


def counted(row: RoundRow) -> set[str]:
    """Return the clients whose work is in a round's sum."""
    return {each.client for each in row.clients if each.counted}


@pytest.mark.parametrize("receivers", [1, 2])
def test_model_equals_single_machine_training(tmp_path: Path, receivers: int) -> None:
    driver, sink, _ = run(tmp_path, receivers=receivers, **UNMEASURED)
    alone = one_machine(driver, tmp_path / "alone")
    np.testing.assert_allclose(driver.model, alone, atol=2e-5)
    assert [row.outcome for row in sink.rows] == ["synced", "synced"]
    assert not np.allclose(driver.model, driver.common.first(), atol=1e-3)


def one_machine(driver: Driver, folder: Path) -> np.ndarray:
    """Slow reference: train every chunk in sequence and take the sum."""
    config = driver._job.config
    model = driver.common.first()
    optimizer = ServerOptimizer(config, driver.common.parameters)
    chunks = tuple(enumerate(driver._job.model.task.sizes()))
    numbers = tuple(number for number, _ in chunks)
    for version in range(config.rounds):
        engine = new_engine(
            driver._job.model.task, config, Pace(time.monotonic, time.sleep), folder / str(version)
        )
        engine.load(version, model)
        work = Work("a", version + 1, version, config.round_steps, numbers, chunks, config.seed, 60.0)
        engine.handle(work)
        while not engine.idle:
            engine.step()
        total = engine.codeword(Mix(numbers, ((1.0,),) * len(numbers)))
        samples = sum(driver._job.model.task.sizes().values())
        model = optimizer.apply(model, (total / samples).astype(np.float32))
        engine.close()
    return model


def test_run_gives_rows_metrics_summaries_and_checkpoints(tmp_path: Path) -> None:
    driver, sink, saved = run(tmp_path)
    assert sorted(sink.metrics) == [1, 2]
    assert (sink.metrics, {}) == driver.figures
    assert sink.phases[-1] == "over"
    for row in sink.rows:
        assert len(row.clients) == 3
        assert sum(client.up_bytes for client in row.clients) >= driver.common.size * 4
        assert all(client.down_bytes >= driver.common.size * 4 for client in row.clients)
        assert all(client.link == "session" for client in row.clients)
    assert [checkpoint.version for checkpoint in saved] == [1, 2]
    np.testing.assert_array_equal(saved[-1].model, driver.model)
    assert saved[-1].shapes == driver.common.layout.shapes


@pytest.mark.parametrize("known", [8, 9], ids=["no names of clients", "no clients that were asked"])
def test_run_resumes_from_checkpoint_of_earlier_version(tmp_path: Path, known: int) -> None:
    whole, _, _ = run(tmp_path / "whole", rounds=3, **UNMEASURED)
    _, _, saved = run(tmp_path / "first", rounds=1, **UNMEASURED)
    earlier = replace(saved[-1], state=json.dumps(json.loads(saved[-1].state)[:known]))
    second, sink, _ = run(
        tmp_path / "second", rounds=3, **UNMEASURED, resume=earlier, keys=tmp_path / "first"
    )
    assert [row.round for row in sink.rows] == [2, 3]
    np.testing.assert_allclose(second.model, whole.model, atol=2e-5)


def test_checkpoint_of_model_with_other_tensors_is_refused() -> None:
    config = config_of({})
    model = CommonModel(named("digits", config), config)
    made = Checkpoint(1, 1, model.first(), b"", "[]", shapes=model.layout.shapes)
    for kept in (made, replace(made, shapes=())):  # earlier versions of fedgc wrote none
        assert Job(model, config, Sink(), Speeds(), resume=kept).resume is kept
    first, second, *rest = model.layout.shapes
    for other in ((second, first, *rest), (("renamed", first[1]), second, *rest)):
        with pytest.raises(BadSetting, match=rf"setting resume: saw a model with {other[0][0]} of shape .*"):
            Job(model, config, Sink(), Speeds(), resume=replace(made, shapes=other))
    smaller = Checkpoint(1, 1, made.model[:-1], b"", "[]")
    with pytest.raises(BadSetting, match=f"saw a model of {model.size - 1} numbers, needed {model.size}"):
        Job(model, config, Sink(), Speeds(), resume=smaller)


PRIVATE = {"work": "local", "local_steps": 4, "replicas": "auto", "privacy_noise": 1.0, "privacy_clip": 0.5}


def test_private_run_ends_when_budget_is_spent_and_stays_spent(tmp_path: Path) -> None:
    plain = {"model": lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))}
    private = {**PRIVATE, "changes": plain, "rounds": 9, "privacy_epsilon": 8.5, "privacy_clip_quantile": 0.5}
    driver, sink, saved = run(tmp_path / "first", **private)
    spent = [sink.metrics[row.round]["epsilon"] for row in sink.rows if row.outcome == "synced"]
    assert spent == pytest.approx([epsilon(1.0, n, 1e-6) for n in (1, 2)])
    assert driver.finished is not None
    assert driver.finished.complete
    assert "the privacy budget is spent" in sink.early
    assert [each.version for each in saved] == [1, 2]  # in time, one for each exchange
    with pytest.raises(BadSetting, match="saw a run with client-level privacy"):
        run(tmp_path / "bare", **{**PRIVATE, "privacy_noise": "auto"}, changes=plain, resume=saved[-1])
    again, rest, _ = run(tmp_path / "again", **private, resume=saved[0], keys=tmp_path / "first")
    assert [rest.metrics[row.round]["epsilon"] for row in rest.rows if row.outcome == "synced"] == spent[1:]
    assert again.finished is not None


def test_private_run_refuses_running_statistics(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="saw a model with 32 numbers of running statistics"):
        run(tmp_path, **PRIVATE)


def warned(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_first_client_fault_is_logged_once(tmp_path, caplog) -> None:
    driver, _, saved = run(tmp_path, changes={"loss": no_labels}, **UNMEASURED)
    assert len(warned(caplog)) == 3, "one for each client"
    assert all(
        line.startswith("round 1: ") and line.endswith("ValueError: no labels") for line in warned(caplog)
    )
    assert driver.finished is not None
    assert not driver.finished.complete
    assert driver.finished.reason.endswith(
        "ValueError: no labels; 2 rounds done, and no work was ever counted"
    )
    assert not saved


def test_nothing_counts_in_round_whose_update_is_left_out(tmp_path: Path, caplog) -> None:
    local = {"work": "local", "replicas": 1, "aggregator": "krum", "aggregator_options": "f=1"}
    driver, sink, _ = run(tmp_path, gate="every", **local, **UNMEASURED)
    assert all(
        "the mean update is left out: aggregator krum: saw 3 updates" in line for line in warned(caplog)
    )
    assert np.array_equal(driver.model, driver.common.first())
    assert driver.finished is not None
    assert not driver.finished.complete
    assert driver.finished.reason.endswith("; 2 rounds done, and every update was left out")
    assert [row.outcome for row in sink.rows] == ["approximate"] * 2
    for row in sink.rows:
        assert "the mean update is left out: aggregator krum: saw 3 updates" in row.reason
        assert (row.coverage, row.discarded) == (0.0, sum(each.finished for each in row.clients))
        assert counted(row) == set()


def test_failed_evaluation_is_logged_once(tmp_path: Path, caplog) -> None:
    driver, sink, _ = run(tmp_path, changes={"evaluate": lambda _: 0.5})
    assert warned(caplog) == ["round 1: evaluate() returned 0.5, needed a mapping from names to numbers"]
    assert not sink.metrics
    assert driver.finished is not None
    assert driver.finished.complete


def norm_of(model) -> dict[str, float]:
    return {"norm": float(sum(each.double().norm() for each in model.parameters()))}


def test_clients_score_every_model_and_last(tmp_path: Path) -> None:
    _, sink, _ = run(tmp_path, changes={"validate": norm_of, "evaluate": None})
    assert {round_: len(own) for round_, own in sink.scores.items()} == {0: 3, 1: 3, 2: 3}
    assert sorted(sink.metrics) == [0, 1, 2]
    for round_, own in sink.scores.items():
        assert all(each == pytest.approx(sink.metrics[round_]) for each in own.values())


def test_result_holds_figures_of_server_and_clients_apart(tmp_path: Path) -> None:
    """Flower's result has a place for each; those of clients hid the server's of the same name."""
    driver, _, _ = run(tmp_path, changes={"validate": lambda model: {"accuracy": 2.0}})
    result = _result(driver, None)
    assert sorted(result.evaluate_metrics_clientapp) == [0, 1, 2]
    assert all(dict(each) == {"accuracy": 2.0} for each in result.evaluate_metrics_clientapp.values())
    assert sorted(result.evaluate_metrics_serverapp) == [1, 2]
    assert all(each["accuracy"] <= 1.0 for each in result.evaluate_metrics_serverapp.values())


def test_local_clients_score_last_model(tmp_path: Path) -> None:
    _, sink, _ = run(tmp_path, changes={"validate": norm_of, "evaluate": None}, work="local", replicas="auto")
    assert {round_: len(own) for round_, own in sink.scores.items()} == {0: 3, 1: 3, 2: 3}


@pytest.mark.parametrize("work", ["local", "coded"])
def test_run_ends_complete_if_no_model_is_better(tmp_path: Path, work: str) -> None:
    scored = {"validate": lambda model: {"accuracy": 0.5}, "evaluate": None}
    settings = {"work": work, "best": "accuracy", "best_patience": 2, "rounds": 50, "replicas": "auto"}
    driver, sink, _ = run(tmp_path, changes=scored, **settings, pinned=(pinned := []))
    assert driver.finished is not None
    assert driver.finished.complete
    assert sink.early == driver.finished.reason
    assert sink.early == ("accuracy has not improved for 2 evaluations; best is version 0, round 0, 0.5")
    assert sink.best == BestModel("accuracy", 0, 0, 0.5)
    assert [each.version for each in pinned] == [0]
    assert len(sink.rows) < 50
    assert sink.rows[-1].outcome == "stopped"


def test_evaluation_of_server_chooses_best_model(tmp_path: Path) -> None:
    _, sink, _ = run(tmp_path, best="accuracy", pinned=(pinned := []))
    assert sorted(sink.metrics) == [0, 1, 2]
    assert sink.best is not None
    assert sink.best.value == max(each["accuracy"] for each in sink.metrics.values())
    assert pinned[-1].version == sink.best.version


def test_unreported_figure_ends_run(tmp_path: Path) -> None:
    driver, _, _ = run(tmp_path, best="f1", changes={"validate": norm_of, "evaluate": None}, rounds=50)
    assert driver.finished is not None
    assert not driver.finished.complete
    assert driver.finished.reason == "setting validate.best: needed the figure f1, saw figures norm"


@pytest.mark.parametrize(
    ("validate", "problem"),
    [
        (lambda model: "good", "validate() returned 'good', needed a mapping from names to numbers"),
        (lambda model: {"accuracy": "good"}, "validate() returned accuracy = 'good', needed a number"),
        (no_validation, "validate() raised ValueError: no data"),
    ],
)
def test_bad_validate_is_one_warning_of_each_client(tmp_path: Path, caplog, validate, problem: str) -> None:
    driver, sink, _ = run(tmp_path, changes={"validate": validate, "evaluate": None})
    assert len(warned(caplog)) == 3
    assert all(line.endswith(f": {problem}") for line in warned(caplog))
    assert driver.finished is not None
    assert driver.finished.complete
    assert not sink.scores


def test_client_that_several_rounds_waited_for_is_excluded(tmp_path: Path) -> None:
    """Its session ends with the reason."""
    config = config_of({"work": "coded", **SETTINGS})
    sink, log, events = Kept(), logging.getLogger("test"), queue.SimpleQueue()
    job = Job(CommonModel(named("digits", config), config), config, sink, Speeds())
    driver = Driver(job, time.monotonic, log, events)
    around = Surroundings(time.monotonic, os.urandom, time.time, log, sink.audited)
    listener = Listener(config, "run-1", driver.common.size, events.put, around)
    listener.start()
    who = Identity(secrets.token_bytes(32))
    terms = Terms(GRACE_S, 1024, driver.common.size, time.monotonic, random.random)
    try:
        with Session(listener.invite(), who, terms) as session:
            session.send(Joined(0.0, who.client, True, ()))
            assert isinstance(events.get(timeout=WAIT_S), Joined)
            zero = {each.name: 0 for each in fields(RoundRow)}
            mute = ClientRow(who.client, failure="no progress for 30 s")
            said = {"reason": "", "left_out": "", "outcome": "approximate", "metrics": {}}
            row = RoundRow(**{**zero, **said, "working_s": 30.0, "clients": (mute,)})
            for _ in range(3):
                driver._do(Append(row, frozenset({who.client})), listener)
            session.receive(WAIT_S)
            why = "in 3 rounds in a row the others waited for it, and it gave nothing (no progress for 30 s)"
            assert session.ended == f"excluded for 5 s: {why}"
            assert isinstance(events.get(timeout=WAIT_S), Lost)
    finally:
        listener.close("over")
    assert ("excluded", who.client, f"excluded for 5 s: {why}") in sink.audit


def test_live_state_tells_awaited_clients_and_present_data(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fedgc.flower.driver.PRESENT_S", 0.0)  # after every event
    _, sink, _ = run(tmp_path, **UNMEASURED, changes={"source": Travelled()})
    gathers = [live for live in sink.live if live.phase == "gathering"]
    works = [live for live in sink.live if live.phase in ("working", "collecting")]
    assert 1 <= gathers[0].needed <= 3
    assert all(live.until is not None and live.since <= live.until for live in works)
    assert any(each.awaited for live in works for each in live.clients)
    assert all(live.data.present_samples == live.data.known_samples > 0 for live in works[-1:])
    assert all(each.samples and each.chunks for each in works[-1].clients)
    assert not any(each.awaited for each in sink.live[-1].clients), "the run is over"
    data = sink.live[-1].data
    assert data.fetched_bytes == 500 * data.fetched_chunks > 0
