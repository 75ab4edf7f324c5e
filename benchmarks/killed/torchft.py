"""torchft's LocalSGD: `torchft.py FOLDER` starts a lighthouse, and a replica for each line that it reads.

It answers with the replica's process id and the file of its counts. All replicas end when its input ends. A
replica is one process with gloo. The settings are the best of a grid: a quorum before or during the exchange,
0.2 to 5 s for others to join it, 0.5 to 5 s without a heartbeat.
"""

import json
import logging
import sys
import time
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch

# torch has it in a compiled module, whose types do not export it
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # untyped re-export
from torchft.coordination import LighthouseServer
from torchft.local_sgd import LocalSGD
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

from benchmarks.killed.work import EVERY, RATE, Counts, loss, network, paced

HOST: Final = "127.0.0.1"
JOIN_MS: Final = 5000  # longer than the time between two exchanges
HEARTBEAT_MS: Final = 500
TICK_MS: Final = 50
LIMIT: Final = timedelta(seconds=10)
FOREVER_S: Final = 1e6


def lighthouse(address: Connection) -> None:
    """Serve the lighthouse, and tell its address."""
    server = LighthouseServer(
        bind=f"{HOST}:0",
        min_replicas=1,
        join_timeout_ms=JOIN_MS,
        quorum_tick_ms=TICK_MS,
        heartbeat_timeout_ms=HEARTBEAT_MS,
    )
    address.send(server.address())
    time.sleep(FOREVER_S)


def replica(number: int, lighthouse_at: str, path: Path) -> None:
    """Train until the process is ended."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    counts, model, pending = Counts(path), network(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(loaded: dict[str, Any]) -> None:
        nonlocal pending
        pending = 0  # the model of another replica replaces these steps
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])

    manager = Manager(
        ProcessGroupGloo(timeout=LIMIT),
        load,
        state,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=LIMIT,
        rank=0,
        world_size=1,
        store_addr=HOST,
        store_port=store.port,
        lighthouse_addr=lighthouse_at,
        replica_id=f"replica{number}",
        hostname=HOST,
        init_sync=False,
    )
    with LocalSGD(manager, model, optimizer, EVERY):
        for _ in paced():
            counts.begin()
            pending, committed = pending + 1, manager.current_step()
            optimizer.zero_grad()
            # torch has no types for `backward`
            loss(model).backward()
            optimizer.step()  # and exchange, after each `EVERY` steps
            if manager.current_step() > committed:
                counts.count(pending)
                pending = 0


def main(folder: Path) -> None:
    """Start what the lines ask for."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__ if __name__ != "__main__" else "benchmarks.killed.torchft"])
    here, there = context.Pipe(duplex=False)
    context.Process(target=lighthouse, args=(there,), daemon=True).start()
    address = here.recv()
    for number, _ in enumerate(sys.stdin):
        path = folder / f"replica-{number}"
        process = context.Process(target=replica, args=(number, address, path), daemon=True)
        process.start()
        sys.stdout.write(json.dumps({"pid": process.pid, "counts": str(path)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
