"""Flower's FedAvg over a real SuperLink and SuperNodes, in the shape of Flower's quickstart.

A round begins when all SuperNodes are connected. A SuperNode is in a slot; the number of its process is in
the slot's file, which the benchmark writes, and is part of the name of the file of its counts.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.killed.work import EVERY, RATE, Counts, loss, network, paced

client_app = ClientApp()
server_app = ServerApp()
MANY = 1_000_000  # rounds


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the steps of a round."""
    torch.set_num_threads(1)
    slot = Path(str(context.node_config["slot"]))
    who = f"{slot.name}-{slot.read_text()}"
    counts, model = Counts(slot.parent / who), network()
    # the content of a message may be of any kind
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in zip(range(EVERY), paced(), strict=False):
        counts.begin()
        optimizer.zero_grad()
        # torch has no types for `backward`
        loss(model).backward()
        optimizer.step()
    content = RecordDict()
    content["arrays"] = ArrayRecord(model.state_dict())
    content["metrics"] = MetricRecord({"num-examples": EVERY})
    content["who"] = ConfigRecord({"counts": who})
    return Message(content, reply_to=message)


class _Counting(FedAvg):
    """FedAvg that counts the steps of the replies that it aggregates."""

    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
        self._folder = folder

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate as FedAvg does; count the replies that came without an error."""
        heard = list(replies)
        found = super().aggregate_train(server_round, heard)
        if found[0] is not None:
            for reply in heard:
                if reply.has_content():
                    Counts(self._folder / str(reply.content["who"]["counts"])).count(EVERY)
        return found


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run rounds until the process is ended."""
    config = context.run_config
    strategy = _Counting(Path(str(config["folder"])), int(config["nodes"]))
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=MANY,
        timeout=float(config["timeout-s"]),
    )
