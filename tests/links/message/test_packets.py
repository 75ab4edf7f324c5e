"""Test a whole run over packets without Flower: each packet starts a new engine."""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from fedgc.config import RunConfig
from fedgc.errors import BadMessage, NotAllowed
from fedgc.flower.cache_folders import SPILLED, default_root, full_name, open_account, open_cache, spilled
from fedgc.flower.departure import Departure
from fedgc.flower.driver import Driver
from fedgc.flower.job import Job
from fedgc.flower.message_work import MessageWork
from fedgc.flower.site_policy import SitePolicy
from fedgc.history import Speeds
from fedgc.links import frames as wire
from fedgc.links.frames import StreamId
from fedgc.links.identity import Identity
from fedgc.links.links import Links
from fedgc.links.message import packets as packets
from fedgc.links.message.server import MessageServer
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Failed, Held, Joined, Kept, Leaving, Mix, Progress, Report, Reveal, Work
from fedgc.training import Answer, CacheFiles, CommonModel, Engine, new_engine
from fedgc.training.pace import Pace
from fedgc.training.tasks import named
from tests.config_of import config_of
from tests.flower.test_driver import UNMEASURED, one_machine
from tests.flower.test_driver import Kept as KeptRows

SETTINGS = {"rounds": 2, "chunks": 4, "replicas": 2, "min_clients": 2, "threads": 1, "evaluate_every": 0}
RUN = full_name("spring", 7)


class Carrier:
    """Takes packets to clients and answers back, one at a time, until the run is over."""

    def __init__(self, message_server: MessageServer, job: Job, root: Path, make_identity, site=None) -> None:
        """`site` makes the site of a node, as each of its processes does."""
        self.message_server, self.job, self.root = message_server, job, root
        self.site = site or (lambda _: None)
        self.clients = {node: make_identity() for node in range(job.config.min_clients)}
        self.over = threading.Event()
        self.carried = 0
        for node in self.clients:
            message_server.open(node)

    def run(self) -> None:
        while not self.over.is_set():
            for node, packet, _ in self.message_server.packets():
                content = self.process(node, packets.write_packet(packet))
                self.message_server.answered(
                    node, lambda asked, c=content: packets.read_answer(c, asked, time.monotonic())
                )
                self.carried += 1
            self.message_server.wanted.wait(0.05)

    def process(self, node: int, content):
        """Do the work of a client's process for one packet."""
        who = self.clients[node]
        asked = packets.read_packet(content, who.client)
        cache = open_cache(self.root, asked.run, self.job.config, who.client, time.time())
        engine = engine_of(self.job, self.root / "spill", cache)
        site = self.site(node)
        message_work = MessageWork(engine, cache, who.client, time.monotonic, site)
        message_work.run(asked)
        engine.close()
        if site is not None:
            site.close()
        return packets.write_answer(asked, who, f"node-{node}", message_work.lines, message_work.codewords)


def engine_of(job: Job, folder: Path, cache: CacheFiles) -> Engine:
    return new_engine(job.model.task, job.config, Pace(time.monotonic, time.sleep), folder, files=cache)


def carried_out(
    link, tmp_path: Path, pinned=None, site=None, **settings: object
) -> tuple[Driver, KeptRows, Carrier]:
    """A whole run over packets."""
    torch.set_num_threads(1)
    config, sink = config_of({"work": "coded", **SETTINGS, **UNMEASURED, **settings}), KeptRows()
    job = Job(
        CommonModel(named("digits", config), config), config, sink, Speeds(), federation=pinned, name=RUN
    )
    log = logging.getLogger("test")
    driver = Driver(job, time.monotonic, log)
    links = Links(driver.events.put, log)
    around = Surroundings(time.monotonic, os.urandom, time.time, log)
    message_server = MessageServer(RUN, driver.common.size, links.heard("messages"), around)
    links.add({"messages": message_server})
    links.expect(driver.common.size, driver.common.layout.buffer_size)
    carrier = Carrier(message_server, job, tmp_path / "cache", link.identity, site)
    thread = threading.Thread(target=carrier.run)
    thread.start()
    try:
        driver.drive(links)
    finally:
        carrier.over.set()
        thread.join(60.0)
    return driver, sink, carrier


def test_run_over_packets_equals_single_machine(link, tmp_path: Path) -> None:
    driver, sink, _ = carried_out(link, tmp_path)
    assert [row.outcome for row in sink.rows] == ["synced", "synced"]
    assert {client.link for row in sink.rows for client in row.clients} == {"messages"}
    np.testing.assert_allclose(driver.model, one_machine(driver, tmp_path / "alone"), atol=2e-5)


def test_local_work_over_packets_skips_rounds_and_uses_few_bits(link, tmp_path: Path) -> None:
    settings = {
        "work": "local",
        "gate": "every",
        "gate_period": 2,
        "local_steps": 3,
        "rounds": 4,
        "quorum": 1.0,
    }
    _, sink, _ = carried_out(link, tmp_path, **settings, **{"codec": "int8", "placement": "shuffled-once"})
    assert [row.outcome for row in sink.rows] == ["skipped", "synced"] * 2
    for skipped, exchanged in (sink.rows[:2], sink.rows[2:]):
        assert [client.steps for client in skipped.clients] == [3, 3]
        assert [client.counted for client in exchanged.clients] == [6, 6]
        assert [client.up_bytes for client in skipped.clients] == [0, 0]
        assert all(0 < client.up_bytes < 12_000 for client in exchanged.clients)


# ---- one messagework


def job_of(**settings) -> Job:
    torch.set_num_threads(1)
    config = config_of({"work": "coded", **SETTINGS, **settings})
    return Job(CommonModel(named("digits", config), config), config, KeptRows(), Speeds())


def seconds() -> Callable[[], float]:
    """A clock that advances by one second per reading, to limit the steps of a lease."""
    return partial(next, count(0.0))


def message_work(
    job: Job,
    folder: Path,
    packet: packets.Packet,
    clock: Callable[[], float] = time.monotonic,
    departure: Departure | None = None,
) -> MessageWork:
    cache = CacheFiles(folder / "cache")
    engine = engine_of(job, folder, cache)
    made = MessageWork(engine, cache, "me", clock, departure=departure)
    made.run(packet)
    engine.close()
    return made


def work(job: Job, order: tuple[int, ...], lease_s: float = 60.0) -> Work:
    names = tuple(enumerate(job.model.task.sizes()))
    return Work("me", 1, 0, job.config.round_steps, order, names, 0, lease_s)


def packet_of(*commands, model=None, lease_s: float = 60.0) -> packets.Packet:
    return packets.Packet(RUN, bytes(16), lease_s, commands, model)


def said(made: MessageWork, kind: type) -> list:
    return [line for line in made.lines if isinstance(line, kind)]


def test_work_finished_in_one_packet_is_sent_by_next(tmp_path: Path) -> None:
    job = job_of()
    model = Driver(job, time.monotonic, logging.getLogger("test")).common.first()
    first = message_work(job, tmp_path, packet_of(work(job, (0, 2)), model=(0, model)))
    assert [line.chunk for line in said(first, Progress)] == [0, 2]
    hello = message_work(job, tmp_path, packet_of())
    (joined,) = said(hello, Joined)
    assert [(kept.chunk, kept.reached) for kept in joined.kept] == [(0, 4), (2, 4)]
    assert all(isinstance(each, Held) for each in joined.holds)
    reveal = Reveal("me", 1, 0, "coded", Mix((0, 2), ((1.0,), (1.0,))))
    sent = message_work(job, tmp_path, packet_of(work(job, ()), reveal, lease_s=0.0))
    (codeword,) = sent.codewords.values()
    assert codeword.size == model.size
    assert np.abs(codeword).max() > 0
    assert isinstance(joined.kept[0], Kept)


def test_refused_exchange_of_script_is_reported_and_work_kept(tmp_path: Path) -> None:
    """A script hands in its update while the packet's work goes on."""
    reveal = Reveal("me", 1, 0, "local", None)
    kept, steps = [], iter([Answer(reveal, None, np.ones(4, np.float32)), None])
    script = SimpleNamespace(idle=False, step=lambda: next(steps), keep=lambda: kept.append(1) or ())
    script.answer = lambda _: None

    def refuse(*_: int) -> None:
        raise NotAllowed("limits.exchanges-per-day")

    policy = SitePolicy()
    policy.send = refuse
    made = MessageWork(script, CacheFiles(tmp_path / "cache"), "me", seconds(), policy=policy)
    made.run(packet_of(reveal, lease_s=2.0))
    assert [line.reason for line in said(made, Failed)] == ["limits.exchanges-per-day"]
    assert kept
    assert not made.codewords


def test_ended_lease_stops_work_and_keeps_rest_for_next(tmp_path: Path) -> None:
    job = job_of(**{"local_steps": 50})
    model = Driver(job, time.monotonic, logging.getLogger("test")).common.first()
    packet = packet_of(work(job, (0, 1, 2, 3)), model=(0, model), lease_s=0.0)
    assert said(message_work(job, tmp_path, packet), Progress) == []
    told: list[int] = []
    for _ in range(7):  # of 31 steps each, where 200 are to be done
        left = tuple(chunk for chunk in range(4) if chunk not in told)
        made = message_work(job, tmp_path, packet_of(work(job, left), lease_s=32.0), seconds())
        assert len(said(made, Progress)) <= 1
        told += [line.chunk for line in said(made, Progress)]
    assert told == [0, 1, 2, 3]


def test_local_work_cut_short_by_lease_is_reported_and_counts(tmp_path: Path) -> None:
    job = job_of(work="local", **{"local_steps": 50})
    model = Driver(job, time.monotonic, logging.getLogger("test")).common.first()
    asked = replace(work(job, (0, 1)), kind="local", target=10_000)
    first = message_work(job, tmp_path, packet_of(asked, model=(0, model), lease_s=8.0), seconds())
    (report,) = said(first, Report)
    assert report.steps == 7
    reveal = Reveal("me", 1, 0, "local", None)
    sent = message_work(job, tmp_path, packet_of(replace(asked, order=()), reveal, lease_s=0.0))
    assert [line.steps for line in said(sent, Report)] == [report.steps]
    assert list(sent.codewords) == [StreamId("codeword", 1)]


def test_client_without_steps_reports_zero_and_sends_nothing(tmp_path: Path) -> None:
    job = job_of(work="local")
    model = Driver(job, time.monotonic, logging.getLogger("test")).common.first()
    asked = replace(work(job, ()), kind="local")
    made = message_work(job, tmp_path, packet_of(asked, Reveal("me", 1, 0, "local", None), model=(0, model)))
    assert [line.steps for line in said(made, Report)] == [0]
    assert made.codewords == {}


def test_cache_without_model_is_reported_and_work_is_skipped(tmp_path: Path) -> None:
    job = job_of()
    made = message_work(job, tmp_path, packet_of(work(job, (0,))))
    assert made.lines == []
    model = Driver(job, time.monotonic, logging.getLogger("test")).common.first()
    made = message_work(job, tmp_path, packet_of(work(job, (0,)), model=(0, model)))
    assert [line.version for line in said(made, packets.Shelved)] == [0]


def test_codeword_of_missing_work_is_reported_as_failure(tmp_path: Path) -> None:
    job = job_of()
    model = Driver(job, time.monotonic, logging.getLogger("test")).common.first()
    reveal = Reveal("me", 1, 0, "coded", Mix((3,), ((1.0,),)))
    made = message_work(job, tmp_path, packet_of(work(job, ()), reveal, model=(0, model)))
    assert "chunk 3" in said(made, Failed)[0].reason
    assert made.codewords == {}


def test_disk_error_is_reported_as_failure_not_as_done(tmp_path: Path, monkeypatch) -> None:
    job = job_of()
    model = Driver(job, time.monotonic, logging.getLogger("test")).common.first()
    message_work(job, tmp_path, packet_of(work(job, ()), model=(0, model)))

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", full)
    made = message_work(job, tmp_path, packet_of(work(job, (0, 1))))
    assert said(made, Progress) == []
    assert [line.chunks for line in said(made, Failed)] == [(0,), (1,)]


def test_caches_are_separate_and_stale_ones_are_removed(tmp_path: Path) -> None:
    config = RunConfig(work="coded")

    def touch(run: str, config: RunConfig, client: str, now: float = 0.0) -> set[Path]:
        before = set(tmp_path.glob("*/*"))
        open_cache(tmp_path, run, config, client, now or time.time()).put_model(0, np.zeros(1, np.float32))
        return set(tmp_path.glob("*/*")) - before

    assert touch("spring@1", config, "a")
    assert touch("spring@2", config, "a") == set(), "a resume is the same run"
    assert touch("autumn@1", config, "a")
    assert touch("spring@1", RunConfig(learning_rate=0.2, work="coded"), "a")
    assert touch("spring@1", RunConfig(warmup_steps=10**9, work="coded"), "a"), "its steps went nowhere"
    private = {"privacy_unit": "record", "privacy_noise": 2.0, "shared_momentum": "off", "gate": "every"}
    assert touch("spring@1", RunConfig(**private), "a"), "steps without noise do not count as private ones"
    assert touch("spring@1", config, "b")
    with spilled(tmp_path, "b") as in_use:
        in_use.mkdir(parents=True)
        for path in tmp_path.rglob("*"):
            os.utime(path, (1.0, 1.0))
        touch("winter@1", config, "a")
        assert len([path for path in tmp_path.glob("*") if path.name != SPILLED]) == 1
        assert in_use.is_dir(), "this is no run's"
    assert default_root({"XDG_STATE_HOME": "/state"}) == Path("/state/fedgc/cache")


def test_account_outlives_other_settings_and_cleared_cache(tmp_path: Path) -> None:
    spent, home, cache = ((1.0, 0.5, 3),), tmp_path / "state", tmp_path / "cache"
    open_account(home, cache, "spring@1", "a").put(spent, ())
    assert not cache.exists()
    assert open_account(home, cache, "spring@3", "a").read() == (spent, ())
    others = [open_account(home, cache, *each).read() for each in (("spring@3", "b"), ("autumn@2", "a"))]
    assert others == [((), ()), ((), ())]


def test_account_of_earlier_version_moves_out_of_cache(tmp_path: Path) -> None:
    """An earlier version kept it in the cache; what it goes on to spend there is added."""
    home, cache = tmp_path / "state", tmp_path / "cache"
    earlier = open_account(cache, cache, "spring@1", "a")
    earlier.put([(1.0, 0.5, 3)], [(1.0, 0.5, 2)])
    for path in cache.rglob("*"):
        os.utime(path, (1.0, 1.0))
    open_cache(cache, "autumn@2", RunConfig(learning_rate=0.2), "a", time.time())
    account = open_account(home, cache, "spring@3", "a")
    moved = (((1.0, 0.5, 3),), ((1.0, 0.5, 2),))
    assert account.read() == account.read() == moved
    assert not list((cache / "accounts").iterdir())
    earlier.put(*moved)  # a kill came before it was removed
    assert account.read() == moved
    earlier.put([(1.0, 0.5, 4), (2.0, 0.5, 1)], [])
    assert account.read() == (((1.0, 0.5, 7), (2.0, 0.5, 1)), ((1.0, 0.5, 2),))
    assert account.read() == open_account(home, tmp_path / "cleared", "spring@3", "a").read()


def test_account_stays_where_key_lies_among_caches(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (link := tmp_path / "state").symlink_to(tmp_path / "cache")
    account = open_account(link, tmp_path / "cache", "spring@1", "a")
    account.put([(1.0, 0.5, 3)], [])
    assert account.read() == account.read() == (((1.0, 0.5, 3),), ())


def test_concurrent_removal_of_cache_files_is_tolerated(tmp_path: Path, monkeypatch) -> None:
    for name in ("stale", "used"):
        (tmp_path / name / "a").mkdir(parents=True)
        os.utime(tmp_path / name, (1.0, 1.0))
        os.utime(tmp_path / name / "a", (1.0, 1.0))
    found = Path.glob

    def and_one_that_is_gone(path: Path, pattern: str):
        yield from found(path, pattern)
        if path.name in ("used", tmp_path.name):
            yield path / "gone"

    monkeypatch.setattr(Path, "glob", and_one_that_is_gone)
    open_cache(tmp_path, "spring@1", RunConfig(work="coded"), "b", time.time())
    assert not (tmp_path / "stale").exists()
    assert (tmp_path / "used").exists(), "whoever removes there is there"


def test_files_of_killed_process_are_removed_by_same_client_only(tmp_path: Path) -> None:
    for client in "ab":
        (tmp_path / SPILLED / client / "fedgc-of-a-killed-one").mkdir(parents=True)
    with spilled(tmp_path, "a") as folder:
        assert not folder.exists()
        folder.mkdir()
        (folder / "0.npy").touch()
    assert [path.name for path in (tmp_path / SPILLED).iterdir()] == ["b"]


def test_leaving_client_answers_with_present_steps(tmp_path: Path) -> None:
    """The request comes during the fourth step; the next packet gets the update from the client cache."""
    job = job_of(work="local", local_steps=9)
    model = Driver(job, time.monotonic, logging.getLogger("test")).common.first()
    departure = Departure()

    def clock() -> float:
        turns.append(1)
        if len(turns) == 5:
            departure.ask()
        return 0.0

    turns: list[int] = []
    local = replace(work(job, (0, 1, 2)), kind="local")
    first = message_work(job, tmp_path, packet_of(local, model=(0, model)), clock, departure)
    (report,) = said(first, Report)
    assert report.steps == 4
    assert isinstance(first.lines[-2], Leaving), "after what it has"
    ask = Reveal("me", 1, 0, "local", None)
    second = message_work(job, tmp_path, packet_of(replace(local, order=()), ask), departure=departure)
    assert [each.steps for each in said(second, Report)] == [4]
    assert len(second.codewords) == 1


@pytest.mark.parametrize(
    ("lines", "size"), [(packets.MOST_LINES + 1, 20), (50, 1_000_000)], ids=["lines", "bytes"]
)
def test_answer_of_too_many_lines_is_refused_before_it_is_read(monkeypatch, lines: int, size: int) -> None:
    who, asked = Identity(secrets.token_bytes(32)), packets.introduction(RUN, b"n" * 32)
    frame = wire.encode(Leaving(0.0, who.client, 1.0)).ljust(size)
    frames = [frame] * lines
    signature = who.sign(packets._signed(asked.run, asked.nonce, frames))
    about = {"name": "", "key": who.public, "signature": signature, "lines": frames}
    monkeypatch.setattr(packets, "_decoded", None)
    with pytest.raises(
        BadMessage, match=f"answer: saw {lines} lines of .* bytes in all, needed at most 50000"
    ):
        packets.read_answer(RecordDict({"packet": ConfigRecord(about)}), asked, 0.0)
