"""Test the example of LoRA: the loss falls, only the adapter travels, and PEFT reads what is exported."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.deploy.local_federation import Node
from fedgc.messages import Layout
from fedgc.store import checkpoint
from tests.contract.conftest import GATHER_S, WAIT_S, Federation

pytestmark = [pytest.mark.contract, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "examples" / "lora" / "train.py"
CLIENTS, ROUNDS, BASE_STEPS = 2, 3, 20
RANK, WIDTH, INNER, LAYERS = 4, 96, 192, 2
ADAPTER = RANK * LAYERS * (4 * (WIDTH + WIDTH) + 3 * (WIDTH + INNER))  # q, k, v, o; gate, up, down
FLOAT_BYTES = 4
RELOAD = f"""
import sys, torch, train
from peft import PeftModel

torch.set_num_threads(1)
model = PeftModel.from_pretrained(train.base_model("", {BASE_STEPS}), sys.argv[1])
parts = [train.data_of(client) for client in range({CLIENTS})]
losses = [train.held_out_loss(model, held_out) for _, held_out in parts]
samples = [len(training) for training, _ in parts]
print(sum(loss * each for loss, each in zip(losses, samples)) / sum(samples))
"""


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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_lora_example_learns_and_sends_only_adapter(federation: Federation, device: str):
    name = f"lora-{device}"
    run = federation.submit(
        {
            "run": name,
            "script": f"{SCRIPT} --base-steps {BASE_STEPS} --device {device}",
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
    with federation.store() as store:
        losses = [each.row.metrics["loss"] for each in store.rounds(name)]
    assert losses[-1] < losses[0] - 0.01
    with federation.store() as store:
        rows = [row for number in range(1, ROUNDS + 1) for row in store.client_rows(name, number)]
    assert len(rows) == CLIENTS * ROUNDS
    vectors = CLIENTS * ROUNDS + 1  # the updates, and the first model
    assert sum(row.up_bytes for row in rows) == pytest.approx(vectors * FLOAT_BYTES * ADAPTER, rel=0.01)
    layout = Layout.read(checkpoint.load(federation.state / "fedgc" / "runs" / name).layout)
    assert layout.size == ADAPTER
    assert all(".lora_" in each.name for each in layout.tensors)
    assert exported_loss(federation, name) == pytest.approx(losses[-1], abs=1e-4)


def test_clients_with_adapters_of_different_ranks_learn(federation: Federation, tmp_path: Path):
    script = tmp_path / "by_client.py"
    script.write_text(
        "import runpy, sys, fedgc\n"
        f"rank = dict(zip(('client-0', 'client-1'), ('{RANK}', '2')))[fedgc.client_settings()['name']]\n"
        f"sys.argv = [{str(SCRIPT)!r}, '--base-steps', '{BASE_STEPS}', '--rank', rank]\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    run = federation.submit(
        {
            "run": "mixed",
            "script": str(script),
            "rounds": ROUNDS,
            "local_steps": 8,
            "lockstep": "on",
            "quorum": 1.0,
            "min_clients": CLIENTS,
            "gate": "every",
            "aggregator": "lora-mixed-ranks",
            "aggregator_options": f"rank={RANK}",
            "start_timeout_s": GATHER_S,
        }
    )
    assert federation.wait(run, WAIT_S) == "finished:completed", federation.run_log(run)
    with federation.store() as store:
        losses = [each.row.metrics["loss"] for each in store.rounds("mixed")]
        assert all(len(store.client_rows("mixed", number)) == CLIENTS for number in range(1, ROUNDS + 1))
    assert losses[-1] < losses[0] - 0.01
    layout = Layout.read(checkpoint.load(federation.state / "fedgc" / "runs" / "mixed").layout)
    assert layout.size == ADAPTER
    assert exported_loss(federation, "mixed") < losses[0]


def exported_loss(federation: Federation, run: str) -> float:
    """The mean loss on the clients' held-out data, of the base with the adapter that PEFT reads."""
    environment = {
        **os.environ,
        "FEDGC_DB": str(federation.database),
        "XDG_STATE_HOME": str(federation.state),
        "PYTHONPATH": os.pathsep.join((str(SCRIPT.parent), str(SCRIPT.parents[2]))),
    }
    folder = str(federation.folder.parent / "adapter")
    export = ("-m", "fedgc.cli", "model", "export", "--format", "peft", "--run", run, folder)
    for words in (export, ("-c", RELOAD, folder)):
        done = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=WAIT_S
        )
        assert done.returncode == 0, done.stderr
    return float(done.stdout)
