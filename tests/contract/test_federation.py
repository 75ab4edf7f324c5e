"""Runs on real Flower processes: trained, killed, stopped, refused. Faults are made by signals."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fedgc.store.database import Store

pytestmark = pytest.mark.contract

ROUND = re.compile(r"^.*round (\d+) (synced|approximate)", re.MULTILINE)


MODEL_BYTES = 4 * 9_000  # the digits' model has a few more numbers


def rounds_of(log: str) -> list[int]:
    return [int(number) for number, _ in ROUND.findall(log)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def clients(federation, name: str) -> list[int]:
    """The ClientApp processes of a node."""
    return [
        pid for pid in federation.pids(name) if b"flwr-clientapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def test_a_run_trains_a_model_and_keeps_its_history(federation, settings, tmp_path: Path) -> None:
    settings |= {"rounds": 4, "run": "trained", "checkpoint-dir": str(tmp_path)}
    run = federation.submit(settings)
    assert federation.wait(run, 120) == "finished:completed", federation.run_log(run)
    assert rounds_of(federation.run_log(run)) == [1, 2, 3, 4]
    with Store.open(str(federation.folder.parent / "fedgc.db"), reads_only=True) as store:
        kept = store.run("trained")
        rounds = store.rounds("trained")
        rows = [row for number in range(1, 5) for row in store.device_rows("trained", number)]
        names = {device.name for device in store.devices()}
        audit = store.audited("trained")
    assert Counter(each.kind for each in audit) == {"key": 1, "joined": len(names)}
    assert {each.who for each in audit if each.kind == "joined"} == {row.device for row in rows}
    assert kept.state == "completed"
    assert [each.row.outcome for each in rounds] == ["synced"] * 4
    assert rounds[-1].row.metrics["accuracy"] > rounds[0].row.metrics["accuracy"] > 0.1
    assert names == set(federation.nodes)
    assert len(rows) == 4 * 3
    assert {row.link for row in rows} == {"session"}
    assert all(row.control_bytes > 0 for row in rows)
    for device in {row.device for row in rows}:
        assert sum(row.down_bytes for row in rows if row.device == device) > MODEL_BYTES
    assert sum(row.up_bytes for row in rows) > 4 * MODEL_BYTES
    assert list((tmp_path / "trained").glob("model-*.fedgc"))


def test_a_killed_device_is_lost_and_counted_again_when_it_is_back(federation, settings) -> None:
    run = federation.submit(settings | {"rounds": 10_000, "run": "killed", "evaluate-every": 0})
    log = lambda: federation.run_log(run)  # noqa: E731
    federation.eventually(lambda: rounds_of(log()))
    killed = federation.kill("device-1")
    assert len(killed) >= 3, "a SuperNode, its SuperExec, its ClientApp"
    assert not any(map(alive, killed))
    seen = len(rounds_of(log()))
    federation.eventually(lambda: len(rounds_of(log())) > seen + 3)
    federation.eventually(lambda: "devices=2" in log())
    federation.restart("device-1")
    after = len(log())
    federation.eventually(lambda: "devices=3" in log()[after:])
    with Store.open(str(federation.folder.parent / "fedgc.db"), reads_only=True) as store:
        devices = Counter(device.name for device in store.devices())
        (back,) = [device.device for device in store.devices() if device.name == "device-1"]
        failures = [row.failure for _, row in store.device_history("killed", back)]
    assert devices["device-1"] == 1, "it came back under its old identity"
    assert "lost" in failures
    assert failures[-1] == ""
    federation.stop(run)
    federation.eventually(lambda: not any(clients(federation, name) for name in federation.nodes))
    for name in federation.nodes:
        last = federation.log(name).read_text().rpartition("session of ")[2]
        assert "ended: the run was stopped" in last, "it was told, and did not wait for the grace time"
    assert federation.status(run) == "finished:stopped"
    with Store.open(str(federation.folder.parent / "fedgc.db"), reads_only=True) as store:
        assert store.run("killed").state == "stopped"


@pytest.mark.slow
def test_a_lease_is_renewed_between_rounds_and_the_run_goes_on(federation, settings) -> None:
    run = federation.submit(settings | {"rounds": 10_000, "lease-s": 10.0, "evaluate-every": 0})
    over = "a session ended: the lease is over"
    federation.eventually(lambda: federation.run_log(run).count(over) >= 3)
    after = len(federation.run_log(run))
    federation.eventually(lambda: "devices=3" in federation.run_log(run)[after:])
    seen = re.findall(r"round (\d+) (\w+) version=(\d+)", federation.run_log(run))
    assert [int(number) for number, _, _ in seen] == list(range(1, len(seen) + 1))
    # All three may be away at once with so short a lease: such a round is empty, and changes no model.
    assert {outcome for _, outcome, _ in seen} <= {"synced", "empty"}
    synced = [outcome == "synced" for _, outcome, _ in seen]
    assert [int(version) for _, _, version in seen] == [sum(synced[:n]) for n in range(len(seen))]
    federation.stop(run)
    federation.eventually(lambda: not any(clients(federation, name) for name in federation.nodes))


def test_a_bad_setting_is_one_line_and_a_failed_run(federation, settings) -> None:
    run = federation.submit(settings | {"batch-size": 0})
    assert federation.wait(run, 60) == "finished:failed"
    log = federation.run_log(run)
    assert "BadSetting: setting batch_size: saw 0, needed at least 1" in log
    assert "Traceback" not in log


def test_a_setting_that_flower_does_not_know_is_refused_before_the_run(federation, settings) -> None:
    run = federation.submit(settings | {"round": 3})
    assert federation.wait(run, 60) == "finished:failed"
    assert "unknown setting 'round'; did you mean rounds?" in federation.run_log(run)


def test_no_process_outlives_a_starter_that_was_killed(federation, tmp_path: Path) -> None:
    script = (
        "import time\n"
        "from pathlib import Path\n"
        "from fedgc.flower.local import LocalFederation\n"
        f"with LocalFederation(1, folder=Path({str(tmp_path)!r})) as federation:\n"
        "    trees = lambda: [federation.pids(name) for name in ('superlink', 'device-0')]\n"
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
    federation.eventually(lambda: not any(map(alive, pids)))
