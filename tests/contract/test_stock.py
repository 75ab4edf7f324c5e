"""Test unchanged Flower clients under Flower's FedAvg and under FedGC on one federation."""

from pathlib import Path

import numpy as np
import pytest

from fedgc.deploy.local_federation import Wiring
from tests.contract.conftest import WAIT_S, Federation, eventually

pytestmark = pytest.mark.contract

CLIENT = '''
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def data(context):
    """Each client has its own data, and not as much of it as the others."""
    shard = int(context.node_config["name"][-1])
    rng = np.random.default_rng(shard)
    inputs = rng.standard_normal((20 + 10 * shard, 3))
    return inputs, inputs @ np.array([1.0, -2.0, 3.0]) + shard


@app.train()
def train(msg: Message, context: Context):
    weights, bias = msg.content["arrays"].to_numpy_ndarrays()
    inputs, targets = data(context)
    for _ in range(5):
        error = inputs @ weights + bias - targets
        weights = weights - msg.content["config"]["lr"] * inputs.T @ error / len(error)
        bias = bias - msg.content["config"]["lr"] * error.mean()
    metrics = MetricRecord({"train_loss": float((error**2).mean()), "num-examples": len(error)})
    return Message(RecordDict({"arrays": ArrayRecord([weights, bias]), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    weights, bias = msg.content["arrays"].to_numpy_ndarrays()
    inputs, targets = data(context)
    loss = float(((inputs @ weights + bias - targets) ** 2).mean())
    metrics = MetricRecord({"eval_loss": loss, "num-examples": len(targets)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
'''

SERVER = """
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
{imports}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord([np.zeros(3), np.zeros(1)])
    strategy = {strategy}
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({{"lr": 0.1}}),
        num_rounds=1,
        evaluate_fn=lambda number, arrays: MetricRecord(
            {{"total": float(sum(each.sum() for each in arrays.to_numpy_ndarrays()))}}
        ),
    )
    out = Path(context.run_config["history.checkpoint-dir"]) / "{name}.npz"
    totals = [result.evaluate_metrics_serverapp[number]["total"] for number in (0, 1)]
    np.savez(out, *result.arrays.to_numpy_ndarrays(), np.array(totals))
"""

FEDAVG = SERVER.format(
    imports="from flwr.serverapp.strategy import FedAvg",
    strategy="FedAvg(fraction_evaluate=0.0, min_train_nodes=4, min_available_nodes=4)",
    name="fedavg",
)
FEDGC = SERVER.format(
    imports="from fedgc import FedGC, RunConfig",
    strategy="FedGC(config=RunConfig.read(context.run_config))",
    name="fedgc",
)


def arrays(path: Path) -> list[np.ndarray]:
    with np.load(path) as saved:
        return [saved[name] for name in saved.files]


def online(federation: Federation) -> set[str]:
    """The nodes that Flower lists as online; a killed one stays listed for a while."""
    nodes = federation.superlink.ask("supernode", "list")["nodes"]
    return {str(node["node-id"]) for node in nodes if node["status"] == "online"}


def living(federation: Federation) -> set[str]:
    """The nodes whose processes run."""
    return {each for name in federation.nodes for each in federation.node_ids(name)[-1:]}


def test_stock_client_rounds_match_fedavg(federation, tmp_path: Path) -> None:
    eventually(lambda: len(federation.nodes) == len(living(federation)))
    eventually(lambda: online(federation) == living(federation))
    settings = {"client_app": "stock", "evaluate_every": 1, "min_clients": 4}
    settings |= {"checkpoint_dir": str(tmp_path)}
    coming = [federation.submit(settings, Wiring(server, CLIENT)) for server in (FEDGC, FEDAVG)]
    for run in coming:  # a SuperNode takes the messages of both in turn
        assert federation.wait(run, WAIT_S) == "finished:completed", federation.run_log(run)
    for ours, theirs in zip(arrays(tmp_path / "fedgc.npz"), arrays(tmp_path / "fedavg.npz"), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        assert np.abs(theirs).max() > 0
    with federation.store() as store:
        recorded = [run for run in store.runs() if run.run.startswith("stock-")]
        assert [len(store.rounds(run.run)) for run in recorded] == [1]
    log = federation.run_log(coming[0])
    assert "round 1 synced version=0" in log
    assert "answers=4/4" in log
    assert "round 1 evaluated: eval_loss=" in log
