"""Compare simulated and real runs: idle engines on real sessions give the predicted events."""

import logging
import queue
import random
import secrets
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedgc.config import RunConfig
from fedgc.flower.client_loop import ClientLoop
from fedgc.links.identity import Identity
from fedgc.links.session.client import Session
from fedgc.links.session.client import Terms as SessionTerms
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Add, Announced, Codeword, Held, Joined, Progress, Tick
from fedgc.run.machine import Append, Apply, Chose, Finished, Run
from fedgc.sim.clock import ClientModel, Terms, VirtualClock, working
from fedgc.training import CommonModel, Engine, new_engine
from fedgc.training.pace import Pace
from fedgc.training.tasks import Task
from tests.tuned import tuned_run

SIZES = {f"c{at}": 8 for at in range(6)}
STEP_S = (0.06, 0.15, 0.5)  # of each client; a chunk is `STEPS` of them
STEPS = 5
OVERHEAD_S = 0.25  # training, TLS and threads on a busy machine, over a whole round
CONFIG = RunConfig(
    rounds=1,
    local_steps=STEPS,
    replicas=2,
    blocks=1,
    min_clients=3,
    device="cpu",
    threads=1,
    grace_s=2.0,
    work="coded",
)


def load(name):
    generator = torch.Generator().manual_seed(int(name[1:]))
    return torch.randn(8, 5, generator=generator), torch.zeros(8, dtype=torch.long)


def loss(module, batch):
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


TASK = Task(model=partial(nn.Linear, 5, 2), chunks=SIZES, load=load, loss=loss, may_move=True)


class PastRound:
    """The events of a machine, with the time since it assigned work."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.heard: list[tuple[str, str, int, float]] = []
        self.began: float | None = None
        self.rows = []

    def handle(self, event):
        if isinstance(event, Progress | Codeword) and self.began is not None:
            number = event.chunk if isinstance(event, Progress) else -1
            self.heard.append((type(event).__name__, event.client, number, event.now - self.began))
        outputs = self.run.handle(event)
        if self.began is None and self.run.round is not None:
            self.began = event.now
        self.rows += [output.row for output in outputs if isinstance(output, Append)]
        return outputs

    @property
    def next_tick(self) -> float:
        return self.run.next_tick


def simulated() -> PastRound:
    conditions = working([[STEPS * step_s * 2.0] for step_s in STEP_S])  # a unit is two chunks
    held = tuple(Held(name, size, "same") for name, size in SIZES.items())
    client_model = ClientModel(lambda _: conditions, [0.5] * 6)
    clock = VirtualClock([f"client {at}" for at in range(3)], client_model, Terms(STEPS), held)
    told = PastRound(tuned_run(CONFIG, now=0.0, size=12))
    given = [output for at in range(3) for output in told.handle(clock.joined(at, 0.0))]
    clock.run(told, given, lambda: told.run.finished)
    return told


def serve(invitation, who: Identity, step_s: float, folder: Path, turn: threading.Lock) -> None:
    def engine(rest) -> Engine:
        made = new_engine(TASK, CONFIG, Pace(time.monotonic, rest), folder)
        step = made.step

        def slow_step():
            with turn:  # torch's generator is the process's
                said = step()
            time.sleep(0.0 if made.idle and said is None else step_s)
            return said

        made.step = slow_step
        return made

    w = ClientLoop(engine)
    terms = SessionTerms(2.0, 64 * 1024, w.engine.size, time.monotonic, random.random)
    with Session(invitation, who, terms) as session:
        w.serve(session, who.client)
    w.engine.close()


def real(folder: Path) -> PastRound:
    torch.set_num_threads(1)
    events: queue.SimpleQueue = queue.SimpleQueue()
    common = CommonModel(TASK, CONFIG)
    around = Surroundings(time.monotonic, random.randbytes, time.time, logging.getLogger("test"))
    listener = Listener(CONFIG, "run-1", common.size, events.put, around)
    listener.start()
    listener.publish(0, common.first())
    told = PastRound(tuned_run(CONFIG, now=time.monotonic(), size=common.size))
    turn, threads = threading.Lock(), []
    try:
        made = (Identity(secrets.token_bytes(32)) for _ in STEP_S)
        ordered = sorted(made, key=lambda who: who.client)  # so that they are numbered as above
        for at, (who, step_s) in enumerate(zip(ordered, STEP_S, strict=True)):
            args = (listener.invite(), who, step_s, folder / str(at), turn)
            threads.append(threading.Thread(target=serve, args=args))
            threads[-1].start()
            assert isinstance(events.get(timeout=20.0), Announced)
            joined = events.get(timeout=20.0)
            assert isinstance(joined, Joined)
            carry_out(told.handle(joined), listener)
        while not told.run.finished:
            try:
                event = events.get(timeout=max(0.0, told.next_tick - time.monotonic()))
            except queue.Empty:
                event = Tick(time.monotonic())
            carry_out(told.handle(event), listener)
    finally:
        listener.close("the run is over")
        for thread in threads:
            thread.join(20.0)
    return told


def carry_out(outputs, listener: Listener) -> None:
    for output in outputs:
        if isinstance(output, Add):
            listener.take(output.client, output.round, output.attempt)
        elif not isinstance(output, Apply | Append | Chose | Finished):
            listener.send(output)


def numbered(told: PastRound) -> list[tuple[str, int, int]]:
    """Name clients by their index in the plan: identities are different in every run."""
    place = {row.client: at for at, row in enumerate(told.rows[0].clients)}
    return [(kind, place[client], number) for kind, client, number, _ in told.heard]


@pytest.mark.slow
def test_simulator_has_same_events_and_close_times(tmp_path):
    """The clock handles a command at once, an engine after its step: this sets the tolerance."""
    predicted, seen = simulated(), real(tmp_path)
    progress = [each for each in numbered(predicted) if each[0] == "Progress"]
    assert [each for each in numbered(seen) if each[0] == "Progress"] == progress
    assert sorted(numbered(seen)) == sorted(numbered(predicted))
    times = np.array([[a[3], b[3]] for a, b in zip(predicted.heard, seen.heard, strict=True)])
    assert np.abs(times[:, 0] - times[:, 1]).max() <= max(STEP_S) + OVERHEAD_S
    assert seen.rows[0].outcome == predicted.rows[0].outcome == "synced"
    assert seen.rows[0].skips == predicted.rows[0].skips
    assert seen.rows[0].takes == predicted.rows[0].takes
