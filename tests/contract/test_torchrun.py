"""Test scripts of two ranks on real processes: torchrun, DDP, and a rank that is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.deploy.local_federation import Node
from tests.contract.conftest import GATHER_S, WAIT_S, Federation, command, eventually

pytestmark = [pytest.mark.contract, pytest.mark.timeout(900)]

TWO_RANKS = Path(__file__).parents[1] / "scripts" / "two_ranks.py"
ROUNDS = 6
SAMPLES = 64


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    environment = {"FEDGC_DB": str(folder / "fedgc.db"), "XDG_STATE_HOME": str(folder / "state")}
    nodes = [Node(name) for name in ("north", "south")]
    with Federation(nodes, folder=folder / "processes", environment=environment) as started:
        yield started


def test_run_completes_after_kill_of_rank(two: Federation, tmp_path: Path):
    once = tmp_path / "killed"
    fault = f"--fault kill --at north:1:12 --once {once}"
    settings = {
        "run": "ranks", "script": f"torchrun --nproc-per-node 2 {TWO_RANKS} --step-s 0.02 {fault}",
        "rounds": ROUNDS, "local_steps": 8, "lockstep": "on", "quorum": 1.0, "min_clients": 2,
        "start_timeout_s": GATHER_S, "gate": "every",
    }  # fmt: skip
    run = two.submit(settings)
    assert two.wait(run, WAIT_S) == "finished:completed", two.run_log(run)
    assert once.exists()
    with two.store() as store:
        rounds = [each.row for each in store.rounds("ranks")]
        clients = [store.client_rows("ranks", each.round) for each in rounds]
    assert len(rounds) == ROUNDS
    assert {each.known_samples for each in rounds} == {2 * SAMPLES}
    failures = [each.failure for row in clients for each in row if each.failure]
    assert "rank 1: Signal 9 (SIGKILL)" in failures[0]  # on a busy machine it may miss a round more
    assert all(each.finished for each in clients[-1]), two.run_log(run)
    eventually(lambda: not any("two_ranks" in command(pid) for name in two.nodes for pid in two.pids(name)))
