"""The ClientApp: a Flower message opens a session for many rounds, or carries one packet of work.

A session that cannot connect ends with the answer to a first packet: the client's identity and its chunks.

Each client's process imports this module before it can join, so it does not import store or listener.
"""

import math
import os
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, BadTask
from fedgc.flower.cache_folders import default_root, open_cache, spilled
from fedgc.flower.client_loop import ClientLoop, Rest
from fedgc.flower.heartbeat import ENVIRONMENT, Pulse
from fedgc.flower.masked_client import MaskedClient, site_of
from fedgc.flower.message_work import MessageWork
from fedgc.links import identity
from fedgc.links.identity import Identity
from fedgc.links.log import LOG, keep_to_the_point
from fedgc.links.message import packets as packet
from fedgc.links.message.invitation import RECORD, invited
from fedgc.links.session.client import Session, Terms
from fedgc.training import CacheFiles, Engine, new_engine
from fedgc.training.pace import Pace
from fedgc.training.tasks import Task, named

KILOBYTE: Final = 1000


@dataclass(frozen=True, slots=True)
class _Client:
    """What every message finds here."""

    who: Identity
    name: str
    config: RunConfig
    task: Task
    pace_s: float
    uplink_bytes_s: float
    caches: Path
    spill: Path
    site: MaskedClient | None

    def engine(self, files: CacheFiles, rest: Rest) -> Engine:
        return new_engine(
            self.task,
            self.config,
            Pace(time.monotonic, rest, self.pace_s),
            self.spill,
            files=files,
            reach=self.site.reach if self.site else None,
        )

    def cache(self, run: str) -> CacheFiles:
        return open_cache(self.caches, run, self.config, self.who.client, time.time())


def client_app(task: Task | None = None) -> ClientApp:
    """Make the ClientApp of a Flower app: it trains on this client's data.

    The node config of the SuperNode may set `name`, `identity` (path of the client's key), `cache` (folder),
    `pace-s` (least seconds per local step) and `uplink-kb-s` (upload limit).

    Args:
        task: What is trained; by default the task that the setting `task` names.

    Returns:
        The ClientApp, to be named as `clientapp` in the app's `pyproject.toml`.

    Example:
        app = fedgc.client_app(task)
    """
    keep_to_the_point()
    app = ClientApp()

    @app.train("session")
    def session(message: Message, context: Context) -> Message:
        with _client(context, task) as client:
            invitation = invited(message.content)
            heart = Pulse(os.environ.get(ENVIRONMENT), time.time)
            cache = client.cache(invitation.run)
            loop = ClientLoop(partial(client.engine, cache), heart.beat, client.site)
            terms = _terms(client, loop.engine.size)
            opened = Session(invitation, client.who, terms)
            with closing(loop.engine), closing(heart), opened as link:
                ended = loop.serve(link, client.who.client)
                loop.engine.keep()
                asked = packet.introduction(invitation.run, invitation.token)
                content = RecordDict() if link.reached else _answer(client, loop.engine, cache, asked)
            LOG.info("session of %s ended: %s", client.who.client, ended)
        about = ConfigRecord({"ended": ended, "client": client.who.client, "reached": link.reached})
        content[RECORD] = about
        return Message(content, reply_to=message)

    @app.train(packet.ACTION)
    def answer(message: Message, context: Context) -> Message:
        with _client(context, task) as client:
            asked = packet.read_packet(message.content, client.who.client)
            cache = client.cache(asked.run)
            with closing(client.engine(cache, time.sleep)) as engine:
                content = _answer(client, engine, cache, asked)
        return Message(content, reply_to=message)

    return app


def _answer(client: _Client, engine: Engine, cache: CacheFiles, asked: packet.Packet) -> RecordDict:
    message_work = MessageWork(engine, cache, client.who.client, time.monotonic, client.site)
    message_work.run(asked)
    return packet.write_answer(asked, client.who, client.name, message_work.lines, message_work.codewords)


@contextmanager
def _client(context: Context, task: Task | None) -> Iterator[_Client]:
    config, node = RunConfig.read(context.run_config), context.node_config
    name = str(node.get("name", ""))
    chosen = task or _task_of(config, name)
    caches = Path(str(node["cache"])) if node.get("cache") else default_root(os.environ)
    with ExitStack() as open_things:
        who = open_things.enter_context(_identity(context))
        spill = open_things.enter_context(spilled(caches, who.client))
        site = site_of(config, node, os.environ, time.time, os.urandom)
        if site is not None:
            open_things.enter_context(closing(site))
        pace_s = _number(context, "pace-s", 0.0)
        uplink_bytes_s = KILOBYTE * _number(context, "uplink-kb-s", math.inf)
        if not uplink_bytes_s > 0:
            raise BadSetting(f"node config uplink-kb-s: saw {node['uplink-kb-s']!r}, needed more than 0")
        yield _Client(who, name, config, chosen, pace_s, uplink_bytes_s, caches, spill, site)


def _task_of(config: RunConfig, name: str) -> Task:
    """Return the task that the settings name; where it cannot be had, the error names this client."""
    try:
        return named(config.task, config)
    except BadTask as error:
        raise BadTask(f"client {name or 'without a name'}: {error}") from error


def _terms(client: _Client, numbers: int) -> Terms:
    return Terms(
        grace_s=client.config.grace_s,
        piece_bytes=client.config.piece_kb * 1024,
        numbers=numbers,
        clock=time.monotonic,
        chance=random.random,
        name=client.name,
        connect_s=client.config.connect_s,
        uplink_bytes_s=client.uplink_bytes_s,
    )


def _identity(context: Context) -> AbstractContextManager[Identity]:
    path = context.node_config.get("identity")
    return identity.hold(Path(str(path))) if path else identity.hold_default(os.environ)


def _number(context: Context, name: str, default: float) -> float:
    value = context.node_config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadSetting(f"node config {name}: saw {value!r}, needed a number")
    return float(value)
