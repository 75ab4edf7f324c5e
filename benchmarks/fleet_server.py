"""The server of the fleet benchmark: a driver, a listener and a store in one process, as in a ServerApp.

With the setting `site.gateway` it is the server of a site, whose run its gateway drives.
"""

import gc
import os
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

from benchmarks.memory_watch import processor_s, resident_bytes, thread_s
from benchmarks.soak_processes import files_of
from fedgc.config import RunConfig
from fedgc.flower.driver import Driver
from fedgc.flower.job import Job
from fedgc.flower.recording import Recording, recorded
from fedgc.flower.sink import Sink
from fedgc.flower.sinks import Sinks
from fedgc.flower.site import GatewayLine, gateway_line
from fedgc.history import RoundRow, Speeds
from fedgc.links.links import Links, SessionLink
from fedgc.links.log import LOG
from fedgc.links.quotas import Quotas
from fedgc.links.receivers.receivers import Receivers, session_link
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Layout, LinkEvent, Stop, TensorSpec
from fedgc.sim.owned import end_with_the_parent
from fedgc.store import checkpoint
from fedgc.store.engine import runs_folder
from fedgc.training import AnnouncedModel

RUN: Final = "fleet"
NUMBERS: Final = 25_000  # of a vector: 100 kB
KEPT_CHECKPOINTS: Final = 3
FLUSH_S: Final = 10.0
THREADS: Final = {"MainThread": "driver", "fedgc-listener": "listener", "fedgc-store": "store"}


def layout_of(numbers: int) -> Layout:
    """Return the layout of a model of so many numbers."""
    return Layout((TensorSpec("weights", "float32", (numbers,)),), 1)


@dataclass(frozen=True, slots=True)
class Place:
    """What the server's process needs: its settings, how many sessions it invites, what its model is."""

    config: RunConfig
    invitations: int
    environment: dict[str, str] = field(default_factory=dict)
    numbers: int = NUMBERS  # of a vector


class _Told(Sink):
    """Tells the benchmark of every round, with the processor time and the memory of the process."""

    def __init__(self, pipe: Connection, listener: SessionLink) -> None:
        self._pipe, self._listener = pipe, listener

    def chose(self, round_: int, basis: Any, reason: str) -> None:  # noqa: ANN401, ARG002  the sink's interface
        if round_ == 1:
            self._pipe.send({"what": "gathered", **_spent(self._listener)})

    def append(self, row: RoundRow) -> None:
        failures = [each.failure for each in row.clients if each.failure]
        about = {
            "round": row.round,
            "outcome": row.outcome,
            "began_s": row.started,
            "counted": sum(each.counted > 0 for each in row.clients),
            "lost": failures.count("lost"),
            "failed": len(failures),
        }
        if isinstance(self._listener, Listener):
            _void(self._listener)
        self._pipe.send({"what": "round", **about, **_spent(self._listener)})


def _spent(listener: SessionLink) -> dict[str, float]:
    own = {
        "at_s": time.monotonic(),
        "cpu_s": time.process_time(),
        "memory": resident_bytes(os.getpid()),
        "files": files_of(os.getpid()),
        **{
            f"{THREADS[each.name]}_cpu_s": thread_s(os.getpid(), each.native_id or 0)
            for each in threading.enumerate()
            if each.name in THREADS
        },
    }
    if not isinstance(listener, Receivers):
        return own
    receivers = [processor_s(pid) for pid in listener.pids]
    return {**own, "receivers_cpu_s": sum(receivers), "busiest_receiver_cpu_s": max(receivers)}


def serve(place: Place, pipe: Connection) -> None:
    """Serve until the benchmark says anything."""
    end_with_the_parent()
    os.environ.update(place.environment)
    events: SimpleQueue[LinkEvent] = SimpleQueue()
    links = Links(events.put, LOG)
    with gateway_line(place.config.site_gateway) as gateway, recorded(place.config, RUN, 1) as recording:
        quotas = Quotas(place.config.lines_per_s, place.config.bytes_per_s)
        audit = recording.sink.audited
        around = Surroundings(time.monotonic, os.urandom, time.time, LOG, audit, quotas)
        listener = session_link(place.config, RUN, links.heard("session"), around)
        links.add({"session": listener})
        links.expect(place.numbers)
        told = _Told(pipe, listener)
        driver = Driver(_job(place, recording, told, gateway), time.monotonic, LOG, events)
        gc.freeze()
        listener.start()
        pipe.send([listener.invite() for _ in range(place.invitations)])
        pipe.send({"what": "ready", **_spent(listener)})
        threading.Thread(target=_stopped, args=(pipe, events), daemon=True).start()
        driver.drive(links)
        listener.close("the benchmark is over", complete=True)
    numbers = {"least": float(driver.model.min()), "most": float(driver.model.max())}
    pipe.send({"what": "over", **numbers, "at_s": time.monotonic()})


def _job(place: Place, recording: Recording, told: _Told, gateway: GatewayLine | None) -> Job:
    model = AnnouncedModel(layout_of(place.numbers), np.zeros(place.numbers, np.float32))
    sink = Sinks(recording.sink, [told])
    folder = runs_folder("", os.environ) / RUN
    save = partial(_save, folder, recording)
    return Job(model, place.config, sink, Speeds(), save, name=RUN, gateway=gateway)


def _save(folder: Path, recording: Recording, made: checkpoint.Checkpoint) -> None:
    recording.keeper.flush(FLUSH_S)
    checkpoint.save(folder, made, KEPT_CHECKPOINTS)


def _void(listener: Listener) -> None:
    """Void the tokens of sessions that have ended, as the end of their Flower messages would."""
    admission, peers = listener._admission, listener._sessions.peers
    for token, peer in list(admission._tokens.items()):
        if peer is not None and peers.get(peer.client) is not peer:
            admission.cancel(token)


def _stopped(pipe: Connection, events: "SimpleQueue[LinkEvent]") -> None:
    pipe.recv()
    events.put(Stop(time.monotonic(), "the benchmark is over", complete=True))
