"""The simulation of pfl-research: `pfl.py CLIENTS ROUNDS`, under torchrun with one process for each core."""

import json
import sys
import time

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import get_framework_module, set_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.femnist_like import BATCH, RATE, loss, network, samples

NEVER = 1_000_000  # rounds between evaluations; there is one before the first round, which is not timed
EVALUATED = 8  # clients


class Network(nn.Module):
    """The network with the functions that pfl-research calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
        """Return the mean loss of a batch."""
        self.train(not eval)
        return loss(self.layers, (inputs, targets))

    def metrics(self, inputs: Tensor, targets: Tensor, eval: bool = True) -> dict[str, Weighted]:
        """Return the loss over samples."""
        return {"loss": Weighted(self.loss(inputs, targets, eval).item() * len(targets), len(targets))}


class Moments(TrainingProcessCallback):  # type: ignore[misc]  # pfl is not here when types are checked
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.seen = [time.monotonic()]

    def after_central_iteration(
        self,
        aggregate_metrics: Metrics,  # noqa: ARG002  pfl gives all of them by name
        model: PyTorchModel,  # noqa: ARG002
        *,
        central_iteration: int,  # noqa: ARG002
    ) -> tuple[bool, Metrics]:
        """Note the time."""
        self.seen.append(time.monotonic())
        return False, Metrics()


def main(clients: int, rounds: int) -> None:
    """Train, and print the moments."""
    torch.manual_seed(0)
    ids = list(range(clients))
    data = FederatedDataset(
        lambda client: PyTorchTensorDataset(samples(client)), get_user_sampler("minimize_reuse", ids)
    )
    module = Network()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    params = NNAlgorithmParams(rounds, NEVER, clients, EVALUATED)
    steps = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH)
    moments = Moments()
    backend = SimulatedBackend(training_data=data, val_data=data)
    FederatedAveraging().run(params, backend, model, steps, callbacks=[moments])
    if get_framework_module().distributed.global_rank == 0:
        sys.stdout.write(json.dumps({"moments": moments.seen}) + "\n")


if __name__ == "__main__":
    set_framework_module(pytorch_ops)
    main(int(sys.argv[1]), int(sys.argv[2]))
