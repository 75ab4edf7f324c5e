"""Test recovery after a killed SuperLink or SuperNode: clients reconnect and the run is resumed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedgc.errors import FedgcError
from fedgc.processes import supervision
from fedgc.store.database import Store
from fedgc.store.liveness import state_of
from fedgc.store.views import Run
from tests.contract.conftest import WAIT_S, command, eventually

pytestmark = [pytest.mark.contract, pytest.mark.timeout(900)]

COMMAND = [sys.executable, "-m", "fedgc.cli"]
SETTINGS = [
    "--set",
    "work=coded",
    "--set",
    "data.chunks=4",
    "--set",
    "client.threads=1",
    "--set",
    "min-clients=2",
]


class Clients:
    """Two clients started by `fedgc up` with their own state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "FEDGC_DB": str(folder / "fedgc.db"),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.holder = self.starts("up", "--foreground", "--clients", "2")

    def starts(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{words[0]}.out").open("ab") as out:
            return subprocess.Popen(
                [*COMMAND, *words], cwd=self.folder, env=self.environment, stdout=out, stderr=out
            )

    def said(self, word: str) -> str:
        return (self.folder / f"{word}.out").read_text()

    def last_run(self) -> Run | None:
        with suppress(FedgcError), Store.open(str(self.folder / "fedgc.db"), reads_only=True) as store:
            return store.run()
        return None

    def rounds(self) -> int:
        run = self.last_run()
        return (run.last_round or 0) if run else 0

    def checkpoints(self) -> list[Path]:
        return list(self.folder.glob("state/fedgc/runs/*/model-*.fedgc"))

    def programs(self, name: str) -> set[int]:
        """The processes that run a program of Flower's, without their supervisors."""
        below = supervision.descendants(self.holder.pid)
        return {
            pid for pid in below if f"/{name}\0" in command(pid) and supervision.__file__ not in command(pid)
        }


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    held = Clients(tmp_path_factory.mktemp("clients"))
    try:
        eventually(lambda: "until Ctrl-C" in held.said("up"))
        yield held
    finally:
        held.holder.send_signal(signal.SIGTERM)
        held.holder.wait(WAIT_S)


def test_supernodes_reconnect_to_restarted_superlink_and_resume(clients: Clients) -> None:
    run = clients.starts("run", "--superlink", "up", "--set", "rounds=100000", *SETTINGS)
    eventually(lambda: clients.rounds() >= 2 and clients.checkpoints())
    (superlink,), supernodes = clients.programs("flower-superlink"), clients.programs("flower-supernode")
    os.kill(superlink, signal.SIGKILL)
    assert run.wait(WAIT_S) != 0
    assert "Traceback" not in clients.said("run")
    before = clients.last_run()
    assert before is not None
    eventually(lambda: "superlink was killed by SIGKILL and is restarted" in clients.said("up"))
    last = (before.last_round or 0) + 2
    resumed = clients.starts("run", "--superlink", "up", "--resume", before.run, "--set", f"rounds={last}")
    assert resumed.wait(WAIT_S) == 0, clients.said("run")
    assert clients.rounds() == last
    assert len(clients.programs("flower-superlink") - {superlink}) == 1
    assert clients.programs("flower-supernode") == supernodes, "the same processes, reconnected"


def test_down_stops_run_under_way_and_it_can_be_resumed(tmp_path: Path) -> None:
    held = Clients(tmp_path)
    try:
        eventually(lambda: "until Ctrl-C" in held.said("up"))
        run = held.starts("run", "--superlink", "up", "--set", "rounds=100000", *SETTINGS)
        eventually(lambda: held.rounds() >= 2 and held.checkpoints())
    finally:
        held.holder.send_signal(signal.SIGTERM)
        held.holder.wait(WAIT_S)
    assert run.wait(WAIT_S) == 1
    last = held.last_run()
    assert last is not None
    assert (state_of(last), last.reason) == ("stopped", "the server got SIGTERM")
    assert f"the server got SIGTERM; `fedgc run --resume {last.run}` goes on" in held.said("run")


def test_up_restarts_ended_supernode(clients: Clients) -> None:
    eventually(lambda: len(clients.programs("flower-supernode")) == 2)
    before = clients.programs("flower-supernode")
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: len(clients.programs("flower-supernode") - {killed}) == 2)
    assert before - {killed} < clients.programs("flower-supernode")
