"""Test the scripts of examples/trainer on real processes: each takes part, and learns as a task does."""

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import torch

from fedgc.deploy.local_federation import Node
from fedgc.store import checkpoint
from tests.contract.conftest import GATHER_S, WAIT_S, Federation

pytestmark = pytest.mark.contract

EXAMPLES = Path(__file__).parents[2] / "examples" / "trainer"
CLIENTS = 3
SETTINGS = {
    "rounds": 3, "local_steps": 4, "min_clients": CLIENTS, "start_timeout_s": GATHER_S, "threads": 1,
    "quorum": 1.0, "deadline_s": 150.0, "grace_s": 2.0,
}  # fmt: skip
LEARNED = SETTINGS | {
    "rounds": 30, "local_steps": 30, "shared_momentum": "off", "chunks": CLIENTS, "learning_rate": 0.2,
}  # fmt: skip
POINT = 0.01
SCRIPTS = {"plain": "plain.py", "huggingface": "huggingface.py", "lightning": "lightning.py"}
CELLS = (
    "import fedgc, torch\nfrom digits import digits, network\nfrom torch.utils.data import DataLoader",
    "model = network()\nfed = fedgc.join(model)\ntrained, _ = digits(fed.client)",
    """optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, labels in fed.steps(DataLoader(trained, 32, shuffle=True)):
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()""",
    "print('ended in round', fed.round)",
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("trainers")
    environment = {
        "FEDGC_DB": str(folder / "fedgc.db"),
        "XDG_STATE_HOME": str(folder / "state"),
        "PYTHONPATH": f"{EXAMPLES.parents[1]}:{EXAMPLES}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    nodes = [Node(f"client-{number}") for number in range(CLIENTS)]
    with Federation(nodes, folder=folder / "processes", environment=environment) as started:
        yield started


def finished(federation: Federation, settings: dict[str, object]) -> str:
    run = federation.submit(settings)
    assert federation.wait(run, WAIT_S) == "finished:completed", federation.run_log(run)
    return federation.run_log(run)


def took_part(federation: Federation, run: str) -> None:
    """Check that every client has done its steps in every round."""
    with federation.store() as store:
        rounds = [each.row for each in store.rounds(run)]
        clients = [row for each in rounds for row in store.client_rows(run, each.round)]
    assert [row.outcome for row in rounds] == ["synced"] * SETTINGS["rounds"]
    assert len(clients) == CLIENTS * SETTINGS["rounds"]
    assert all(row.counted >= SETTINGS["local_steps"] for row in clients)


@pytest.mark.parametrize("name", ["huggingface", pytest.param("lightning", marks=pytest.mark.slow)])
def test_script_with_trainer_takes_part_in_every_round(federation: Federation, name: str) -> None:
    finished(federation, SETTINGS | {"run": name, "script": str(EXAMPLES / SCRIPTS[name])})
    took_part(federation, name)


@pytest.mark.slow  # quick tests run a notebook as a script without a federation
def test_notebook_as_script_takes_part_in_every_round(federation: Federation, tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbformat.write(notebook, path)
    finished(federation, SETTINGS | {"run": "notebook", "script": str(path)})
    took_part(federation, "notebook")


@pytest.mark.slow  # four runs of thirty rounds: minutes
@pytest.mark.timeout(1800)
def test_script_with_any_trainer_learns_as_task_does(federation: Federation, tmp_path: Path) -> None:
    from examples.trainer.digits import accuracy, digits, network

    _, held_out = digits()
    reached = {}
    for name in (*SCRIPTS, "task"):
        trained = {"script": str(EXAMPLES / SCRIPTS[name])} if name in SCRIPTS else {"task": "task:task"}
        finished(federation, LEARNED | trained | {"run": f"learned-{name}", "checkpoint_dir": str(tmp_path)})
        newest = checkpoint.listed(tmp_path / f"learned-{name}")[-1]
        vector = checkpoint.load(newest.path.parent, newest.version).model
        model = network()
        torch.nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), model.parameters())
        reached[name] = accuracy(model, held_out)
    assert min(reached.values()) > 0.96
    assert max(reached.values()) - min(reached.values()) <= POINT, reached
