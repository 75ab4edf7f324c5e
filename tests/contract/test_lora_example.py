"""Test the example of LoRA: the loss falls, and nothing but the adapter travels."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.deploy.local_federation import Node
from fedgc.messages import Layout
from fedgc.store import checkpoint
from tests.contract.conftest import GATHER_S, WAIT_S, Federation

pytestmark = pytest.mark.contract

SCRIPT = Path(__file__).parents[2] / "examples" / "lora" / "train.py"
VALIDATED = re.compile(r"validated by clients: loss=([0-9.e-]+)")
CLIENTS, ROUNDS = 2, 3
RANK, WIDTH, INNER, LAYERS = 4, 96, 192, 2
ADAPTER = RANK * LAYERS * (4 * (WIDTH + WIDTH) + 3 * (WIDTH + INNER))  # q, k, v, o; gate, up, down
FLOAT_BYTES = 4


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder: Path = tmp_path_factory.mktemp("lora")
    environment = {
        "FEDGC_DB": str(folder / "fedgc.db"),
        "XDG_STATE_HOME": str(folder / "state"),
        "HF_HUB_OFFLINE": "1",
    }
    nodes = [Node(f"client-{number}") for number in range(CLIENTS)]
    with Federation(nodes, folder=folder / "processes", environment=environment) as started:
        yield started


def test_lora_example_learns_and_sends_only_adapter(federation: Federation):
    run = federation.submit(
        {
            "run": "lora",
            "script": f"{SCRIPT} --base-steps 20",
            "rounds": ROUNDS,
            "local_steps": 8,
            "lockstep": "on",
            "quorum": 1.0,
            "min_clients": CLIENTS,
            "gate": "every",
            "start_timeout_s": GATHER_S,
        }
    )
    assert federation.wait(run, WAIT_S) == "finished:completed", federation.run_log(run)
    losses = [float(each) for each in VALIDATED.findall(federation.run_log(run))]
    assert losses[-1] < losses[0] - 0.02
    with federation.store() as store:
        rows = [row for number in range(1, ROUNDS + 1) for row in store.client_rows("lora", number)]
    assert len(rows) == CLIENTS * ROUNDS
    vectors = CLIENTS * ROUNDS + 1  # the updates, and the first model
    assert sum(row.up_bytes for row in rows) == pytest.approx(vectors * FLOAT_BYTES * ADAPTER, rel=0.01)
    layout = Layout.read(checkpoint.load(federation.state / "fedgc" / "runs" / "lora").layout)
    assert layout.size == ADAPTER
    assert all(".lora_" in each.name for each in layout.tensors)
