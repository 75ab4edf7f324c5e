"""Flower's own FedAvg that waits for all, as a ServerApp and a ClientApp on a SuperLink and SuperNodes."""

from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from examples.hospitals.rivals.work import Hospital, Marks, network

client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the steps of a round."""
    config = context.node_config
    hospital = Hospital(Path(str(config["folder"])), int(config["site"]))
    state = message.content["arrays"].to_torch_state_dict()
    number = int(message.content["config"]["server-round"])
    content = RecordDict()
    content["arrays"] = ArrayRecord(dict(hospital.train(state, number)))
    content["metrics"] = MetricRecord({"num-examples": hospital.samples})
    return Message(content, reply_to=message)


class _Marked(FedAvg):
    """FedAvg that marks when its first round begins, once all sites are connected."""

    def __init__(self, marks: Marks, sites: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
        self._marks = marks

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a round."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if server_round == 1:
            self._marks.begin()
        return messages


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; `examples.hospitals.deployed` ends them at the target."""
    config = context.run_config
    folder = Path(str(config["folder"]))
    marks = Marks(folder)

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            marks.add(server_round, arrays.to_torch_state_dict())

    _Marked(marks, int(config["sites"])).start(
        grid=grid,
        initial_arrays=ArrayRecord(dict(network(folder).state_dict())),
        num_rounds=int(config["flower-rounds"]),
        evaluate_fn=evaluate,
    )
