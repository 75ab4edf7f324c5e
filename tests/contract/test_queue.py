"""Test `fedgc serve --queue` on real processes: a run that fails, and one whose server is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgc.processes import supervision
from fedgc.store.database import Store
from tests.contract.conftest import WAIT_S, alive, eventually

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(900)]

COMMAND = [sys.executable, "-m", "fedgc.cli"]
ROUNDS = 8
SHORT = (
    "work=local", "gate.name=every", f"rounds={ROUNDS}", "local-steps=4", "min-clients=2", "client.threads=1",
)  # fmt: skip


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a command of fedgc on a store of its own."""
    state = {"FEDGC_DB": str(tmp_path / "fedgc.db"), "XDG_STATE_HOME": str(tmp_path / "state")}

    def start(*words: str, out: Any = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *words], cwd=tmp_path, env=os.environ | state, stdout=out, stderr=out, text=True
        )

    return start


def test_queue_goes_on_after_failed_run_and_killed_server(
    tmp_path: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    def entries() -> dict[str, dict[str, Any]]:
        listed = json.loads(command("queue", "list", "--json").communicate()[0])["queue"]
        return {each["run"]: each for each in listed}

    def add(run: str, priority: int, *more: str) -> None:
        words = [word for each in (f"run={run}", *SHORT, *more) for word in ("--set", each)]
        process = command("queue", "add", "--priority", str(priority), *words)
        process.communicate()
        assert process.returncode == 0

    def last_round() -> int:
        with Store.open(str(tmp_path / "fedgc.db"), reads_only=True) as store:
            return next((each.last_round or 0 for each in store.runs() if each.run == "good"), 0)

    log = tmp_path / "serve.out"
    pace = [word for n in range(2) for word in ("--client", f"client-{n}:pace-s=0.1")]
    serve = ["serve", "--queue", "--restarts", "0", "--clients", "2", *pace]
    add("good", 0)
    add("bad", 1, "task=nowhere:task")
    with log.open("a") as out:
        server = command(*serve, out=out)
        try:
            eventually(lambda: last_round() >= 1 or server.poll() is not None)
            assert server.poll() is None, log.read_text()
            below = supervision.descendants(server.pid)
            server.kill()
            server.wait(WAIT_S)
            listed = entries()
            assert (listed["bad"]["state"], listed["good"]["state"]) == ("failed", "interrupted")
            assert "nowhere" in listed["bad"]["reason"]
            eventually(lambda: not any(map(alive, below)))
            server = command(*serve, out=out)
            eventually(lambda: "entry 1: run good completed" in log.read_text())
            assert server.poll() is None, "it waits for the next entry"
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(WAIT_S)
    assert entries()["good"]["state"] == "completed"
    with Store.open(str(tmp_path / "fedgc.db"), reads_only=True) as store:
        assert [each.row.round for each in store.rounds("good")] == list(range(1, ROUNDS + 1))
        assert "resumed" in {each.kind for each in store.audited("good")}
        assert sorted(each.name for each in store.clients()) == ["client-0", "client-1"], "the keys stay"
    assert "Traceback" not in log.read_text()
