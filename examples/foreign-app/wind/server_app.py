"""The ServerApp: FedProx, with the turbines of each round chosen by how fast they answer."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedProx

from flower_scheduling import ScheduledStrategy
from wind.task import loss, measurements

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Measure the common power curve on a site that takes no part."""
    return MetricRecord({"loss": loss(arrays["weights"].numpy(), *measurements(site=10_000))})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    arrays = ArrayRecord({"weights": Array(np.zeros(4))})
    rounds = int(context.run_config["num-rounds"])

    fedprox = FedProx(proximal_mu=0.1)
    strategy = ScheduledStrategy(fedprox, policy="cs-ucb-q", num_selected=2, tau_max_s=60)
    result = strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)

    for server_round, metrics in result.evaluate_metrics_serverapp.items():
        print(f"round {server_round}: loss {metrics['loss']:.4f}")
