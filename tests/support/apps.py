"""ClientApps."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

Work = Callable[[Message, Context], object]


def echo_app(work: Work = lambda message, context: None) -> ClientApp:
    """Make an app that trains by doing something and then adding 1 to its model.

    What the work returns, if it does, is the answer.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        answer = work(message, context)
        if answer is not None:
            return answer  # type: ignore[return-value]
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        new = ArrayRecord({key: Array(array.numpy() + 1) for key, array in arrays.items()})
        arrays.clear()  # a client may do with its records what it likes
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": new, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app
