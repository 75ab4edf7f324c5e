"""Test the example of personal layers: a private head raises the accuracy on each client's own data."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.deploy.local_federation import Node
from tests.contract.conftest import GATHER_S, WAIT_S, Federation

pytestmark = [pytest.mark.contract, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "examples" / "personal" / "train.py"
VALIDATED = re.compile(r"validated by clients: accuracy=([0-9.e-]+)")


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder: Path = tmp_path_factory.mktemp("personal")
    environment = {"FEDGC_DB": str(folder / "fedgc.db"), "XDG_STATE_HOME": str(folder / "state")}
    nodes = [Node(f"client-{number}") for number in range(3)]
    with Federation(nodes, folder=folder / "processes", environment=environment) as started:
        yield started


def accuracy(federation: Federation, words: str) -> float:
    run = federation.submit(
        {
            "script": f"{SCRIPT} {words}".strip(),
            "rounds": 6,
            "local_steps": 16,
            "lockstep": "on",
            "quorum": 1.0,
            "min_clients": 3,
            "gate": "every",
            "start_timeout_s": GATHER_S,
        }
    )
    assert federation.wait(run, WAIT_S) == "finished:completed", federation.run_log(run)
    return float(VALIDATED.findall(federation.run_log(run))[-1])


def test_personal_head_script_scores_higher(hospitals: Federation):
    shared, private = accuracy(hospitals, ""), accuracy(hospitals, "--private head.*")
    assert shared < 0.5
    assert private > 0.85
