"""The training script that the benchmark of own loops runs: a plain loop, with or without a federation.

python -m benchmarks.loop_script steps --size 10000000   # what a call of `step` costs
torchrun --nproc-per-node 2 loop_script.py sum            # data-parallel training of a small model
"""

import argparse
import json
import time

import torch
from torch import distributed as dist
from torch import nn

import fedgc

BATCH = 32  # of all processes together
STEPS = 8


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("steps", "wait", "sum"))
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--out", default="")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    {"steps": steps, "wait": wait, "sum": data_parallel}[given.what](given)


def steps(given: argparse.Namespace) -> None:
    """Write the seconds of each call of `step`, between two calls that did not wait."""
    model = nn.ParameterList([torch.zeros(given.size, device=given.device)])
    fed = fedgc.join(model, samples=1)
    fed.step()
    times = []
    for _ in range(given.count):
        began = time.perf_counter()
        fed.step()
        times.append(time.perf_counter() - began)
    with open(given.out, "w") as out:  # noqa: PTH123
        json.dump(times, out)
    while fed.step():
        time.sleep(0.01)


def wait(given: argparse.Namespace) -> None:
    """Train steps that take their time and leave the model as it is."""
    model = nn.ParameterList([torch.ones(given.size, device=given.device)])
    fed = fedgc.join(model, samples=1)
    while fed.step():
        time.sleep(given.step_s)


def data_parallel(given: argparse.Namespace) -> None:
    """Train the same batches in one process or in two."""
    ranks, rank = 1, 0
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 5))
    if given.size != 1:
        dist.init_process_group("gloo")
        ranks, rank = dist.get_world_size(), dist.get_rank()
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fed = fedgc.join(model, samples=BATCH * STEPS)
    inputs = torch.randn(BATCH * STEPS, 20, generator=torch.Generator().manual_seed(1))
    targets = inputs[:, :5].sin()
    step = 0
    while fed.step():
        rows = torch.arange(step % STEPS * BATCH, (step % STEPS + 1) * BATCH)[rank::ranks]
        # torch has no types for `backward`
        nn.functional.mse_loss(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1


if __name__ == "__main__":
    main()
