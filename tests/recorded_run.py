"""A whole run over real TLS in this process, with a recorder of all that server and clients are sent."""

import logging
import os
import queue
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from fedgc.flower.client_loop import ClientLoop, Wait
from fedgc.flower.driver import Driver
from fedgc.flower.job import Job
from fedgc.flower.masked_client import MaskedClient
from fedgc.flower.sink import Sink
from fedgc.history import Speeds
from fedgc.links import identity
from fedgc.links.frames import Data, Parts
from fedgc.links.pieces import Vector
from fedgc.links.session.client import Session, Terms
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Progress, Report
from fedgc.secagg import Federation, Privacy, Quantizer
from fedgc.secagg.federation import member_list
from fedgc.store.vault import Vault
from fedgc.training import CommonModel, Engine, new_engine
from fedgc.training.engine import Answer
from fedgc.training.pace import Pace
from fedgc.training.tasks import Task
from tests.config_of import config_of
from tests.links.conftest import GRACE_S, WAIT_S
from tests.turns import step_by_turns

SAMPLES = (1361, 1373, 1381)  # of the clients: numbers that occur nowhere else
SETTINGS: Mapping[str, object] = {
    "task": "digits", "work": "local", "rounds": 2, "local_steps": 3, "min_clients": len(SAMPLES),
    "threads": 1, "device": "cpu", "grace_s": GRACE_S, "start_timeout_s": WAIT_S, "evaluate_every": 0,
    "gate": "every", "lockstep": "on", "shared_momentum": "off", "largest_share": 1.0, "quorum": 1.0,
}  # fmt: skip
SECRET = b"a long secret"
WINDOW = 12  # numbers that are searched for at a time: no other 48 bytes are equal by chance


@dataclass(slots=True)
class Recording:
    """What one client sent and was sent, without TLS, and what it knows itself."""

    sent: list[bytes] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    models: list[Vector] = field(default_factory=list)  # as they were sent to it
    updates: list[Vector] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """The recordings of a run's clients, and its models."""

    clients: list[Recording]
    driver: Driver
    first: Vector

    def mean(self, weights: Sequence[int]) -> Vector:
        """Return the mean of the first updates."""
        updates = [each.updates[0].astype(np.float64) for each in self.clients]
        found: Vector = np.average(updates, axis=0, weights=weights).astype(np.float32)
        return found


class Recorded(Session):
    """A session that keeps the frames of both directions as they are before and after TLS."""

    recording: Recording

    def next_message(self, stream: object) -> Parts | None:
        message = super().next_message(stream)
        if message is not None:
            self.recording.sent.append(b"".join(message))
        return message

    def arrived(self, stream: object, frame: Data) -> None:
        self.recording.received.append(bytes(frame))
        super().arrived(stream, frame)

    def fresh_model(self, version: int) -> Vector | None:
        found = super().fresh_model(version)
        if found is not None:
            self.recording.models.append(found.copy())
        return found


def task_of(number: int) -> Task:
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(SAMPLES[number], 20, generator=generator)
    labels = (inputs[:, number] > 0).long()
    return Task(
        model=lambda: torch.nn.Linear(20, 2),
        chunks={f"ward {number}": SAMPLES[number]},
        load=lambda _: (inputs, labels),
        loss=lambda module, batch: torch.nn.functional.cross_entropy(module(batch[0]), batch[1]),
    )


def run(folder: Path, *, masked: bool = False, privacy: Privacy | None = None, **settings: object) -> Run:
    """Run two rounds with three clients; `privacy` is that of the descriptor of a masked run."""
    secrecy = {"secrecy": "masked", "federation": "all.fed"} if masked else {}
    config, log = config_of({**SETTINGS, **secrecy, **settings}), logging.getLogger("test")
    vaults = [Vault.open(folder / f"{number}.db", SECRET) for number in range(len(SAMPLES))] if masked else []
    federation = _federation(vaults, privacy) if masked else None
    events: queue.SimpleQueue[object] = queue.SimpleQueue()
    model = CommonModel(task_of(0), config)
    job = Job(model, config, Sink(), Speeds(), federation=federation, name="run-1")
    driver = Driver(job, time.monotonic, log, events)
    around = Surroundings(time.monotonic, os.urandom, time.time, log)
    listener = Listener(config, "run-1", model.size, events.put, around)
    listener.start()
    recordings = [Recording() for _ in SAMPLES]

    def follow(number: int) -> None:
        recording = recordings[number]

        def made(rest: Wait) -> Engine:
            pace = Pace(time.monotonic, rest)
            return _spied(new_engine(task_of(number), config, pace, folder / f"spill-{number}"), recording)

        site = MaskedClient(federation, vaults[number], config, time.time, os.urandom) if federation else None
        loop = ClientLoop(made, site=site)
        terms = Terms(config.grace_s, 1 << 20, loop.engine.size, time.monotonic, random.random)
        with identity.hold(folder / f"key-{number}") as who:
            session = Recorded(listener.invite(), who, terms)
            session.recording = recording
            with session:
                loop.serve(session, who.client)
        loop.engine.close()
        if site is not None:
            site.close()

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(len(SAMPLES))]
    for thread in threads:
        thread.start()
    try:
        driver.drive(listener)
    finally:
        listener.close("the run is over")
        for thread in threads:
            thread.join(WAIT_S)
    return Run(recordings, driver, model.first())


def holds_numbers(recorded: list[bytes], vector: Vector) -> bool:
    """Whether some of these numbers were sent as they are."""
    data = b"".join(recorded)
    return any(
        vector[first : first + WINDOW].tobytes() in data for first in range(0, vector.size - WINDOW, WINDOW)
    )


def holds_text(recorded: list[bytes], number: float) -> bool:
    """Whether a number was sent in a line."""
    pattern = rb"(?<![0-9.])" + re.escape(str(number)).encode() + rb"(?![0-9.])"
    return any(re.search(pattern, each) for each in recorded)


def _federation(vaults: list[Vault], privacy: Privacy | None) -> Federation:
    members = member_list([(f"site {at}", each.identity().public) for at, each in enumerate(vaults)])
    return Federation(members, 3, 3, 8, Quantizer(0.5, 20, 32, 2000), privacy)


def _spied(engine: Engine, recording: Recording) -> Engine:
    """Return the engine, whose updates and losses are kept before anything is left out of them."""
    engine = step_by_turns(engine)
    step, answer = engine.step, engine.answer

    def noted(event: object) -> None:
        if isinstance(event, Answer):
            if event.vector is not None:
                recording.updates.append(event.vector[:].copy())
            event = event.report
        if isinstance(event, Progress | Report) and event.loss:
            recording.losses.append(event.loss)

    def spy(call: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object) -> object:
            event = call(*arguments)
            noted(event)
            return event

        return called

    engine.step, engine.answer = spy(step), spy(answer)
    return engine
