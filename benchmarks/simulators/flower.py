"""Flower's simulation engine (Ray), in the shape of its quickstart: `flower.py CLIENTS ROUNDS CPUS`.

Each message builds a model, loads the arrays, trains one local epoch, and returns the arrays. CPUS are those
of a client; the quickstart for PyTorch gives it 2.
"""

import json
import sys
import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.femnist_like import BATCH, RATE, loss, network, samples

client_app = ClientApp()
server_app = ServerApp()
moments: list[float] = []


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one local epoch on the data of this client."""
    model = network()
    # the content of a message may be of any kind
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    data = samples(int(context.node_config["partition-id"]))
    loader = DataLoader(TensorDataset(*data), BATCH, shuffle=True)
    optimizer, total = torch.optim.SGD(model.parameters(), lr=RATE), 0.0
    model.train()
    for batch in loader:
        optimizer.zero_grad()
        value = loss(model, tuple(batch))
        # torch has no types for `backward`
        value.backward()
        optimizer.step()
        total += value.item()
    metrics = MetricRecord({"train_loss": total / len(loader), "num-examples": len(data[1])})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:  # noqa: ARG001  Flower gives both
    """Run the rounds, and note when each ends."""
    rounds = int(sys.argv[2])
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=int(sys.argv[1]))
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=rounds,
        evaluate_fn=lambda _number, _arrays: moments.append(time.monotonic()),
    )


if __name__ == "__main__":
    clients, cpus = int(sys.argv[1]), int(sys.argv[3])
    run_simulation(
        server_app,
        client_app,
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": cpus, "num_gpus": 0.0}},
    )
    sys.stdout.write(json.dumps({"moments": moments}) + "\n")
