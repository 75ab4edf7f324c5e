"""The ClientApp."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.training import CLIENTS, digits, network, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train the received model on this client's data."""
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = digits(int(str(context.node_config["name"])[-1]) % CLIENTS)
    epochs, rate = context.run_config["local-epochs"], context.run_config["learning-rate"]
    loss = train(model, data, epochs, rate)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data)})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
