"""The ServerApp."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.training import accuracy, network

app = ServerApp()


def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
    """Score a model."""
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    found = accuracy(model)
    print(f"accuracy {found:.3f}", flush=True)
    return MetricRecord({"accuracy": found})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    rounds = context.run_config["num-server-rounds"]
    arrays = ArrayRecord(network().state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, evaluate_fn=evaluate)
