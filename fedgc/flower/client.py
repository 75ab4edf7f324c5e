"""The ClientApp: a Flower message opens a session, which serves many rounds, or is a letter with one errand.

A session that could not connect ends with what a first letter would have asked: who is here, and what it has.

What it imports is what each device's process must load before it can join: no store, no listener.
"""

import math
import os
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, BadTask
from fedgc.flower import identity, letter
from fedgc.flower.errand import Errand
from fedgc.flower.identity import Identity
from fedgc.flower.institution import Institution, institution_of
from fedgc.flower.invitation import RECORD, invited
from fedgc.flower.log import LOG, keep_to_the_point
from fedgc.flower.pulse import ENVIRONMENT, Pulse
from fedgc.flower.session import Session, Terms
from fedgc.flower.shelves import default_root, open_shelf, spilled
from fedgc.flower.work import Rest, Worker
from fedgc.task import Task, named
from fedgc.train import Engine, Lasting

KILOBYTE: Final = 1000


@dataclass(frozen=True, slots=True)
class _Device:
    """What every message finds here."""

    who: Identity
    name: str
    config: RunConfig
    task: Task
    pace_s: float
    uplink_bytes_s: float
    shelves: Path
    spill: Path
    institution: Institution | None

    def engine(self, rest: Rest) -> Engine:
        engine = Engine(
            self.task, self.config, clock=time.monotonic, rest=rest, spill_dir=self.spill, pace_s=self.pace_s
        )
        if self.institution is not None and self.institution.reach is not None:
            engine.clip_records(self.institution.reach)
        return engine

    def shelf(self, run: str) -> Lasting:
        return open_shelf(self.shelves, run, self.config, self.who.device, time.time())


def client_app(task: Task | None = None) -> ClientApp:
    """Return the app that serves sessions and letters; without a task the run's settings name it."""
    keep_to_the_point()
    app = ClientApp()

    @app.train("session")
    def session(message: Message, context: Context) -> Message:
        with _device(context, task) as device:
            invitation = invited(message.content)
            heart = Pulse(os.environ.get(ENVIRONMENT), time.time)
            worker = Worker(device.engine, heart.beat, device.institution)
            shelf = device.shelf(invitation.run)
            worker.engine.last_in(shelf)
            terms = _terms(device, worker.engine.size)
            opened = Session(invitation, device.who, terms)
            with closing(worker.engine), closing(heart), opened as link:
                ended = worker.serve(link, device.who.device)
                worker.engine.keep()
                asked = letter.introduction(invitation.run, invitation.token)
                content = RecordDict() if link.reached else _answer(device, worker.engine, shelf, asked)
            LOG.info("session of %s ended: %s", device.who.device, ended)
        about = ConfigRecord({"ended": ended, "device": device.who.device, "reached": link.reached})
        content[RECORD] = about
        return Message(content, reply_to=message)

    @app.train(letter.ACTION)
    def answer(message: Message, context: Context) -> Message:
        with _device(context, task) as device:
            asked = letter.read_letter(message.content, device.who.device)
            shelf = device.shelf(asked.run)
            with closing(device.engine(time.sleep)) as engine:
                engine.last_in(shelf)
                content = _answer(device, engine, shelf, asked)
        return Message(content, reply_to=message)

    return app


def _answer(device: _Device, engine: Engine, shelf: Lasting, asked: letter.Letter) -> RecordDict:
    errand = Errand(engine, shelf, device.who.device, time.monotonic, device.institution)
    errand.run(asked)
    return letter.write_answer(asked, device.who, device.name, errand.lines, errand.codewords)


@contextmanager
def _device(context: Context, task: Task | None) -> Iterator[_Device]:
    config, node = RunConfig.read(context.run_config), context.node_config
    name = str(node.get("name", ""))
    chosen = task or _task_of(config, name)
    shelves = Path(str(node["shelf"])) if node.get("shelf") else default_root(os.environ)
    with ExitStack() as open_things:
        who = open_things.enter_context(_identity(context))
        spill = open_things.enter_context(spilled(shelves, who.device))
        institution = institution_of(config, node, os.environ, time.time, os.urandom)
        if institution is not None:
            open_things.enter_context(closing(institution))
        pace_s = _number(context, "pace-s", 0.0)
        uplink_bytes_s = KILOBYTE * _number(context, "uplink-kb-s", math.inf)
        if not uplink_bytes_s > 0:
            raise BadSetting(f"node config uplink-kb-s: saw {node['uplink-kb-s']!r}, needed more than 0")
        yield _Device(who, name, config, chosen, pace_s, uplink_bytes_s, shelves, spill, institution)


def _task_of(config: RunConfig, name: str) -> Task:
    """Return the task that the settings name; where it cannot be had, the error names this device."""
    try:
        return named(config.task, config)
    except BadTask as error:
        raise BadTask(f"device {name or 'without a name'}: {error}") from error


def _terms(device: _Device, numbers: int) -> Terms:
    return Terms(
        grace_s=device.config.grace_s,
        piece_bytes=device.config.piece_kb * 1024,
        numbers=numbers,
        clock=time.monotonic,
        chance=random.random,
        name=device.name,
        connect_s=device.config.connect_s,
        uplink_bytes_s=device.uplink_bytes_s,
    )


def _identity(context: Context) -> AbstractContextManager[Identity]:
    path = context.node_config.get("identity")
    return identity.hold(Path(str(path))) if path else identity.hold_default(os.environ)


def _number(context: Context, name: str, default: float) -> float:
    value = context.node_config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadSetting(f"node config {name}: saw {value!r}, needed a number")
    return float(value)
