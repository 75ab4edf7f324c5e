"""The ClientApp: one Flower message opens a session, which serves many rounds and then replies.

What it imports is what each device's process must load before it can join: no store, no listener.
"""

import os
import random
import tempfile
import time
from contextlib import AbstractContextManager, closing
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.flower import identity
from fedgc.flower.identity import Identity
from fedgc.flower.invitation import RECORD, invited
from fedgc.flower.log import LOG, keep_to_the_point
from fedgc.flower.session import Session, Terms
from fedgc.flower.work import Rest, Worker
from fedgc.task import Task, named
from fedgc.train import Engine


def client_app(task: Task | None = None) -> ClientApp:
    """Return the app that serves sessions; without a task the run's settings name it."""
    keep_to_the_point()
    app = ClientApp()

    @app.train("session")
    def session(message: Message, context: Context) -> Message:
        config = RunConfig.read(context.run_config)
        chosen = task or named(config.task, config)
        with _identity(context) as who, tempfile.TemporaryDirectory(prefix="fedgc-") as folder:
            pace_s = _number(context, "pace-s", 0.0)

            def engine(rest: Rest) -> Engine:
                spill = Path(folder)
                return Engine(chosen, config, clock=time.monotonic, rest=rest, spill_dir=spill, pace_s=pace_s)

            worker = Worker(engine)
            terms = _terms(config, worker, str(context.node_config.get("name", "")))
            with closing(worker.engine), Session(invited(message), who, terms) as link:
                ended = worker.serve(link, who.device)
            LOG.info("session of %s ended: %s", who.device, ended)
        record = ConfigRecord({"ended": ended, "device": who.device})
        return Message(RecordDict({RECORD: record}), reply_to=message)

    return app


def _terms(config: RunConfig, worker: Worker, name: str) -> Terms:
    return Terms(
        grace_s=config.grace_s,
        piece_bytes=config.piece_kb * 1024,
        numbers=worker.engine.size,
        clock=time.monotonic,
        chance=random.random,
        name=name,
    )


def _identity(context: Context) -> AbstractContextManager[Identity]:
    path = context.node_config.get("identity")
    return identity.hold(Path(str(path))) if path else identity.hold_default(os.environ)


def _number(context: Context, name: str, default: float) -> float:
    value = context.node_config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadSetting(f"node config {name}: saw {value!r}, needed a number")
    return float(value)
