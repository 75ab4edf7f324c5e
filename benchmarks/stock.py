"""The baselines of the link benchmark: Flower's own FedAvg, and a plain TLS stream.

The Flower app follows Flower's quickstart and runs on the same SuperLink; its clients do the same local step
on the same model. The plain stream moves the same bytes with the same TLS, in the same pieces, between as
many processes. Neither uses fedgc, except for the stream's certificate and the app's model.
"""

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from fedgc.deploy.flower_version import supported
from fedgc.deploy.local_federation import LocalFederation
from fedgc.errors import EdgeFailed
from fedgc.links.session.certificate import SERVER_NAME, client_context, make_certificate, server_context
from fedgc.sim.owned import end_with_the_parent

PIECE: Final = 2**20  # as a session's by default
WAIT_S: Final = 60.0

MODELS: Final = '''"""Models of three sizes whose local step costs little, and one whose steps are busy."""

import torch
from torch import nn

from fedgc.training.tasks import Task

SAMPLES = 4


class Weights(nn.Module):
    def __init__(self, numbers):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(numbers))


def loss(module, batch):
    return (module.weights[:1000] - batch[0].mean()).square().mean()


def busy_loss(module, batch):
    heat = torch.ones(300, 300)
    for _ in range(5):
        heat = (heat @ heat) / 300
    return loss(module, batch) + 0 * heat.sum()


def task(numbers, loss):
    return lambda config: Task(
        model=lambda: Weights(numbers),
        chunks={f"chunk-{n}": SAMPLES for n in range(config.chunks)},
        load=lambda name: (torch.ones(SAMPLES),),
        loss=loss,
        may_move=True,
    )


NUMBERS = {"tiny": 1_000, "mb10": 2_500_000, "mb100": 25_000_000}
tiny, mb10, mb100 = (task(numbers, loss) for numbers in NUMBERS.values())
busy = task(NUMBERS["tiny"], busy_loss)
'''

PROJECT: Final = """[project]
name = "quickstart"
version = "1.0.0"
dependencies = ["{flower}"]

[tool.flwr.app]
publisher = "quickstart"

[tool.flwr.app.components]
serverapp = "quickstart.server_app:app"
clientapp = "quickstart.client_app:app"

[tool.flwr.app.config]
size = "{size}"
rounds = {rounds}
clients = {clients}
out = "{out}"
"""
# FLOWER is replaced by its package name: only the generated app imports it, not this module.
CLIENT: Final = """import time

import torch
from bench_models import NUMBERS, SAMPLES, Weights, loss
from FLOWER.app import ArrayRecord, Message, MetricRecord, RecordDict
from FLOWER.clientapp import ClientApp

torch.set_num_threads(1)
app = ClientApp()


@app.train()
def train(message, context):
    model = Weights(NUMBERS[context.run_config["size"]])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    began = time.monotonic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss(model, (torch.ones(SAMPLES),)).backward()
    optimizer.step()
    metrics = {"num-examples": SAMPLES, "work_s": time.monotonic() - began}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)
""".replace("FLOWER", "flwr")
SERVER: Final = """import json
import time
from pathlib import Path

from bench_models import NUMBERS, Weights
from FLOWER.app import ArrayRecord, MetricRecord
from FLOWER.serverapp import ServerApp
from FLOWER.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    config, times, work_s = context.run_config, [], []

    def evaluate(server_round, arrays):
        times.append(time.monotonic())

    def slowest(records, weighted_by):
        work_s.append(max(record["metrics"]["work_s"] for record in records))
        return MetricRecord({})

    clients = config["clients"]
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_train_nodes=clients,
        min_available_nodes=clients,
        train_metrics_aggr_fn=slowest,
    )
    arrays = ArrayRecord(Weights(NUMBERS[config["size"]]).state_dict())
    strategy.start(grid, arrays, num_rounds=config["rounds"], evaluate_fn=evaluate)
    Path(config["out"]).write_text(json.dumps({"times": times, "work_s": work_s}))
""".replace("FLOWER", "flwr")


# ---- Flower's FedAvg


@dataclass(frozen=True, slots=True)
class Quickstart:
    """The duration and the model of a run of Flower's own strategy."""

    size: str
    rounds: int
    clients: int


@dataclass(frozen=True, slots=True)
class FlowerApp:
    """The code of a Flower app's two sides; it records the ends of rounds and their work."""

    what: str
    client: str
    server: str


FEDAVG: Final = FlowerApp("FedAvg", CLIENT, SERVER)


def fedavg_overheads_s(
    federation: LocalFederation, folder: Path, run: Quickstart, timeout_s: float
) -> list[float]:
    """Run Flower's FedAvg in a federation; return each round's time beyond its slowest client's work."""
    return overheads_s(federation, folder, FEDAVG, run, timeout_s)


def overheads_s(
    federation: LocalFederation, folder: Path, flowers: FlowerApp, run: Quickstart, timeout_s: float
) -> list[float]:
    """Run such an app in a federation; return each round's time beyond its slowest client's work."""
    out, app, home = folder / "times.json", folder / "app", folder / "home"
    (app / "quickstart").mkdir(parents=True)
    (app / "quickstart" / "client_app.py").write_text(flowers.client)
    (app / "quickstart" / "server_app.py").write_text(flowers.server)
    (app / "quickstart" / "__init__.py").write_text("")
    settings = {"size": run.size, "rounds": run.rounds, "clients": run.clients, "out": out}
    (app / "pyproject.toml").write_text(PROJECT.format(flower=supported(), **settings))
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\naddress = "{federation.address}"\n'
        "insecure = true\n"
    )
    log = folder / "log"
    with log.open("wb") as said:
        ended = _flwr(["run", str(app), "bench", "--stream"], home, said, timeout_s)
    if not ended and (found := re.search(r"started run (\d+)", log.read_text(errors="replace"))):
        federation.stop(int(found.group(1)))  # frees the clients for the next part
    if not out.exists():
        last = " ".join(log.read_text(errors="replace")[-400:].split())
        raise EdgeFailed(f"Flower's {flowers.what} has ended no round; its log ends with: {last}")
    log = json.loads(out.read_text())
    ends = log["times"]
    return [end - began - work for began, end, work in zip(ends, ends[1:], log["work_s"], strict=False)]


def _flwr(arguments: list[str], home: Path, said: Any, timeout_s: float) -> bool:  # noqa: ANN401  a file
    """Run the command; return whether it ended in time."""
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    try:
        subprocess.run(  # noqa: S603  Flower's own program
            [str(Path(sys.executable).parent / "flwr"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        said.write(f"it was not over after {timeout_s:.0f} s".encode())
        return False
    return True


# ---- a plain stream


@dataclass(frozen=True, slots=True)
class _Stream:
    address: tuple[str, int]
    certificate: bytes
    down: int
    up: int


def plain_stream_s(down: int, up: int, clients: int, wait_s: float = WAIT_S) -> float:
    """Return how long as many processes take to receive `down` bytes and then send `up`, concurrently."""
    certificate = make_certificate(time.time())
    context = get_context("spawn")
    begin, address = context.Barrier(clients + 1), context.Queue()
    ends = context.Queue()
    server = context.Process(target=_serve, args=(certificate, address, down, clients), daemon=True)
    server.start()
    at = address.get(timeout=WAIT_S)
    arguments = (_Stream(at, certificate.public, down, up), begin, ends)
    processes = [context.Process(target=_move, args=arguments, daemon=True) for _ in range(clients)]
    for client in processes:
        client.start()
    try:
        begin.wait(WAIT_S)
        began = time.monotonic()
        return float(max(ends.get(timeout=wait_s) for _ in processes)) - began
    finally:
        for process in (*processes, server):
            process.kill()
            process.join()


def _serve(certificate: Any, address: Any, down: int, clients: int) -> None:  # noqa: ANN401  queues have no types
    end_with_the_parent()
    context = server_context(certificate)

    def move(plain: socket.socket) -> None:
        with context.wrap_socket(plain, server_side=True) as line:
            up = int.from_bytes(line.recv(8), "big")  # of one TLS record
            _send(line, down)
            _receive(line, up)
            line.sendall(b"!")

    with socket.create_server(("127.0.0.1", 0), backlog=clients) as listening:
        address.put(listening.getsockname())
        threads = [threading.Thread(target=move, args=(listening.accept()[0],)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    threading.Event().wait()


def _move(stream: _Stream, begin: Any, ends: Any) -> None:  # noqa: ANN401  the same: queues
    end_with_the_parent()
    plain = socket.create_connection(stream.address)
    with client_context(stream.certificate).wrap_socket(plain, server_hostname=SERVER_NAME) as line:
        begin.wait(WAIT_S)
        line.sendall(stream.up.to_bytes(8, "big"))
        _receive(line, stream.down)
        _send(line, stream.up)
        _receive(line, 1)
    ends.put(time.monotonic())


def _send(line: ssl.SSLSocket, size: int) -> None:
    piece = memoryview(bytes(PIECE))
    for start in range(0, size, PIECE):
        line.sendall(piece[: size - start])


def _receive(line: ssl.SSLSocket, size: int) -> None:
    buffer = bytearray(min(PIECE, size))
    while size:
        received = line.recv_into(buffer, min(len(buffer), size))
        if not received:
            raise EdgeFailed("the plain stream has ended early")
        size -= received
