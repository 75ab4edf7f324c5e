"""fedgc's simulated training: `fedgc.py CLIENTS ROUNDS PROCESSES SAMPLES WIDTH [DEVICE STACK]`.

All clients are alike and do one local epoch, and the round waits for all: the same work as the others'.
"""

import json
import sys
import time
from collections.abc import Sequence
from functools import partial

from benchmarks.femnist_like import BATCH, RATE, loss, network, samples
from fedgc.config import RunConfig
from fedgc.sim.clock import working
from fedgc.sim.training import Job, Point, train
from fedgc.training.tasks import Task


def task(clients: int, count: int, width: int) -> Task:
    """Return the task, with a chunk for each client."""
    chunks = {f"chunk {at}": count for at in range(clients)}
    return Task(partial(network, width), chunks, partial(_load, count), loss)


def _load(count: int, chunk: str) -> object:
    return samples(int(chunk.split()[1]), count)


def main(numbers: Sequence[int], device: str, stack: int) -> None:
    """Train, and print the moments."""
    clients, rounds, processes, count, width = numbers
    config = RunConfig(
        rounds=rounds,
        local_steps=max(1, count // BATCH),
        batch_size=BATCH,
        learning_rate=RATE,
        min_clients=clients,
        gate="every",
        quorum=1.0,
        lockstep="on",
        shared_momentum="off",
        aggregator="weighted-mean",
        evaluate_every=0,
        device=device,
        threads=1 if stack == 1 else 0,
    )
    make = partial(task, clients, count, width)
    scenario = (working([[1.0]] * clients),) * rounds
    moments = [time.monotonic()]

    def heard(point: Point) -> None:
        if point.row.outcome != "synced" or sum(each.counted > 0 for each in point.row.clients) < clients:
            raise SystemExit(f"round {point.row.round}: saw {point.row.outcome}, needed all clients")
        moments.append(time.monotonic())

    job = Job(
        make(), config, scenario, make=make, workers=processes, stack=stack, owned=True, keeps_clients=False
    )
    train(job, heard)
    sys.stdout.write(json.dumps({"moments": moments}) + "\n")


if __name__ == "__main__":
    others = sys.argv[6:] or ("cpu", "1")
    main([int(each) for each in sys.argv[1:6]], others[0], int(others[1]))
