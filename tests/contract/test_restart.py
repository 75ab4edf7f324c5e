"""`fedgc up` after its SuperLink or a SuperNode was killed: the devices come back, and the run is resumed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedgc.errors import FedgcError
from fedgc.flower import tether
from fedgc.store.database import Store
from fedgc.store.views import Run
from tests.contract.conftest import WAIT_S, command, eventually

pytestmark = [pytest.mark.contract, pytest.mark.timeout(900)]

COMMAND = [sys.executable, "-m", "fedgc.cli"]
SETTINGS = ["--set", "chunks=4", "--set", "threads=1", "--set", "min-devices=2"]


class Devices:
    """Two devices that `fedgc up` holds, with a state folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "FEDGC_DB": str(folder / "fedgc.db"), "XDG_STATE_HOME": str(folder)}
        self.holder = self.starts("up", "--foreground", "--devices", "2")

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
        return list(self.folder.glob("fedgc/runs/*/model-*.fedgc"))

    def programs(self, name: str) -> set[int]:
        """The processes that run a program of Flower's, without their leashes."""
        below = tether.descendants(self.holder.pid)
        return {pid for pid in below if f"/{name}\0" in command(pid) and tether.__file__ not in command(pid)}


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[Devices]:
    held = Devices(tmp_path)
    try:
        eventually(lambda: "until Ctrl-C" in held.said("up"))
        yield held
    finally:
        held.holder.send_signal(signal.SIGTERM)
        held.holder.wait(WAIT_S)


def test_supernodes_reconnect_to_a_restarted_superlink_and_a_resume_finds_them(devices: Devices) -> None:
    run = devices.starts("run", "--superlink", "up", "--set", "rounds=100000", *SETTINGS)
    eventually(lambda: devices.rounds() >= 2 and devices.checkpoints())
    (superlink,), supernodes = devices.programs("flower-superlink"), devices.programs("flower-supernode")
    os.kill(superlink, signal.SIGKILL)
    assert run.wait(WAIT_S) != 0
    assert "Traceback" not in devices.said("run")
    before = devices.last_run()
    assert before is not None
    eventually(lambda: "superlink ended and is restarted" in devices.said("up"))
    last = (before.last_round or 0) + 2
    resumed = devices.starts("run", "--superlink", "up", "--resume", before.run, "--set", f"rounds={last}")
    assert resumed.wait(WAIT_S) == 0, devices.said("run")
    assert devices.rounds() == last
    assert len(devices.programs("flower-superlink") - {superlink}) == 1
    assert devices.programs("flower-supernode") == supernodes, "the same processes, reconnected"


def test_up_restarts_a_supernode_that_ended(devices: Devices) -> None:
    eventually(lambda: len(devices.programs("flower-supernode")) == 2)
    before = devices.programs("flower-supernode")
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: len(devices.programs("flower-supernode") - {killed}) == 2)
    assert before - {killed} < devices.programs("flower-supernode")
