"""Flower messages alone, beside sessions and after a server that died: on real processes."""

import os
import signal
import socket
from pathlib import Path

import pytest

from fedgc.store.database import Store
from tests.contract.relay import Relay, owner

pytestmark = pytest.mark.contract


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def opened(federation) -> Store:
    return Store.open(str(federation.folder.parent / "fedgc.db"), reads_only=True)


def names(federation) -> dict[str, str]:
    with opened(federation) as store:
        return {each.device: each.name for each in store.devices()}


def test_a_device_whose_session_cannot_connect_does_its_share_over_messages(federation, settings) -> None:
    """Every chunk lies with one device, so no round is whole without the one that is turned away."""
    listener = free_address()
    relay = Relay(listener)
    relay.lets_in = lambda flow: owner(flow.port, federation.pids("device-2")) is None
    settings |= {"rounds": 2, "run": "two-links", "replicas": 1, "deadline-s": 100.0, "connect-s": 2.0}
    try:
        run = federation.submit(settings | {"bind": listener, "advertise": relay.address})
        assert federation.wait(run, 150) == "finished:completed", federation.run_log(run)
    finally:
        relay.close()
    assert relay.turned_away
    with opened(federation) as store:
        rounds = [each.row for each in store.rounds("two-links")]
        rows = [row for number in (1, 2) for row in store.device_rows("two-links", number)]
        links = {device.name: device.link for device in store.devices()}
    assert [row.outcome for row in rounds] == ["synced", "synced"]
    assert links == {"device-0": "session", "device-1": "session", "device-2": "messages"}
    called = names(federation)
    for row in rows:
        assert row.link == links[called[row.device]]
        assert row.counted == row.finished > 0
        assert row.up_bytes > 0
    log = federation.run_log(run)
    assert "goes on over Flower messages alone" in log
    assert log.count("joins over the session link") == 2
    assert log.count("joins over the messages link") == 1


@pytest.mark.slow
def test_work_finished_before_the_server_died_counts_after_the_resume(
    federation, settings, tmp_path: Path
) -> None:
    settings |= {"rounds": 2, "run": "died", "task": "tests.contract.slow:task", "learning-rate": 1e-4}
    settings |= {"checkpoint-dir": str(tmp_path), "chunks": 12, "deadline-s": 100.0}
    shelves = federation.folder.parent / "state" / "fedgc" / "shelf"
    before = set(shelves.glob("*/*/chunk-*.pt"))
    run = federation.submit(settings)
    federation.eventually(lambda: "round 1 synced" in federation.run_log(run))
    federation.eventually(lambda: not newer(shelves, before))  # the first round's work goes with its end
    federation.eventually(lambda: list(tmp_path.glob("*/model-*.fedgc")))
    federation.eventually(lambda: len(newer(shelves, before)) >= 6)
    for pid in federation.pids("superlink"):
        if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    resumed = federation.submit(settings | {"resume": settings["run"]})
    assert federation.wait(resumed, 120) == "finished:completed", federation.run_log(resumed)
    with opened(federation) as store:
        rounds = [each.row for each in store.rounds(settings["run"])]
        rows = store.device_rows(settings["run"], 2)
    assert [(row.round, row.outcome) for row in rounds] == [(1, "synced"), (2, "synced")]
    # Nobody can be busy for longer than a round lasts, but with what was done before it began.
    assert max(row.busy_s for row in rows) > rounds[1].working_s


def newer(shelves: Path, before: set[Path]) -> set[Path]:
    return set(shelves.glob("*/*/chunk-*.pt")) - before
