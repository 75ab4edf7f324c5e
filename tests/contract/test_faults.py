"""Test faults on real processes, from an enum: signals, sockets and a relay of bytes make them.

One run of a counting task (counting.py) continues over four SuperNodes through one fault after the other;
while one client is excluded from the session port, the connections of others break. Its clients connect
through a relay. After each fault the history must show every round once, every version once, and a sum that
is exact to the last bit or marked as approximate. At the end the run is stopped."""

import os
import re
import signal
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from itertools import combinations, pairwise
from math import isclose
from pathlib import Path

import numpy as np
import pytest

from benchmarks import counting
from fedgc.deploy.local_federation import free_port
from fedgc.errors import FedgcError
from fedgc.flower.cache_folders import SPILLED, default_root, full_name, open_cache
from fedgc.history import ClientRow
from fedgc.links.pieces import WINDOW
from fedgc.links.session.certificate import fingerprint, make_certificate
from fedgc.messages import SUMMED, Mix, Work
from fedgc.store.views import Round
from fedgc.training import CommonModel, new_engine
from fedgc.training.pace import Pace
from fedgc.training.tasks import named
from tests.config_of import config_of
from tests.contract import crooked
from tests.contract.conftest import PACE_S, Federation, alive, eventually
from tests.contract.relay import Flow, Relay, Way, owner
from tests.contract.stranger import Says, Stranger
from tests.links.raw_stream import RawStream

pytestmark = pytest.mark.contract

RUN = "counted"
GRACE_S = 4.0  # a connection that breaks on a busy machine is to be back within it
CONNECT_S = 6.0
PIECE_KB = 64
MODEL_BYTES = 4 * counting.LARGE  # a codeword has as many: the code is a work queue
LEASE_S = 12.0
LOOKED_BACK = 8  # rounds that are read to find the last: a resume goes back by less
HUGE = 128 * 2**20
REPORT_BYTES = 400  # a line of progress is longer, acknowledgements and pings are shorter
SETTINGS = counting.SETTINGS | {
    "task": "benchmarks.counting:large",
    "run": RUN,
    "rounds": 1_000_000,
    "replicas": 3,
    "min_clients": 3,
    "threads": 1,
    "memory_mb": 1,  # less than one chunk's update: all lie on disk
    "grace_s": GRACE_S,
    "late_s": 1000.0,  # what breaks is held up for long: others are asked for it when it is lost, not before
    "connect_s": CONNECT_S,
    "piece_kb": PIECE_KB,
}


class Fault(Enum):
    """Faults of a client, of its connection and of its server."""

    KILLED_BEFORE_REPORT = "a client killed before its report"
    KILLED_AFTER_REPORT = "a client killed after its report"
    KILLED_DURING_UPLOAD = "a client killed during its upload"
    KILLED_AFTER_UPLOAD = "a client killed after its upload"
    CLIENT_APP_KILLED = "a ClientApp killed"
    SUPERNODE_KILLED = "a SuperNode killed and restarted"
    CUT_IN_UPLOAD = "a connection cut in the middle of a piece going up"
    CUT_IN_DOWNLOAD = "a connection cut in the middle of a piece going down"
    ACKNOWLEDGEMENT_LOST = "the acknowledgement of a whole codeword lost"
    HALF_OPEN = "a connection half open"
    PIECES_TWICE = "every piece comes twice"
    LINES_TWICE = "every line comes twice"
    PIECES_OUT_OF_ORDER = "pieces that come out of order"
    PORT_CLOSED = "the session port closed for one client of four"
    SERVER_KILLED_GATHERING = "the server killed while clients gather"
    SERVER_KILLED_WORKING = "the server killed while clients work"
    SERVER_KILLED_COLLECTING = "the server killed while it collects"


class Ongoing:
    """The run, with the queries that tests need."""

    def __init__(self, federation: Federation, folder: Path) -> None:
        self.listener = f"127.0.0.1:{free_port()}"
        self.federation = federation
        self.relay = Relay(self.listener)
        self.database = federation.database
        self.checkpoints = folder / "checkpoints"
        self.spilled = default_root({"XDG_STATE_HOME": str(federation.state)}) / SPILLED
        self.flower_run = 0
        self.killed: list[int] = []
        self._last = 0

    # ---- its life

    def begin(self, **changes: float | str) -> None:
        """Start the run, or resume it from its last checkpoint."""
        begun = any((self.checkpoints / RUN).glob("model-*.fedgc"))
        addresses = {"bind": self.listener, "advertise": self.relay.address}
        settings = SETTINGS | addresses | {"checkpoint_dir": str(self.checkpoints)} | changes
        self.flower_run = self.federation.submit(settings | ({"resume": RUN} if begun else {}))

    def kill_server(self) -> None:
        """SIGKILL the ServerApp and block its remaining messages."""
        pid = self.federation.server()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for flow in self.relay.living:
            flow.cut()
        eventually(lambda: not alive(pid))
        self.killed.append(self.flower_run)
        self.flower_run = 0

    def gathered(self, clients: int = 3) -> int:
        """Ensure that the run has this many clients, or one fewer that returns; return its last round."""
        if not self.flower_run:
            self.begin()
        eventually(lambda: len([row for row in self.last_rows() if row.counted]) >= clients)
        return self.last()

    def log(self) -> str:
        return self.federation.run_log(self.flower_run)

    # ---- its history

    def rounds(self, after: int = -1) -> list[Round]:
        """The rounds whose model has been measured, which is done beside the training."""
        if not self.database.exists():
            return []
        with suppress(FedgcError), self.federation.store() as store:
            found = store.rounds(RUN, after)
            ends = [at for at, each in enumerate(found, start=1) if each.row.metrics]
            return list(found[: ends[-1] if ends else 0])
        return []

    def last(self) -> int:
        self._last = self.rounds(self._last - LOOKED_BACK)[-1].row.round
        return self._last

    def rows(self, name: str, after: int) -> list[ClientRow]:
        """The rows of one client in the rounds behind this one."""
        with self.federation.store() as store:
            (client,) = [each.client for each in store.clients() if each.name == name]
            return [row for _, row in store.client_history(RUN, client, after)]

    def last_rows(self) -> tuple[ClientRow, ...]:
        rounds = self.rounds(self._last - LOOKED_BACK)
        return self.rows_of(rounds[-1].row.round) if rounds else ()

    def rows_of(self, number: int) -> tuple[ClientRow, ...]:
        with self.federation.store() as store:
            return store.client_rows(RUN, number)

    def saved(self) -> int:
        """The version of the model that a resume would go on with."""
        return max(int(path.stem.split("-")[1]) for path in (self.checkpoints / RUN).glob("model-*.fedgc"))

    def shelved(self, version: int) -> dict[str, list[float]]:
        """The training time of every finished chunk on a client's disk, by client, for this version."""
        root = default_root({"XDG_STATE_HOME": str(self.federation.state)})
        full, config = full_name(RUN, 0), config_of(SETTINGS)
        with self.federation.store() as store:
            names = [each.client for each in store.clients()]
        found = {name: open_cache(root, full, config, name, time.time()).found() for name in names}
        return {
            name: [
                about.seconds
                for about, _ in cache.values()
                if (about.version, about.reached) == (version, counting.STEPS)
            ]
            for name, cache in found.items()
        }

    def finishes_nothing_more(self, looks: list[frozenset[tuple[str, int]]]) -> bool:
        """Look at the finished chunks on all clients' disks; return whether three looks saw the same."""
        root = default_root({"XDG_STATE_HOME": str(self.federation.state)})
        with suppress(FileNotFoundError):  # replaced while they are listed
            looks.append(frozenset((str(path), path.stat().st_mtime_ns) for path in root.rglob("chunk-*.pt")))
        return len(looks) > 3 and looks[-1] == looks[-2] == looks[-3]

    def goes_on(self) -> None:
        """Wait for two more rounds: one of them begins and ends after this."""
        now = self.last()
        eventually(lambda: self.last() >= now + 2)

    def check(self, after: int, *others: str) -> list[Round]:
        """Check that each later round exists once, with an exact sum or marked as approximate; return them.

        They end in a new model, or in one of these `others`.
        """
        rounds = self.rounds(after - 1)
        numbers = [each.row.round for each in rounds]
        assert numbers == list(range(after, after + len(rounds)))
        known, exact = rounds[0].row, True
        for before, this in pairwise([each.row for each in rounds]):
            assert this.version == before.version + (before.outcome in SUMMED)
            assert this.outcome in ("synced", "approximate", *others)
            if this.outcome not in others:
                assert (this.outcome == "synced") == (this.short == ()), "it says what is missing"
            exact = exact and this.outcome != "approximate"
            if this.metrics:  # those of the last rounds are lost with a killed server
                if exact and known.metrics:
                    added = float(this.version - known.version)
                    gained = {name: count - known.metrics[name] for name, count in this.metrics.items()}
                    assert gained == {name: added * (name != "off") for name in gained}, this.round
                known, exact = this, True
        assert all(each.counted == counting.CHUNKS for each in rounds if each.row.outcome == "synced")
        return rounds[1:]

    # ---- its clients

    def name(self, flow: Flow) -> str:
        """Which client has this connection."""
        for name in self.federation.nodes:
            if owner(flow.port, self.federation.pids(name)):
                return name
        raise AssertionError(f"nobody has port {flow.port}")

    def flow(self, name: str) -> Flow | None:
        """The living connection of a client."""
        pids = self.federation.pids(name)
        return next((flow for flow in self.relay.living if owner(flow.port, pids)), None)

    def kill(self, flow: Flow) -> str:
        """SIGKILL a client, all its processes at once."""
        name = self.name(flow)
        self.federation.kill(name)
        flow.cut()
        return name

    def is_lost(self, name: str, after: int) -> bool:
        return any(row.failure == "lost" for row in self.rows(name, after))

    def works(self, name: str) -> None:
        """Wait until this client's work counts again."""
        now = self.last()
        eventually(lambda: any(row.counted and not row.failure for row in self.rows(name, now)))


def named_after(fault: Fault) -> str:
    return fault.name.lower()


@pytest.fixture(scope="module")
def ongoing(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ongoing]:
    run = Ongoing(federation, tmp_path_factory.mktemp("faults"))
    yield run
    if run.flower_run:  # still running: only some of the tests were selected
        federation.stop(run.flower_run)
    run.relay.close()


# ---- a client that mangles what it sends (in this process: before any other is started)

MANGLES = {
    Fault.PIECES_TWICE: crooked.pieces_twice,
    Fault.LINES_TWICE: crooked.lines_twice,
    Fault.PIECES_OUT_OF_ORDER: crooked.pieces_out_of_order,
}


@pytest.mark.parametrize("fault", MANGLES, ids=named_after)
def test_duplicate_counts_once_and_unordered_message_is_refused(tmp_path: Path, fault: Fault) -> None:
    driver, rows, listener = crooked.run(tmp_path, MANGLES[fault])
    assert [(row.round, row.outcome) for row in rows] == [(n + 1, "synced") for n in range(crooked.ROUNDS)]
    np.testing.assert_array_equal(driver.model, crooked.ROUNDS * one_machine(tmp_path))
    refused = sum(client.refused for row in rows for client in row.clients)
    if fault is Fault.PIECES_OUT_OF_ORDER:
        assert listener.refused["BadVector"] == refused > 0
        assert sum(row.repairs + row.takes for row in rows) > 0, "others made it good"
    else:
        assert refused == 0 == sum(listener.refused.values())


def one_machine(folder: Path) -> np.ndarray:
    """Slow reference: train every chunk in sequence and take the mean."""
    config = config_of(crooked.SETTINGS)
    task = named(config.task, config)
    engine = new_engine(task, config, Pace(time.monotonic, time.sleep), folder / "alone")
    engine.load(0, CommonModel(task, config).first())
    names = tuple(enumerate(task.sizes()))
    numbers = tuple(number for number, _ in names)
    engine.handle(Work("alone", 1, 0, config.round_steps, numbers, names, config.seed, 60.0))
    while not engine.idle:
        engine.step()
    total = engine.codeword(Mix(numbers, ((1.0,),) * len(numbers)))
    engine.close()
    return -total / np.float32(sum(task.sizes().values()))


# ---- a server that dies before its first round


@pytest.mark.slow  # a server that dies while it collects, below, is resumed in the same way
@pytest.mark.parametrize("fault", [Fault.SERVER_KILLED_GATHERING], ids=named_after)
def test_fault_server_killed_while_gathering_restarts_round(ongoing: Ongoing, fault: Fault) -> None:
    ongoing.relay.lets_in = lambda _: len(ongoing.relay.living) < SETTINGS["min_clients"] - 1
    ongoing.begin()
    eventually(lambda: "joins over the session link" in ongoing.log())
    ongoing.kill_server()
    ongoing.relay.lets_in = lambda _: True
    assert not ongoing.rounds()
    ongoing.gathered()
    ongoing.goes_on()
    ongoing.check(1)


# ---- clients that die


def killed_before_report(run: Ongoing) -> str:
    with run.relay.trap("down", MODEL_BYTES, "up") as trap:  # it has its model, and is not heard any more
        return run.kill(trap.wait())


def killed_after_report(run: Ongoing) -> str:
    while True:
        with run.relay.trap("down", MODEL_BYTES) as trap:
            flow = trap.wait()
        flow.rest(PACE_S)  # its acknowledgements have passed
        with run.relay.trap("up", REPORT_BYTES, "down", only=lambda each, flow=flow: each is flow) as trap:
            trap.wait()  # if it was the last to report, it is asked for its codeword at once
            if flow.passed["up"] - trap.before[flow] < PIECE_KB * 1024:
                return run.kill(flow)
        # The machine paused: this is a piece of its codeword, the reports had passed. So the next round.


def killed_during_upload(run: Ongoing) -> str:
    with run.relay.trap("up", MODEL_BYTES // 4, "up", "down") as trap:
        return run.kill(trap.wait())


def killed_after_upload(run: Ongoing) -> str:
    """Another client's upload is held, so that the round is still open when this one dies."""
    with (
        run.relay.trap("up", MODEL_BYTES // 4, "up") as held,
        run.relay.trap("up", MODEL_BYTES, only=lambda each: each is not held.caught) as whole,
    ):
        held.wait()
        flow = whole.wait()
        flow.rest(GRACE_S / 15)  # its last bytes are taken in; pings leave such gaps
        return run.kill(flow)


def shows_before_report(row: ClientRow) -> bool:
    return row.down_bytes > MODEL_BYTES and row.finished == row.counted == row.up_bytes == 0


def shows_after_report(row: ClientRow) -> bool:
    return row.finished > 0 == row.counted == row.up_bytes and row.failure == "lost"


def shows_during_upload(row: ClientRow) -> bool:
    return 0 < row.up_bytes < MODEL_BYTES and row.counted == 0 and row.failure == "lost"


def shows_after_upload(row: ClientRow) -> bool:
    return row.up_bytes > MODEL_BYTES and row.counted > 0


KILLS = {
    Fault.KILLED_BEFORE_REPORT: (killed_before_report, shows_before_report),
    Fault.KILLED_AFTER_REPORT: (killed_after_report, shows_after_report),
    Fault.KILLED_DURING_UPLOAD: (killed_during_upload, shows_during_upload),
    Fault.KILLED_AFTER_UPLOAD: (killed_after_upload, shows_after_upload),
}


@pytest.mark.parametrize("fault", KILLS, ids=named_after)
def test_killed_client_loses_only_its_unfinished_chunks(ongoing: Ongoing, fault: Fault) -> None:
    kill, shows = KILLS[fault]
    before = ongoing.gathered()
    ongoing.relay.rest()
    name = kill(ongoing)
    ongoing.federation.restart(name)
    eventually(lambda: ongoing.is_lost(name, before))
    ongoing.goes_on()
    rounds = ongoing.check(before)
    assert any(map(shows, ongoing.rows(name, before))), fault.value
    repairs = sum(each.row.repairs for each in rounds)
    needs_repair = fault in (Fault.KILLED_AFTER_REPORT, Fault.KILLED_DURING_UPLOAD)
    assert (repairs > 0) == needs_repair, "only work that was counted and not yet sent is asked of others"


@pytest.mark.parametrize("fault", [Fault.CLIENT_APP_KILLED], ids=named_after)
def test_fault_killed_client_app_is_lost_and_supernode_survives(ongoing: Ongoing, fault: Fault) -> None:
    before = ongoing.gathered()
    flow = ongoing.relay.living[-1]
    name = ongoing.name(flow)
    pid = owner(flow.port, ongoing.federation.pids(name))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: ongoing.is_lost(name, before))
    assert ongoing.federation.pids(name), "its SuperNode lives"
    ongoing.goes_on()
    ongoing.check(before)
    ongoing.federation.kill(name)  # Flower would miss its ClientApp only after a minute
    ongoing.federation.restart(name)


@pytest.mark.parametrize("fault", [Fault.SUPERNODE_KILLED], ids=named_after)
def test_fault_killed_supernode_returns_with_same_identity(ongoing: Ongoing, fault: Fault) -> None:
    before = ongoing.gathered()
    name = ongoing.name(ongoing.relay.living[0])
    pids = ongoing.federation.pids(name)
    os.kill(pids[0], signal.SIGKILL)
    eventually(lambda: not any(map(alive, pids)))
    ongoing.federation.kill(name)
    ongoing.federation.restart(name)
    eventually(lambda: ongoing.is_lost(name, before))
    ongoing.works(name)
    ongoing.check(before)


# ---- connections, while one client of four has none


@dataclass(frozen=True)
class ShutOut:
    """A client that the session port is closed for, and since when."""

    name: str
    before: int
    turned_away: int


@pytest.fixture(scope="module")
def shut_out(ongoing: Ongoing) -> ShutOut:
    before, flow = ongoing.gathered(clients=4), ongoing.relay.living[0]
    out = ShutOut(ongoing.name(flow), before, ongoing.relay.turned_away)
    ongoing.relay.lets_in = lambda each: not owner(each.port, ongoing.federation.pids(out.name))
    flow.cut()
    eventually(lambda: ongoing.is_lost(out.name, before))
    ongoing.goes_on()  # the round in which it was lost may have had repairs
    return out


def cut(run: Ongoing, way: Way) -> str:
    with run.relay.trap(way, MODEL_BYTES // 3) as trap:
        flow = trap.wait()
        name = run.name(flow)
        flow.cut()
    return name


def acknowledgement_lost(run: Ongoing) -> str:
    """Its last bytes arrive, but it gets no acknowledgement on this connection."""
    with run.relay.trap("up", MODEL_BYTES - 65_536, "down") as trap:
        flow = trap.wait()
        name = run.name(flow)
        flow.rest(
            GRACE_S / 15
        )  # the trap may have been set when its first bytes had passed: none come any more
        flow.cut()
    return name


def half_open(run: Ongoing) -> str:
    with run.relay.trap("up", MODEL_BYTES // 3, "up", "down") as trap:
        flow = trap.wait()
        name = run.name(flow)
        eventually(lambda: run.flow(name) not in (None, flow))
    return name


BREAKS = {
    Fault.CUT_IN_UPLOAD: lambda run: cut(run, "up"),
    Fault.CUT_IN_DOWNLOAD: lambda run: cut(run, "down"),
    Fault.ACKNOWLEDGEMENT_LOST: acknowledgement_lost,
    Fault.HALF_OPEN: half_open,
}


@pytest.mark.parametrize("fault", BREAKS, ids=named_after)
def test_broken_connection_loses_only_data_in_flight(
    ongoing: Ongoing, shut_out: ShutOut, fault: Fault
) -> None:
    before = ongoing.gathered()
    connections = len(ongoing.relay.flows)
    ongoing.relay.rest()
    name = BREAKS[fault](ongoing)
    ongoing.goes_on()
    rounds = ongoing.check(before)
    rows = ongoing.rows(name, before)
    assert len(ongoing.relay.flows) > connections
    assert {each.row.outcome for each in rounds} == {"synced"}
    assert not [row for row in rows if row.failure or row.refused], "it was never lost"
    assert sum(each.row.repairs for each in rounds) == 0
    assert max(row.up_bytes for row in rows) < 1.01 * MODEL_BYTES, "no piece that had arrived came again"
    assert max(row.down_bytes for row in rows) <= MODEL_BYTES + WINDOW * PIECE_KB * 1024 + MODEL_BYTES // 100


@pytest.mark.parametrize("fault", [Fault.PORT_CLOSED], ids=named_after)
def test_fault_closed_session_port_affects_one_client(
    ongoing: Ongoing, shut_out: ShutOut, fault: Fault
) -> None:
    eventually(lambda: any(row.link == "messages" for row in ongoing.rows(shut_out.name, shut_out.before)))
    ongoing.goes_on()
    assert ongoing.relay.turned_away > shut_out.turned_away
    ongoing.check(shut_out.before)
    others = [row.link for row in ongoing.last_rows()]
    assert others.count("session") >= 2, "the others keep theirs"
    ongoing.relay.lets_in = lambda _: True  # the next tests admit every client


# ---- unknown peers at the session port


def test_fault_unknown_peers_are_refused_and_logged_once(ongoing: Ongoing) -> None:
    before = ongoing.gathered()
    host, port = ongoing.listener.rsplit(":", 1)
    certificate = ssl.get_server_certificate((host, int(port))).encode()
    foreign = make_certificate(time.time()).public
    stranger = Stranger(ongoing.listener, certificate, full_name(RUN, ongoing.flower_run))

    def denied(says: Says) -> str:
        answers = stranger.talk(says)
        assert answers is not None
        assert answers[-1].startswith(b'L[0,"Denied"')
        return answers[-1].decode()

    with ThreadPoolExecutor() as many:
        silent = [many.submit(stranger.talk, lambda _: None) for _ in range(2)]
        for _ in range(2):
            assert "not one of this run" in denied(stranger.hello(token=os.urandom(32)))
            assert "signature" in denied(stranger.hello(token=os.urandom(32), server=fingerprint(foreign)))
            assert "needed a line or a piece" in denied(lambda _: b"GET / HTTP/1.1")
            assert "needed a line of a known kind" in denied(lambda _: b'L[0,"Obey",[]]')
        assert [len(each.result() or ()) for each in silent] == [1, 1], "the challenge alone"
    assert Stranger(ongoing.listener, foreign, "1").talk(lambda _: None) is None, "TLS fails before that"
    with socket.create_connection((host, int(port))) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    ongoing.goes_on()
    shown = re.findall(r"\(the first of its kind is shown\): (.*)", ongoing.log())
    for kind in (("not one of this run", "signature"), ("needed a line",), ("TimeoutError: ",)):
        assert sum(any(words in line for words in kind) for line in shown) == 1, shown
    rounds = ongoing.check(before)
    assert {each.row.outcome for each in rounds} == {"synced"}
    assert not [row for name in ongoing.federation.nodes for row in ongoing.rows(name, before) if row.refused]


def test_fault_oversized_frame_is_refused_before_allocation(ongoing: Ongoing) -> None:
    before = ongoing.gathered()
    host, port = ongoing.listener.rsplit(":", 1)
    certificate = ssl.get_server_certificate((host, int(port))).encode()
    pid = ongoing.federation.server()
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is counted from here
    resident = memory(pid, "VmRSS")
    with RawStream(ongoing.listener, certificate) as stream:
        stream.ask()
        stream.read()
        with suppress(OSError):  # the listener ends it before all of it has come
            stream.send(bytes(HUGE))
    with RawStream(ongoing.listener, certificate) as stream:
        stream.ask()
        stream.read()
        stream.line.sendall(struct.pack("<I", HUGE) + bytes(1000))
        assert f"a message of {HUGE} bytes".encode() in (stream.read() or b"")
    assert memory(pid, "VmHWM") - resident < HUGE / 2
    ongoing.goes_on()
    assert {each.row.outcome for each in ongoing.check(before)} == {"synced"}


def memory(pid: int | None, what: str) -> int:
    """Bytes of a process, as the system counts them."""
    (line,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith(what)]
    return 1024 * int(line.split()[1])


# ---- a server that dies in its rounds, leases that end, a stop


@pytest.mark.slow  # on a busy machine clients also train chunks of others in the resumed round
@pytest.mark.parametrize("fault", [Fault.SERVER_KILLED_WORKING], ids=named_after)
def test_fault_finished_work_counts_after_server_resume(ongoing: Ongoing, fault: Fault) -> None:
    before = ongoing.gathered()
    ongoing.relay.rest()
    with ExitStack() as traps:  # they have the model, and what they report of it is not heard any more
        set_up = [
            traps.enter_context(
                ongoing.relay.trap("down", MODEL_BYTES, "up", only=lambda each, flow=flow: each is flow)
            )
            for flow in ongoing.relay.living
        ]
        for trap in set_up:
            trap.wait()
        eventually(lambda: ongoing.saved() == ongoing.rounds()[-1].row.version + 1)
        looks: list[frozenset[tuple[str, int]]] = []
        eventually(lambda: ongoing.finishes_nothing_more(looks))
        ongoing.kill_server()
    resumed = ongoing.saved()
    eventually(lambda: not any(ongoing.federation.clients(name) for name in ongoing.federation.nodes))
    shelved = ongoing.shelved(resumed)
    ongoing.begin(**{"lease_s": LEASE_S, "replicas": 4, "link": "session"})
    eventually(lambda: ongoing.last() >= before + 3)
    rounds = ongoing.check(before)
    (again,) = [each.row for each in rounds if each.row.version == resumed]
    assert any(took(row, shelved[row.client]) for row in ongoing.rows_of(again.round) if row.counted)
    assert {each.row.outcome for each in rounds} == {"synced"}


def took(row: ClientRow, seconds: list[float]) -> bool:
    """Whether what a client finished took it these seconds: no two trainings take the same."""
    return any(isclose(row.busy_s, sum(some)) for some in combinations(seconds, row.finished))


@pytest.mark.slow  # in the run with short leases that the test above begins
def test_run_continues_across_renewed_leases(ongoing: Ongoing) -> None:
    before = ongoing.last()
    eventually(lambda: ongoing.log().count("a session ended: the lease is over") >= 4)
    ongoing.gathered(clients=4)
    # All may be away at once with so short a lease: such a round is empty, and changes no model.
    ongoing.check(before, "empty")


@pytest.mark.parametrize("fault", [Fault.SERVER_KILLED_COLLECTING], ids=named_after)
def test_fault_server_killed_while_collecting_resumes_round(ongoing: Ongoing, fault: Fault) -> None:
    before = ongoing.gathered()
    with ongoing.relay.trap("up", MODEL_BYTES // 4, "up") as trap:
        trap.wait()
        ongoing.kill_server()
    ongoing.begin(link="session")
    eventually(lambda: ongoing.last() >= before + 3)
    ongoing.check(before)


def test_stop_ends_all_sessions_and_kill_gives_failed_run(ongoing: Ongoing) -> None:
    ongoing.gathered(clients=4)
    federation, run = ongoing.federation, ongoing.flower_run
    federation.stop(run)
    ongoing.flower_run = 0
    eventually(lambda: not any(federation.clients(name) for name in federation.nodes))
    for name in federation.nodes:
        last = federation.log(name).read_text().rpartition("session of ")[2]
        assert "ended: the run was stopped" in last, "it was told, and did not wait for the grace time"
    assert not [*ongoing.spilled.glob("*")], "what killed ones could not hold in memory went too"
    assert federation.superlink.status(run) == "finished:stopped"
    with federation.store() as store:
        assert store.run(RUN).state == "stopped"
        names = Counter(client.name for client in store.clients())
    assert names == dict.fromkeys(federation.nodes, 1), "whoever was killed came back as who it was"
    eventually(lambda: federation.superlink.status(ongoing.killed[0]) == "finished:failed")
