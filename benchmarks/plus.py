"""Flower's own SecAgg+ as an app: its workflow on the server, its modifier in the clients.

Flower ships both for its older API only: the workflow needs a LegacyContext and a strategy of that API, and
the message API's `clientapp.mod` has no such modifier, so the app uses the older API. SuperLink, SuperNodes,
model and local step are the same as for the others, and threshold and weights the same as ours.
"""

from typing import Final

from benchmarks.stock import FlowerApp

CLIENT: Final = """import time

import torch
from bench_models import NUMBERS, SAMPLES, Weights, loss
from FLOWER.client import NumPyClient
from FLOWER.client.mod import secaggplus_mod
from FLOWER.clientapp import ClientApp

torch.set_num_threads(1)


class Site(NumPyClient):
    def __init__(self, size):
        self.model = Weights(NUMBERS[size])

    def fit(self, parameters, config):
        with torch.no_grad():
            self.model.weights.copy_(torch.from_numpy(parameters[0].copy()))
        began = time.monotonic()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        loss(self.model, (torch.ones(SAMPLES),)).backward()
        optimizer.step()
        work_s = time.monotonic() - began
        return [self.model.weights.detach().numpy()], SAMPLES, {"work_s": work_s}


def client_fn(context):
    return Site(context.run_config["size"]).to_client()


app = ClientApp(client_fn, mods=[secaggplus_mod])
""".replace("FLOWER", "flwr")
SERVER: Final = """import json
import time
from pathlib import Path

from bench_models import NUMBERS, SAMPLES, Weights
from FLOWER.common import ndarrays_to_parameters
from FLOWER.server import LegacyContext, ServerConfig
from FLOWER.server.strategy import FedAvg
from FLOWER.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from FLOWER.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    config, times, work_s = context.run_config, [], []

    def evaluate(server_round, parameters, settings):
        times.append(time.monotonic())
        if work_s:
            Path(config["out"]).write_text(json.dumps({"times": times, "work_s": work_s}))

    def slowest(results):
        work_s.append(max(metrics["work_s"] for _, metrics in results))
        return {}

    clients = config["clients"]
    start = [Weights(NUMBERS[config["size"]]).weights.detach().numpy()]
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        evaluate_fn=evaluate,
        fit_metrics_aggregation_fn=slowest,
        initial_parameters=ndarrays_to_parameters(start),
    )
    legacy = LegacyContext(context, ServerConfig(num_rounds=config["rounds"]), strategy)
    plus = SecAggPlusWorkflow(clients, max(3, 2 * clients // 3 + 1), max_weight=2.0 * SAMPLES)
    DefaultWorkflow(fit_workflow=plus)(grid, legacy)
""".replace("FLOWER", "flwr")

SECAGG_PLUS: Final = FlowerApp("SecAgg+", CLIENT, SERVER)
