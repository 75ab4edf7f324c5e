"""Test runs on real Flower processes: trained over both links, refused, and ended with their starter.

One run continues beside all tests of this file: one of its clients is excluded from the session port and uses
Flower's messages, which is mostly waiting."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.counting import SETTINGS as COUNTING
from fedgc.cli.follow import Log, Warned
from fedgc.deploy.local_federation import free_port
from fedgc.processes.available import available_cores
from tests.contract.conftest import GATHER_S, WAIT_S, Federation, alive, eventually
from tests.contract.relay import Relay, owner

pytestmark = pytest.mark.contract

RUN = "two-links"
ROUND = re.compile(r"^.*round (\d+) (synced|approximate)", re.MULTILINE)
MODEL_BYTES = 4 * 9_000  # the digits' model has a few more numbers
CHUNKS = 8
SETTINGS = {
    "work": "coded",
    "min_clients": 4,
    "threads": 1,
    "grace_s": 2.0,
    "chunks": CHUNKS,
    "evaluate_every": 1,
}
SHUT_OUT = "client-3"


@dataclass(frozen=True)
class TwoLinks:
    """The run over two links; each chunk has one client, so a complete round needs every client."""

    federation: Federation
    flower_run: int
    relay: Relay
    checkpoints: Path

    def log(self) -> str:
        return self.federation.run_log(self.flower_run)


@pytest.fixture(scope="module", autouse=True)
def two_links(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoLinks]:
    listener = f"127.0.0.1:{free_port()}"
    relay = Relay(listener)
    relay.lets_in = lambda flow: owner(flow.port, federation.pids(SHUT_OUT)) is None
    folder = tmp_path_factory.mktemp("two-links")
    settings = SETTINGS | {"rounds": 2, "run": RUN, "replicas": 1, "deadline_s": 100.0, "connect_s": 2.0}
    settings |= {"bind": listener, "advertise": relay.address, "checkpoint_dir": str(folder)}
    settings |= {"start_timeout_s": GATHER_S}
    run = federation.submit(settings)
    yield TwoLinks(federation, run, relay, folder)
    if federation.running(run):
        federation.stop(run)
    relay.close()


def rounds_of(log: str) -> list[int]:
    return [int(number) for number, _ in ROUND.findall(log)]


def test_bad_settings_give_one_line_and_failed_run(federation) -> None:
    run = federation.submit(SETTINGS | {"batch_size": 0})
    assert federation.wait(run, WAIT_S) == "finished:failed"
    log = federation.run_log(run)
    assert re.search(
        r"^\S*ERROR\S* ?\S*: +setting batch-size: saw 0, needed at least 1$", log, re.MULTILINE
    ), log
    assert "Traceback" not in log


def test_clients_share_cores_of_machine(federation) -> None:
    share = os.environ.get("OMP_NUM_THREADS", str(max(1, available_cores() // len(federation.nodes))))
    for name in federation.nodes:
        variables = Path(f"/proc/{federation.pids(name)[0]}/environ").read_text().split("\0")
        assert f"OMP_NUM_THREADS={share}" in variables


def reason_of(federation: Federation, run: str) -> str:
    with federation.store() as store:
        return store.run(run).reason


def test_missing_package_names_client_and_package(tmp_path: Path) -> None:
    environment = {"FEDGC_DB": str(tmp_path / "fedgc.db"), "XDG_STATE_HOME": str(tmp_path)}
    with Federation(1, folder=tmp_path / "processes", environment=environment) as federation:
        settings = {"task": "tests.contract.lacking:digits", "min_clients": 1, "start_timeout_s": 120.0}
        run = federation.submit(settings | {"run": "lacking"})
        assert federation.wait(run, WAIT_S) == "finished:failed"
        reason = reason_of(federation, "lacking")
        assert "client client-0: task tests.contract.lacking:digits" in reason
        assert "No module named 'package_of_the_server'" in reason


@pytest.mark.slow
def test_interrupted_block_records_run_as_stopped(tmp_path: Path) -> None:
    environment = {"FEDGC_DB": str(tmp_path / "fedgc.db"), "XDG_STATE_HOME": str(tmp_path)}
    with Federation(1, folder=tmp_path / "processes", environment=environment) as federation:
        task = {"task": "benchmarks.counting:on_half_base", "rounds": 100_000, "run": "interrupted"}
        run = federation.submit(COUNTING | task | {"min_clients": 1, "threads": 1, "replicas": 1})
        eventually(lambda: rounds_of(federation.run_log(run)), WAIT_S)
        with pytest.raises(KeyboardInterrupt), federation.stopping():
            raise KeyboardInterrupt
        with federation.store() as store:
            assert store.run("interrupted").state == "stopped"


@pytest.mark.slow  # quick tests carry such arrays without processes
def test_dtype_unknown_to_numpy_fails_no_run(federation) -> None:
    task = {"task": "benchmarks.counting:on_half_base", "rounds": 1, "run": "half-base"}
    run = federation.submit(COUNTING | task | {"min_clients": 1, "threads": 1, "replicas": 1})
    assert federation.wait(run, WAIT_S) == "finished:completed", federation.run_log(run)
    with federation.store() as store:
        assert [each.row.outcome for each in store.rounds("half-base")] == ["synced"]


def test_no_process_outlives_killed_starter(tmp_path: Path) -> None:
    script = (
        "import time\n"
        "from pathlib import Path\n"
        "from fedgc.deploy.local_federation import LocalFederation\n"
        f"with LocalFederation(1, folder=Path({str(tmp_path)!r})) as federation:\n"
        "    trees = lambda: [federation.pids(name) for name in ('superlink', 'client-0')]\n"
        "    while min(map(len, trees())) < 2:\n"  # each has started its SuperExec
        "        time.sleep(0.05)\n"
        "    print(*sum(trees(), ()), flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as starter:
        try:
            assert starter.stdout is not None
            pids = [int(word) for word in starter.stdout.readline().split()]
            living = [pid for pid in pids if alive(pid)]
        finally:
            starter.kill()  # SIGKILL: it cannot clean up
    assert len(living) >= 3
    eventually(lambda: not any(map(alive, pids)))


def test_run_trains_over_both_links_and_keeps_history(two_links: TwoLinks) -> None:
    federation = two_links.federation
    assert federation.wait(two_links.flower_run, WAIT_S) == "finished:completed", two_links.log()
    assert rounds_of(two_links.log()) == [1, 2]
    with federation.store() as store:
        kept = store.run(RUN)
        rounds = store.rounds(RUN)
        rows = [row for number in (1, 2) for row in store.client_rows(RUN, number)]
        names = {client.name for client in store.clients()}
        audit = store.audited(RUN)
    assert Counter(each.kind for each in audit) == {"key": 1, "joined": len(names)}
    assert {each.who for each in audit if each.kind == "joined"} == {row.client for row in rows}
    assert kept.state == "completed"
    assert [each.row.outcome for each in rounds] == ["synced"] * 2
    assert rounds[-1].row.metrics["accuracy"] > rounds[0].row.metrics["accuracy"] > 0.1
    assert names == set(federation.nodes)
    assert len(rows) == 2 * 4
    assert all(row.control_bytes > 0 for row in rows)
    for client in {row.client for row in rows}:
        assert sum(row.down_bytes for row in rows if row.client == client) > MODEL_BYTES
    assert sum(row.up_bytes for row in rows) > 2 * MODEL_BYTES
    assert list((two_links.checkpoints / RUN).glob("model-*.fedgc"))


def test_client_without_session_works_over_messages(two_links: TwoLinks) -> None:
    federation = two_links.federation
    assert federation.wait(two_links.flower_run, WAIT_S) == "finished:completed", two_links.log()
    assert two_links.relay.turned_away
    with federation.store() as store:
        rows = [row for number in (1, 2) for row in store.client_rows(RUN, number)]
        called = {client.client: client.name for client in store.clients()}
    links = dict.fromkeys(federation.nodes, "session") | {SHUT_OUT: "messages"}
    assert {(called[row.client], row.link) for row in rows} == set(links.items())
    for row in rows:
        assert row.counted == row.finished > 0
        assert row.up_bytes > 0
    log = two_links.log()
    assert "goes on over Flower messages alone" in log
    assert log.count("joins over the session link") == 3
    assert log.count("joins over the messages link") == 1


@pytest.mark.slow
def test_run_with_busy_clients_names_other_run(two_links: TwoLinks) -> None:
    federation = two_links.federation
    assert federation.wait(two_links.flower_run, WAIT_S) == "finished:completed", two_links.log()
    busy = federation.submit(SETTINGS | {"run": "busy", "rounds": 1_000_000})
    with federation.store() as store:
        eventually(lambda: any(each.run == "busy" and each.rounds for each in store.runs()))
    second = federation.submit(SETTINGS | {"run": "second", "rounds": 1, "start_timeout_s": 6.0})
    try:
        assert federation.wait(second, WAIT_S) == "finished:failed"
    finally:
        federation.stop(busy)
    reason = reason_of(federation, "second")
    assert "waited 6 s for 4 clients" in reason
    assert "connected and did not answer: a SuperNode serves one run at a time" in reason
    assert "under way at its beginning: busy" in reason
    note = "busy with run busy: a SuperNode serves one run at a time, so this run waits for its clients"
    assert note in Warned(Log(federation.log(f"run-{second}"))).notes()
