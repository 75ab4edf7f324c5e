"""Test `fedgc serve`: the ServerApp and the SuperLink are killed in different phases, and the run goes on.

One run on this machine goes through all faults. While it collects, one client is stopped (SIGSTOP) and owes
its update, so that the phase lasts until the kill. At the end the history must show every round once and
every version once."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from benchmarks.served import CLIENT, SERVER, SUPERLINK, WAIT_S, Served, alive, eventually
from fedgc.messages import SUMMED

pytestmark = [pytest.mark.contract, pytest.mark.timeout(1800)]

ROUNDS = 40
PACE_S = 0.05
STEPS = 8
SETTINGS = {
    "run": "ward", "rounds": ROUNDS, "work": "local", "gate.name": "every", "local-steps": STEPS,
    "client.threads": 1, "min-clients": 3, "timing.quorum": 0.5, "timing.patience": 0, "links.grace-s": 20,
    "optimizer.shared-momentum": "off",
}  # fmt: skip
CLIENTS = {f"client-{number}": {"pace-s": PACE_S} for number in range(3)}


class Fault(Enum):
    """What is killed, and in which phase of a round."""

    SERVER_WORKING = SERVER, "working"
    SERVER_COLLECTING = SERVER, "collecting"
    SUPERLINK_WORKING = SUPERLINK, "working"
    SUPERLINK_COLLECTING = SUPERLINK, "collecting"


class Ward(Served):
    """A run of three clients."""

    def kill(self, fault: Fault) -> None:
        """SIGKILL a program once the run is in this phase."""
        program, phase = fault.value
        stopped = self.programs(CLIENT)[-1:] if phase == "collecting" else []
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: self.phase() == phase)
            (pid,) = self.programs(program)
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: not alive(pid))
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def check(self) -> None:
        """Check that every round and every version is there once."""
        rows = [each.row for each in self.history()]
        assert [row.round for row in rows] == list(range(1, len(rows) + 1))
        for one, two in pairwise(rows):
            assert two.version == one.version + (one.outcome in SUMMED)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    started = Ward(tmp_path_factory.mktemp("served"), SETTINGS, CLIENTS)
    try:
        eventually(lambda: started.last() >= 2 or started.process.poll() is not None)
        yield started
    finally:
        started.end()


QUICK = Fault.SERVER_WORKING
FAULTS = [pytest.param(each, marks=[] if each is QUICK else [pytest.mark.slow]) for each in Fault]


@pytest.mark.parametrize("fault", FAULTS, ids=[each.name.lower() for each in Fault])
def test_fault_killed_server_is_resumed_by_serve(served: Ward, fault: Fault) -> None:
    before = served.said().count("it is resumed from its last checkpoint")
    served.kill(fault)
    served.goes_on()
    served.check()
    assert served.said().count("it is resumed from its last checkpoint") > before
    if fault.value[0] == SUPERLINK:
        assert "superlink was killed by SIGKILL and is restarted" in served.said()


@pytest.mark.slow  # on a busy machine the round may be over when the kill comes
def test_fault_finished_local_work_is_not_trained_again(served: Ward) -> None:
    served.kill(Fault.SERVER_COLLECTING)
    interrupted = served.last() + 1
    served.goes_on()
    with served.store() as store:
        usual, again = (store.client_rows("ward", number) for number in (interrupted - 1, interrupted))
    assert all(row.counted <= row.steps for row in usual), "`steps` are those of this start of the round"
    assert any(row.counted > row.steps for row in again)


@pytest.mark.slow
def test_fault_killed_serve_passes_over_damaged_checkpoints(served: Ward) -> None:
    served.goes_on(3)  # as many checkpoints are kept
    below = served.programs(SERVER)
    served.process.kill()
    served.process.wait(WAIT_S)
    eventually(lambda: not any(map(alive, below)))
    older, torn, flipped = sorted(served.folder.glob("state/fedgc/runs/ward/model-*.fedgc"))
    torn.write_bytes(torn.read_bytes()[:-100])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    last = served.last()
    served.process = served.start()
    eventually(lambda: served.last() >= last + 2 or served.process.poll() is not None)
    served.check()
    said = served.said()
    assert f"checkpoint {flipped.name}: skipped: saw a content that its SHA-256 does not name" in said
    assert f"checkpoint {torn.name}: skipped: saw " in said
    assert f"; {older.name}, of round " in said


def test_fault_served_run_completes_with_each_round_once(served: Ward) -> None:
    assert served.process.wait(WAIT_S) == 0, served.said()
    served.check()
    assert served.last() == ROUNDS
    run = served.run()
    assert run is not None
    assert run.state == "completed"
    assert "Traceback" not in served.said()


@pytest.mark.slow
def test_fault_twenty_kills_lose_no_round(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    lost_s: list[tuple[float, Fault]] = []
    served = Ward(tmp_path, SETTINGS | {"rounds": 100_000}, CLIENTS)
    try:
        eventually(lambda: served.last() >= 2)
        for fault in [*Fault] * 5:
            served.kill(fault)
            killed, last = time.monotonic(), served.last()
            eventually(lambda last=last: served.last() > last or served.process.poll() is not None)
            lost_s.append((time.monotonic() - killed, fault))
            served.goes_on()
            served.check()
    finally:
        served.end()
    rounds = [each.row.working_s + each.row.collecting_s for each in served.history()]
    worst_s, fault = max(lost_s, key=lambda each: each[0])
    record_property("longest_lost", f"{worst_s:.1f} s, {worst_s / median(rounds):.0f} rounds, {fault.name}")
