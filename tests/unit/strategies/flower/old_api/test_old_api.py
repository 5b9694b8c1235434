"""Apps of Flower's old API, scheduled: server_fn, workflows, secure aggregation."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.server import ServerAppComponents
from flwr.server import LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedXgbBagging,
    Krum,
    Strategy,
)
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from scripted_grid import ScriptedGrid

from flower_scheduling import ScheduledServer, ScheduledStrategy, ScheduledWorkflow
from flower_scheduling._flwr import make_message
from flower_scheduling.errors import ConfigError, NoStepError
from flower_scheduling.strategies.flower import RoundRecord

Arrays = list[np.ndarray[Any, Any]]
Fit = Callable[[int, Arrays], tuple[Arrays, int, dict[str, Any]]]


def adds_one(number: int, weights: Arrays) -> tuple[Arrays, int, dict[str, Any]]:
    return [weight + 1 for weight in weights], 10 * (number + 1), {"train_loss": 0.5, "who": "me"}


class OldClient(NumPyClient):
    def __init__(self, number: int, fit: Fit) -> None:
        self._number, self._fit = number, fit

    def get_parameters(self, config: dict[str, Any]) -> Arrays:
        return [np.full(2, 7, np.float32)]

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        return self._fit(self._number, parameters)

    def evaluate(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        return float(parameters[0].sum()), 5, {"accuracy": 0.5}


class OldGrid(ScriptedGrid):
    """Clients of the old API, as Flower's own ``ClientApp`` runs them; Flower's calls, too."""

    def __init__(self, fits: Sequence[Fit], mods: Sequence[Any] = ()) -> None:
        super().__init__([], answers_query=False)
        states = {k: RecordDict() for k in range(len(fits))}

        def client(number: int, fit: Fit) -> Callable[[Message], Message]:
            app = ClientApp(client_fn=lambda _: OldClient(number, fit).to_client(), mods=list(mods))

            def answer(message: Message) -> Message:
                context = Context(1, 100 + number, {}, states[number], {})
                # Here no bytes lie between the two ends, and each may change what it has.
                copies = {name: record.copy() for name, record in message.content.items()}
                mine = make_message(message.metadata, RecordDict(copies))
                try:
                    return app(mine, context)
                except Exception as error:
                    return Message(Error(0, f"{type(error).__name__}: {error}"), reply_to=message)

            return answer

        self.clients = {100 + k: client(k, fit) for k, fit in enumerate(fits)}
        self.connected = set(self.clients)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return [self.clients[each.metadata.dst_node_id](each) for each in messages]


def initial(*arrays: Any) -> Parameters:
    return ndarrays_to_parameters([np.asarray(each, np.float32) for each in arrays])


def weighted(results: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    assert {metrics["who"] for _, metrics in results} == {"me"}, "texts are part of the old API"
    return {"seen": len(results), "loss": results[0][1]["train_loss"], "names": "text"}


def average(results: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    return {"accuracy": sum(n * m["accuracy"] for n, m in results) / sum(n for n, _ in results)}


def settings(records: list[RoundRecord], **more: Any) -> dict[str, Any]:
    return {
        "policy": "round-robin",
        "num_selected": 2,
        "tau_max_s": 4.0,
        "wait_s": 3.0,
        "hooks": [lambda record, arrays: records.append(record)],
        **more,
    }


def run_server(
    grid: OldGrid, strategy: Strategy, rounds: int = 3, **more: Any
) -> tuple[ScheduledServer, list[RoundRecord]]:
    """Run an app whose ``server_fn`` returns a scheduled server."""
    records: list[RoundRecord] = []
    server = ScheduledServer(strategy, **settings(records, **more))
    config = ServerConfig(num_rounds=rounds)
    app = ServerApp(server_fn=lambda _: ServerAppComponents(server=server, config=config))
    app(grid, Context(1, 1, {}, RecordDict(), {}))
    return server, records


def model(server: ScheduledServer) -> Arrays:
    return parameters_to_ndarrays(server.parameters)


@pytest.mark.parametrize("kind", [FedAvg, FedAdam, Krum])
def test_a_strategy_of_a_server_fn_is_scheduled(kind: type[FedAvg]) -> None:
    grid = OldGrid([adds_one] * 4)
    strategy = kind(
        initial_parameters=initial([1, 2], 3),
        fit_metrics_aggregation_fn=weighted,
        evaluate_metrics_aggregation_fn=average,
        evaluate_fn=lambda round_, weights, config: (float(weights[0][0]), {"accuracy": 0.25}),
    )
    n = 3 if kind is Krum else 2
    server, records = run_server(grid, strategy, num_selected=n)
    assert [len(record.selected) for record in records] == [n] * 3
    assert len({arm for record in records for arm in record.selected}) == 4, "each has its turn"
    assert all(record.stepped for record in records)
    assert [record.rtt_s for record in records] == [
        [arm / 10 for arm in record.selected] for record in records
    ]
    assert [weights.dtype for weights in model(server)] == [np.float32] * 2
    if kind is FedAvg:
        np.testing.assert_allclose(model(server)[0], [4, 5])
        assert model(server)[1].shape == ()
    assert records[-1].accuracy == 0.25
    assert records[-1].client_metrics is not None
    assert records[-1].client_metrics["accuracy"] == 0.5


def test_the_history_is_that_of_flowers_server() -> None:
    def strategy() -> FedAvg:
        return FedAvg(
            initial_parameters=initial([1, 2]),
            fraction_evaluate=1.0,
            fit_metrics_aggregation_fn=weighted,
            evaluate_metrics_aggregation_fn=average,
            evaluate_fn=lambda round_, weights, config: (float(round_), {"accuracy": 0.25}),
        )

    from flwr.server import Server
    from flwr.server.compat import start_grid

    config = ServerConfig(num_rounds=3)
    stock = Server(client_manager=SimpleClientManager(), strategy=strategy())
    want = start_grid(grid=OldGrid([adds_one] * 2), server=stock, config=config)
    ours = ScheduledServer(strategy(), **settings([]))
    got = start_grid(grid=OldGrid([adds_one] * 2), server=ours, config=config)
    assert got.losses_distributed == want.losses_distributed
    assert got.losses_centralized == want.losses_centralized
    assert got.metrics_distributed == want.metrics_distributed
    assert got.metrics_centralized == want.metrics_centralized
    assert got.metrics_distributed_fit["seen"] == want.metrics_distributed_fit["seen"]
    np.testing.assert_allclose(model(ours)[0], parameters_to_ndarrays(stock.parameters)[0])


def test_the_first_model_may_be_a_clients() -> None:
    server, _ = run_server(OldGrid([adds_one] * 2), FedAvg())
    np.testing.assert_allclose(model(server)[0], [10, 10])


def test_a_fault_of_a_client_costs_its_update_and_no_round() -> None:
    def spoils(number: int, weights: Arrays) -> tuple[Arrays, int, dict[str, Any]]:
        return [np.full_like(weights[0], np.nan)], 10, {}

    def raises(number: int, weights: Arrays) -> tuple[Arrays, int, dict[str, Any]]:
        raise RuntimeError("out of memory")

    def grows(number: int, weights: Arrays) -> tuple[Arrays, int, dict[str, Any]]:
        return [np.ones(5, np.float32)], 10, {}

    grid = OldGrid([adds_one, spoils, raises, grows])
    server, records = run_server(grid, FedAvg(initial_parameters=initial([1, 2])), num_selected=4)
    assert [weights.tolist() for weights in model(server)] == [[4, 5]]
    reasons = [reason or "" for reason in records[0].reason]
    assert [reason.partition(":")[0] for reason in reasons] == [
        "", "not finite", "client error", "wrong arrays",
    ]  # fmt: skip
    assert "out of memory" in reasons[2]
    with pytest.raises(NoStepError):
        run_server(OldGrid([raises, raises]), FedAvg(initial_parameters=initial([1])))


def test_sizes_set_floors_and_losses_reach_the_policy() -> None:
    grid = OldGrid([adds_one] * 3)
    strategy = FedAvg(initial_parameters=initial([1, 2]))
    server, records = run_server(grid, strategy, rounds=6, policy="cs-ucb-q-loss")
    assert {arm.num_examples for arm in server.scheduled.arms.arms} == {10, 20, 30}
    kinds = {message.metadata.message_type for message in grid.sent}
    assert kinds == {"train", "evaluate"}, "a client of the old API raises when it is queried"
    floors = server.scheduled.floors
    assert floors is not None
    assert floors == sorted(floors)
    assert floors[0] < floors[2]
    assert all(record.stepped for record in records)


def test_numbers_of_clients_that_the_user_set_are_kept() -> None:
    strategy = FedAvg(initial_parameters=initial([1]), min_fit_clients=3)
    with pytest.raises(ConfigError, match="num_selected = 2: must be at least 3, the updates that"):
        ScheduledServer(strategy, num_selected=2)
    with pytest.raises(ConfigError, match="ScheduledServer, its workflow into a ScheduledWorkflow"):
        ScheduledStrategy(strategy, num_selected=3)  # type: ignore[arg-type]
    from flwr.serverapp.strategy import FedAvg as NewFedAvg

    with pytest.raises(ConfigError, match="ScheduledStrategy takes all others"):
        ScheduledServer(NewFedAvg(), num_selected=3)  # type: ignore[arg-type]


def test_buffered_mode_takes_old_strategies_that_only_average() -> None:
    grid = OldGrid([adds_one] * 4)
    strategy = FedAvg(initial_parameters=initial([1, 2]))
    server, records = run_server(grid, strategy, mode="buffered", rounds=4)
    assert all(record.stepped for record in records)
    assert model(server)[0][0] > 1
    private = DifferentialPrivacyServerSideFixedClipping(strategy, 0.1, 1.0, 2)
    with pytest.raises(ConfigError, match="needs a fixed set of clients in each step"):
        ScheduledServer(private, num_selected=2, mode="buffered")


def test_noise_is_for_the_updates_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    kind = DifferentialPrivacyServerSideFixedClipping
    original = kind.aggregate_fit

    def noted(self: Any, *args: Any) -> Any:
        seen.append(self.num_sampled_clients)
        return original(self, *args)

    monkeypatch.setattr(kind, "aggregate_fit", noted)
    strategy = kind(FedAvg(initial_parameters=initial([1, 2])), 0.1, 1.0, num_sampled_clients=20)
    run_server(OldGrid([adds_one] * 3), strategy)
    assert seen == [2, 2, 2]
    assert strategy.num_sampled_clients == 20


def test_trees_grow() -> None:
    trees = b'{"learner": {"gradient_booster": {"model": {"trees": []}}}}'

    class Bagging(FedXgbBagging):
        """Joins the trees as bytes."""

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            joined = b"|".join(result.parameters.tensors[0] for _, result in results)
            return Parameters([joined], ""), {}

    from flwr.client import Client as FlowerClient
    from flwr.common import Code, FitIns, FitRes, Status

    class Grower(FlowerClient):
        def fit(self, ins: FitIns) -> FitRes:
            return FitRes(Status(Code.OK, ""), Parameters([trees], ""), 3, {})

    grid = OldGrid([adds_one] * 2)
    app = ClientApp(client_fn=lambda _: Grower())
    for node in grid.clients:
        grid.clients[node] = lambda message: app(message, Context(1, 1, {}, RecordDict(), {}))
    strategy = Bagging(initial_parameters=Parameters([], ""), fraction_evaluate=0.0)
    server, records = run_server(grid, strategy)
    assert server.parameters.tensors == [trees + b"|" + trees]
    assert all(record.stepped for record in records)


def test_a_run_directory_is_written_and_gone_on_with(tmp_path: Path) -> None:
    def strategy() -> FedAdam:
        return FedAdam(initial_parameters=initial([1, 2]), fraction_evaluate=0.0, eta=0.1)

    class Killed(Exception):
        pass

    def kill(record: RoundRecord, arrays: Any) -> None:
        if record.round == 3:
            raise Killed

    more = {"run_dir": tmp_path / "run", "policy": "cs-ucb-q"}
    whole, _ = run_server(OldGrid([adds_one] * 3), strategy(), rounds=5, policy="cs-ucb-q")
    with pytest.raises(Killed):
        run_server(OldGrid([adds_one] * 3), strategy(), rounds=5, **more, hooks=[kill])
    server, records = run_server(OldGrid([adds_one] * 3), strategy(), rounds=5, resume=True, **more)
    assert [record.round for record in records] == [4, 5]
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(model(server)[0], model(whole)[0], rtol=1e-6)


# -- workflows ---------------------------------------------------------------------------------


def run_workflow(
    grid: OldGrid, strategy: Strategy, fit_workflow: Any = None, rounds: int = 3, **more: Any
) -> tuple[LegacyContext, Arrays, list[RoundRecord]]:
    records: list[RoundRecord] = []
    plain = Context(1, 1, {}, RecordDict(), {})
    context = LegacyContext(plain, ServerConfig(num_rounds=rounds), strategy)
    workflow = DefaultWorkflow(fit_workflow=fit_workflow)
    if more.pop("scheduled", True):
        workflow = ScheduledWorkflow(workflow, **settings(records, **more))  # type: ignore[assignment]
    workflow(grid, context)
    assert context.strategy is strategy
    arrays = context.state.array_records["parameters"]
    return context, [array.numpy() for array in arrays.values()], records


def plain_strategy() -> FedAvg:
    return FedAvg(
        initial_parameters=initial([1, 2], [[3]]),
        fraction_evaluate=1.0,
        fit_metrics_aggregation_fn=weighted,
        evaluate_metrics_aggregation_fn=average,
        evaluate_fn=lambda round_, weights, config: (float(round_), {"accuracy": 0.25}),
    )


def test_a_workflow_is_scheduled_and_has_the_results_that_it_has_alone() -> None:
    context, arrays, records = run_workflow(OldGrid([adds_one] * 2), plain_strategy())
    stock, want, _ = run_workflow(OldGrid([adds_one] * 2), plain_strategy(), scheduled=False)
    for one, other in zip(arrays, want, strict=True):
        np.testing.assert_allclose(one, other)
    assert vars(context.history) == vars(stock.history)
    assert [record.selected for record in records] == [[0, 1]] * 3
    assert [record.accuracy for record in records] == [0.25] * 3
    assert [record.rtt_s for record in records] == [[0.0, 0.1]] * 3
    assert records[0].client_metrics is not None
    assert records[0].client_metrics["accuracy"] == 0.5


def test_secure_aggregation_is_scheduled_and_its_messages_count_together() -> None:
    secure = SecAggPlusWorkflow(3, 2, max_weight=100)
    grid = OldGrid([adds_one] * 5, [secaggplus_mod])
    _, arrays, records = run_workflow(grid, plain_strategy(), secure, num_selected=3)
    np.testing.assert_allclose(arrays[0], [4, 5], atol=1e-3)
    assert [len(record.selected) for record in records] == [3] * 3
    assert {arm for record in records for arm in record.selected} == {0, 1, 2, 3, 4}
    for record in records:  # four messages to each
        times = [arm * 4 / 10 for arm in record.selected]
        assert record.rtt_s == [pytest.approx(seconds) for seconds in times]
        assert record.stepped


def test_a_client_that_drops_out_of_secure_aggregation_is_a_failure_and_no_loss_of_the_round() -> (
    None
):
    def leaves(number: int, weights: Arrays) -> tuple[Arrays, int, dict[str, Any]]:
        raise RuntimeError("battery")

    secure = SecAggPlusWorkflow(4, 2, max_weight=100)
    grid = OldGrid([adds_one] * 3 + [leaves], [secaggplus_mod])
    strategy = FedAvg(initial_parameters=initial([1, 2]), fraction_evaluate=0.0)
    _, arrays, records = run_workflow(grid, strategy, secure, num_selected=4)
    np.testing.assert_allclose(arrays[0], [4, 5], atol=1e-3)
    for record in records:
        assert [bool(reason) for reason in record.reason] == [False] * 3 + [True]
        assert "battery" in (record.reason[3] or "")


def test_rounds_that_a_workflow_gives_up_are_learned_from_and_end_in_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def leaves(number: int, weights: Arrays) -> tuple[Arrays, int, dict[str, Any]]:
        raise RuntimeError("battery")

    secure = SecAggPlusWorkflow(3, 2, max_weight=100)
    grid = OldGrid([leaves] * 3, [secaggplus_mod])
    strategy = FedAvg(initial_parameters=initial([1, 2]), fraction_evaluate=0.0)
    with caplog.at_level(logging.INFO, "flwr"), pytest.raises(NoStepError, match="battery"):
        run_workflow(grid, strategy, secure, num_selected=3)


def test_what_a_workflow_cannot_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_spare = 1: must be 0: a workflow waits for all"):
        ScheduledWorkflow(DefaultWorkflow(), num_selected=2, num_spare=1)
    with pytest.raises(
        ConfigError, match="mode = 'buffered': DefaultWorkflow runs rounds by itself"
    ):
        run_workflow(OldGrid([adds_one] * 2), plain_strategy(), mode="buffered")
