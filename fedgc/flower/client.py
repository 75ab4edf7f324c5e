"""The ClientApp: a Flower message opens a session for many rounds, or carries one packet of work.

If a session cannot connect, the reply is the answer to a first packet: the client's identity and chunks.

Each client process imports this module before it joins, so it imports neither the store nor the listener.
"""

import math
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgc.codecs.model_change import ChangeForm
from fedgc.config import RunConfig
from fedgc.config.fields import Value
from fedgc.errors import BadSetting, FedgcError, NotAllowed, printable
from fedgc.flower.app_guard import checked_app
from fedgc.flower.cache_folders import default_root, open_account, open_cache, spilled
from fedgc.flower.client_loop import LEFT, ClientLoop, Wait
from fedgc.flower.departure import GRACE_KEY, GRACE_S, Departure
from fedgc.flower.heartbeat import ENVIRONMENT, HeartbeatWriter
from fedgc.flower.masked_client import MaskedClient, keeps_reasons, site_of
from fedgc.flower.message_work import MessageWork
from fedgc.flower.must_fit import must_fit_client
from fedgc.flower.pinned_task import must_be_pinned
from fedgc.flower.site_policy import SitePolicy, site_policy
from fedgc.large_vectors import Scratch
from fedgc.links import identity
from fedgc.links.frames import Invitation
from fedgc.links.identity import Identity
from fedgc.links.log import LOG, log_errors_in_one_line
from fedgc.links.message import packets as packet
from fedgc.links.message.invitation import RECORD, invited, refusal
from fedgc.links.session.client import Session, Terms
from fedgc.processes.available import available_memory
from fedgc.training import AccountFile, CacheFiles, Engine, new_engine, new_script_engine
from fedgc.training.devices import GPU_SHARE, limit_memory
from fedgc.training.pace import Pace
from fedgc.training.script.connection import ScriptFacts
from fedgc.training.script.place import gateway_command
from fedgc.training.tasks import Task, must_be_task, named

KILOBYTE: Final = 1000
SITE: Final = "site-fleet"  # in the node config: the SuperLink of the fleet whose gateway this client is


@dataclass(frozen=True, slots=True)
class _Client:
    """The client's task, settings and identity, read anew for each Flower message."""

    who: Identity
    name: str
    config: RunConfig
    task: Task | None  # None with a training script, and of the gateway of a site
    own: Mapping[str, str | int | float]  # the client's own settings: its node config
    pace_s: float
    uplink_bytes_s: float
    caches: Path
    spill: Path
    site: MaskedClient | None
    departure: Departure
    run: int  # Flower's number of it
    policy: SitePolicy
    account: AccountFile

    def engine(self, files: CacheFiles, rest: Wait) -> Engine:
        if self.task is None:
            is_site = bool(self.own.get(SITE))
            pinned = gateway_command(sys.path, self.run) if is_site else str(self.own.get("script", ""))
            about = (self.config, self.who.client, self.own, files.folder, self.pace_s)
            facts = ScriptFacts(*about, pinned=pinned, is_site=is_site)
            return new_script_engine(facts, rest, self.spill, files)
        pace = Pace(time.monotonic, rest, self.pace_s)
        engine = new_engine(
            self.task, self.config, pace, self.spill, files=files, account=self.account, leave=self._leave
        )
        if engine.records is not None:
            self.policy.watch(engine.records)
            if spent := engine.records.ending:
                raise NotAllowed(spent, client=self.who.client)
        return engine

    def _leave(self, reason: str) -> None:
        LOG.warning("%s leaves: %s", self.who.client, reason)
        self.departure.ask()

    def cache(self, run: str) -> CacheFiles:
        return open_cache(self.caches, run, self.config, self.who.client, time.time())


def client_app(task: Task | None = None) -> ClientApp:
    """Make the ClientApp of a Flower app: it trains on this client's data.

    The node config of the SuperNode may set `name`, `identity` (path of the client's key), `cache` (folder),
    `script` (the command of a training script, in place of the run's), `pace-s` (least seconds per local
    step), `uplink-kb-s` (upload limit), `leave-grace-s` (seconds to hand in what it has when it is asked
    to end), `policy` (the file of its site's rules) and `site-fleet` (the SuperLink of a fleet, whose gateway
    the client then is). The task is told all of it; keys of other names are the task's own.

    Args:
        task: The training task; by default the one named by the setting `task`.

    Returns:
        The ClientApp, to be named as `clientapp` in the app's `pyproject.toml`.

    Example:
        app = fedgc.client_app(task)
    """
    must_be_task(task)
    log_errors_in_one_line()
    app = ClientApp()

    @app.train("session")
    def session(message: Message, context: Context) -> Message:
        invitation = invited(message.content)
        try:
            with _client(context, task, invitation.run) as client, client.departure.heard():
                content = _serve(client, invitation)
        except NotAllowed as refused:
            content = RecordDict({RECORD: refusal(refused)})
        return Message(content, reply_to=message)

    @app.train(packet.ACTION)
    def answer(message: Message, context: Context) -> Message:
        run = packet.run_in(message.content)
        try:
            with _client(context, task, run, message.content) as client, client.departure.heard():
                if client.own.get(SITE):
                    raise BadSetting("it is the gateway of a site, and needs a session; saw none get through")
                asked = packet.read_packet(message.content, client.who.client)
                cache = client.cache(asked.run)
                with closing(client.engine(cache, time.sleep)) as engine:
                    content = _answer(client, engine, cache, asked)
        except NotAllowed as refused:
            content = RecordDict({RECORD: refusal(refused)})
        return Message(content, reply_to=message)

    return app


def _serve(client: _Client, invitation: Invitation) -> RecordDict:
    """Keep a session until it ends; return the reply to its message."""
    heart = HeartbeatWriter(os.environ.get(ENVIRONMENT), time.monotonic)
    cache, is_script = client.cache(invitation.run), client.task is None
    loop = ClientLoop(
        partial(client.engine, cache),
        heart.beat,
        client.site,
        departure=client.departure,
        policy=client.policy,
        brings_model=bool(client.config.script),
    )
    if client.own.get(SITE):
        loop.prepare()  # until then the session of an earlier process stands for this one
    numbers = 0 if is_script else loop.engine.size  # the size of a script's model is known once it runs
    opened = Session(invitation, client.who, _terms(client, numbers))
    content = RecordDict()
    with ExitStack() as stack:
        stack.callback(lambda: loop.engine.close(complete=opened.complete))
        stack.enter_context(closing(heart))
        if not is_script:
            must_fit_client(client.config, loop.engine.size, client.caches)
        link = stack.enter_context(opened)
        stack.callback(lambda: loop.settle(opened, opened.accounts.round))
        ended = loop.serve(link, client.who.client)
        loop.engine.keep()
        spent = loop.engine.records.ending if loop.engine.records is not None else ""
        if not (link.reached or is_script or ended == LEFT):
            asked = packet.introduction(invitation.run, invitation.token)
            content = _answer(client, loop.engine, cache, asked)
    LOG.info("session of %s ended: %s", client.who.client, printable(ended))
    if loop.refused is not None:
        raise loop.refused
    if spent and ended == LEFT:
        raise NotAllowed(spent, client=client.who.client)
    content[RECORD] = ConfigRecord(
        {
            "ended": ended,
            "client": client.who.client,
            "reached": opened.reached,
            "left": ended == LEFT,
            "again_s": client.policy.opens_s() if client.departure.hours_end else 0.0,
        }
    )
    return content


def _answer(client: _Client, engine: Engine, cache: CacheFiles, asked: packet.Packet) -> RecordDict:
    message_work = MessageWork(
        engine,
        cache,
        client.who.client,
        time.monotonic,
        client.site,
        departure=client.departure,
        policy=client.policy,
    )
    message_work.run(asked)
    client.departure.answered(owes=engine.has_work and not message_work.codewords)
    return packet.write_answer(asked, client.who, client.name, message_work.lines, message_work.codewords)


@contextmanager
def _client(
    context: Context, task: Task | None, run: str, content: RecordDict | None = None
) -> Iterator[_Client]:
    """Open what a message of a run needs; an error of fedgc names this client.

    `content` is that of a packet.
    """
    name = str(context.node_config.get("name", ""))
    try:
        with _opened(context, task, name, run, content) as client:
            yield client
    except FedgcError as error:
        error.args = (f"client {name or 'without a name'}: {error}",)
        raise


@contextmanager
def _opened(
    context: Context, task: Task | None, name: str, run: str, content: RecordDict | None
) -> Iterator[_Client]:
    config, node = RunConfig.read(context.run_config), context.node_config
    own = {key: each for key, each in node.items() if isinstance(each, str | int | float)}
    if own.get(SITE):
        _must_fit_fleet(config, own)
    caches = Path(str(node["cache"])) if node.get("cache") else default_root(os.environ)
    with ExitStack() as open_things:
        who = open_things.enter_context(_identity(context))
        spill = open_things.enter_context(spilled(caches, who.client))
        site = site_of(config, node, os.environ, time.time, os.urandom)
        if site is not None:
            open_things.enter_context(closing(site))
        policy = _admitted(config, node, who.client, run, site, content)  # before the code of the run
        limit_memory(policy.gpu_share)
        pace_s = _number(context, "pace-s", 0.0)
        uplink_bytes_s = KILOBYTE * _number(context, "uplink-kb-s", math.inf)
        if not uplink_bytes_s > 0:
            raise BadSetting(f"node config uplink-kb-s: saw {node['uplink-kb-s']!r}, needed more than 0")
        grace_s = _number(context, GRACE_KEY, GRACE_S)
        if not 0 <= grace_s < math.inf:
            raise BadSetting(f"node config {GRACE_KEY}: saw {grace_s}, needed seconds, 0 or more")
        departure = Departure.of(grace_s, os.environ, policy.closes_s)
        own |= {GPU_SHARE: policy.gpu_share} if policy.gpu_share < 1 else {}
        limits = (pace_s, uplink_bytes_s, caches, spill, site, departure, context.run_id, policy)
        account = open_account(Path(str(who.path)).parent, caches, run, who.client)
        open_things.enter_context(keeps_reasons() if site is not None else nullcontext())
        known = {**own, "identity": str(who.path)}
        chosen = None if config.script or own.get(SITE) else task or named(config.task, config, known)
        yield _Client(who, name, config, chosen, own, *limits, account)


def _must_fit_fleet(config: RunConfig, own: Mapping[str, Value]) -> None:
    """Raise BadSetting unless a fleet can train a run with these settings."""
    if config.fragments > 1:
        raise BadSetting(
            f"node config {SITE}: saw links.fragments = {config.fragments}, needed 1 for a fleet"
        )
    if config.protects_records:
        raise BadSetting(
            f"node config {SITE}: saw privacy.unit = record, which a fleet cannot give; needed client"
        )
    if own.get("script"):  # its fleet would start the run's
        raise BadSetting(
            f"node config {SITE}: saw script beside it, needed script at each client of the fleet"
        )


def _admitted(
    config: RunConfig,
    node: Mapping[str, object],
    client: str,
    run: str,
    site: MaskedClient | None,
    content: RecordDict | None,
) -> SitePolicy:
    """Return the site's policy for a run; raise NotAllowed unless it and the descriptor allow the run."""
    policy = site_policy(config, node, client, run, site.federation if site else None)
    if site is not None:
        with policy.logs_refusal():
            must_be_pinned(site.federation, checked_app(), config, policy.request, client)
    policy.admit(ends_exchange=content is not None and packet.read_packet(content, client).ends_exchange)
    return policy


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
        scratch=Scratch(client.spill, available=available_memory),
        changes=ChangeForm(client.config.fragments, client.config.download_codec),
    )


def _identity(context: Context) -> AbstractContextManager[Identity]:
    path = context.node_config.get("identity")
    return identity.hold(Path(str(path))) if path else identity.hold_default(os.environ)


def _number(context: Context, name: str, default: float) -> float:
    value = context.node_config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadSetting(f"node config {name}: saw {value!r}, needed a number")
    return float(value)
