"""Test clients that are asked to leave on real processes: every finished step counts in that round."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedgc.deploy.local_federation import Node
from fedgc.history import ClientRow, RoundRow
from fedgc.messages import SUMMED
from tests.contract.conftest import GATHER_S, PACE_S, WAIT_S, Federation, alive, eventually
from tests.contract.stepping import FOLDER
from tests.contract.test_script import by_client, model_of

pytestmark = pytest.mark.contract

NAMES = ("client-0", "client-1", "client-2")
LEAVES = "client-1"
GRACE_S = 8.0
LONG_S = 240.0  # over messages: each starts a process, and the client is asked at once
STEPS = 100  # of a round: it is far from over when the client leaves
SETTINGS = {
    "min_clients": 3, "start_timeout_s": GATHER_S, "threads": 1,
    "rounds": 1000, "deadline_s": 600.0, "gate": "every", "gate_period": 20, "local_steps": STEPS,
}  # fmt: skip
LOCAL = {"work": "local", "quorum": 1.0, "lockstep": "on"}
TASK = {"task": "tests.contract.stepping:task"}
DEALT = TASK | {"placement": "scattered", "replicas": 1}


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steps")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, steps: Path) -> Iterator[Federation]:
    folder: Path = tmp_path_factory.mktemp("preempt")
    environment = {
        "FEDGC_DB": str(folder / "fedgc.db"), "XDG_STATE_HOME": str(folder / "state"), FOLDER: str(steps),
    }  # fmt: skip
    graces = {name: GRACE_S if name == LEAVES else LONG_S for name in NAMES}
    nodes = [Node(name, {"pace-s": PACE_S, "leave-grace-s": grace_s}) for name, grace_s in graces.items()]
    with Federation(nodes, folder=folder / "processes", environment=environment) as started:
        yield started


def done_by(steps: Path, pids: list[int]) -> int:
    """The steps that these processes have finished."""
    files = [steps / str(pid) for pid in pids]
    return sum(file.stat().st_size for file in files if file.exists())


def told(federation: Federation, run: str) -> list[tuple[RoundRow, dict[str, ClientRow]]]:
    """The rounds of a run, with the rows of its clients by name."""
    with federation.store() as store:
        if not any(each.run == run for each in store.runs()):
            return []
        names = {client.client: client.name for client in store.clients()}
        rows = [(each.row, store.client_rows(run, each.row.round)) for each in store.rounds(run)]
    return [(row, {names[each.client]: each for each in clients}) for row, clients in rows]


def preempted(federation: Federation, name: str) -> None:
    """Send SIGTERM to what fedgc has started for a client, and wait until all of it has ended."""
    pids = federation.pids(name)
    federation.leave(name)
    assert not any(map(alive, pids))


def exchanged(federation: Federation, run: str) -> tuple[RoundRow, dict[str, ClientRow]]:
    """The first round with an exchange."""
    rounds = told(federation, run)
    return next(each for each in rounds if each[0].outcome in SUMMED)


def in_mid_round(
    federation: Federation, steps: Path, run: str, least: int = 7, name: str = LEAVES
) -> list[int]:
    """Wait until the client that will leave has done some steps; return its processes."""
    eventually(lambda: done_by(steps, federation.clients(name)) >= least)
    assert not told(federation, run), "the first round is under way"
    return federation.clients(name)


def until_exchanged(federation: Federation, run: str, flower_run: int, name: str = LEAVES) -> None:
    """Wait for the first exchange; then end the run, and start the client again."""
    eventually(lambda: has_sum(federation, run))
    federation.stop(flower_run)
    federation.wait(flower_run, WAIT_S)
    federation.restart(name)


def has_sum(federation: Federation, run: str) -> bool:
    return any(row.outcome in SUMMED for row, _ in told(federation, run))


def test_preempt_local_task_counts_each_finished_step(three: Federation, steps: Path):
    run = three.submit(SETTINGS | LOCAL | DEALT | {"run": "local"})
    pids = in_mid_round(three, steps, "local")
    preempted(three, LEAVES)
    done = done_by(steps, pids)
    until_exchanged(three, "local", run)
    row, clients = exchanged(three, "local")
    assert row.round == 1
    assert clients[LEAVES].counted == clients[LEAVES].finished == done < STEPS
    assert all(each.counted for each in clients.values())
    assert row.reason == f"client {LEAVES} is leaving"
    assert not clients[LEAVES].failure


@pytest.mark.slow
def test_preempt_coded_chunks_count(three: Federation, steps: Path):
    """The client has finished a chunk and is at its second, which nobody else has to wait for."""
    more = TASK | {
        "work": "coded",
        "local_steps": 12,
        "replicas": 1,
        "blocks": 1,
        "gate_period": 20,
        "chunks": 6,
    }
    run = three.submit(SETTINGS | more | {"run": "coded"})
    in_mid_round(three, steps, "coded", least=16)
    preempted(three, LEAVES)
    until_exchanged(three, "coded", run)
    row, clients = exchanged(three, "coded")
    assert row.round == 1
    assert clients[LEAVES].finished == 1
    assert clients[LEAVES].steps == 12
    assert clients[LEAVES].counted == 1
    assert f"client {LEAVES} is leaving" in row.reason


PLAIN = {"aggregator": "weighted-mean"}  # the numbers tell what was counted


@pytest.mark.slow
def test_preempt_script_counts_each_finished_step(three: Federation, tmp_path: Path):
    """The script adds 10 in each step, and the two others 1: the model tells what was counted."""
    mark = tmp_path / "mark"
    words = {
        "client-0": "--add 1 --samples 30 --step-s 0.1",
        "client-1": f"--add 10 --samples 10 --step-s 0.1 --mark {mark} --mark-at 8",
        "client-2": "--add 1 --samples 20 --step-s 0.1",
    }
    more = {"script": by_client(tmp_path, words), "checkpoint_dir": str(tmp_path / "runs")}
    run = three.submit(
        SETTINGS | LOCAL | more | {"run": "script", "local_steps": 300, "rounds": 1000} | PLAIN
    )
    eventually(mark.exists)
    preempted(three, LEAVES)
    until_exchanged(three, "script", run)
    row, clients = exchanged(three, "script")
    assert row.round == 1
    assert 8 <= clients[LEAVES].counted == clients[LEAVES].finished < 300
    counted = {name: each.counted for name, each in clients.items()}
    expected = (30 * counted["client-0"] + 100 * counted["client-1"] + 20 * counted["client-2"]) / 60
    np.testing.assert_allclose(model_of(tmp_path, "script"), np.full(4, expected), rtol=1e-5)


@pytest.mark.slow  # Flower starts a process for each message
def test_preempt_over_messages_hands_in_by_next_message(three: Federation, steps: Path):
    """The client hears nothing between two messages: it answers the one at which it works at once."""
    deaf = "client-2"
    run = three.submit(SETTINGS | LOCAL | DEALT | {"run": "messages", "link": "messages"})
    pids = in_mid_round(three, steps, "messages", name=deaf)
    preempted(three, deaf)
    done = done_by(steps, pids)
    until_exchanged(three, "messages", run, name=deaf)
    row, clients = exchanged(three, "messages")
    assert row.round == 1
    assert clients[deaf].link == "messages"
    assert clients[deaf].counted == done < STEPS
    assert f"client {deaf} is leaving" in row.reason
