"""The ClientApp of a turbine."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from wind.task import fit, loss, measurements

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Fit the power curve to this site's measurements."""
    features, power = measurements(int(context.node_config["partition-id"]))
    weights = fit(
        message.content["arrays"]["weights"].numpy(),
        features,
        power,
        epochs=int(context.run_config["local-epochs"]),
        learning_rate=float(context.run_config["learning-rate"]),
        proximal_mu=float(message.content["config"]["proximal-mu"]),
    )
    metrics = MetricRecord({"loss": loss(weights, features, power), "num-examples": len(power)})
    arrays = ArrayRecord({"weights": Array(weights)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the common power curve on this site."""
    features, power = measurements(int(context.node_config["partition-id"]))
    weights = message.content["arrays"]["weights"].numpy()
    metrics = MetricRecord({"loss": loss(weights, features, power), "num-examples": len(power)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
