"""ScheduledStrategy around other people's strategies and models: as on stock Flower."""

from __future__ import annotations

import logging
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedXgbBagging,
    FedYogi,
    Krum,
    QFedAvg,
    Result,
    Strategy,
)
from safetensors.numpy import load_file
from scripted_grid import Client, ScriptedGrid

from flower_scheduling.client.wire.protocol import NUM_EXAMPLES
from flower_scheduling.errors import ConfigError, NoStepError, SchedulingError
from flower_scheduling.strategies import RoundContext, SchedulingPolicy
from flower_scheduling.strategies.flower import LOGGER, RoundRecord, ScheduledStrategy

Arrays = Mapping[str, np.ndarray[Any, Any]]


def model(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})


def answer(
    message: Message,
    change: Callable[[dict[str, np.ndarray[Any, Any]]], Arrays] = lambda arrays: arrays,
    *,
    num_examples: float = 10,
    records: Mapping[str, Any] | None = None,
    **metrics: Any,
) -> Message:
    """Answer with the received arrays, changed."""
    received = {key: array.numpy() for key, array in message.content["arrays"].items()}
    content: dict[str, Any] = {
        "arrays": model(change(received)),
        "metrics": MetricRecord({NUM_EXAMPLES: num_examples, **metrics}),
        **(records or {}),
    }
    return Message(RecordDict(content), reply_to=message)


def start(
    strategy: Strategy,
    clients: Sequence[Client],
    initial: ArrayRecord,
    *,
    rounds: int = 3,
    grid: ScriptedGrid | None = None,
    evaluate_fn: Any = None,
    **settings: Any,
) -> tuple[Result, list[RoundRecord], ScheduledStrategy]:
    grid = grid or ScriptedGrid(clients)
    records: list[RoundRecord] = []
    settings = {
        "policy": "random",
        "num_selected": len(grid.clients),
        "tau_max_s": 4.0,
        "wait_s": 3.0,
        "client_eval_every": 0,
        **settings,
    }
    scheduled = ScheduledStrategy(
        strategy, **settings, hooks=[lambda record, arrays: records.append(record)]
    )
    result = scheduled.start(grid, initial, num_rounds=rounds, evaluate_fn=evaluate_fn)
    return result, records, scheduled


# -- arrays ------------------------------------------------------------------------------------


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    )


def trains_a_network(message: Message) -> Message:
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    net.train()
    for seed in range(3):
        net(torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)))
    with torch.no_grad():
        net[0].weight += 0.1
    content = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({NUM_EXAMPLES: 8}),
    }
    return Message(RecordDict(content), reply_to=message)


@pytest.mark.parametrize(
    "strategy",
    [FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad, FedMedian, FedTrimmedAvg, Krum],
    ids=lambda each: each.__name__,
)
def test_batch_normalisation_is_trained_round_after_round(strategy: type[Strategy]) -> None:
    arrays = ArrayRecord(network().state_dict())
    before = arrays["0.weight"].numpy()
    for _ in range(2):  # the second run begins with the model of the first
        result, records, _ = start(strategy(), [trains_a_network] * 5, arrays)
        arrays = result.arrays
        assert [record.no_step for record in records] == [None] * 3
        after = arrays["0.weight"].numpy()
        assert not np.array_equal(before, after)
        before = after
    counter = arrays["1.num_batches_tracked"].numpy()
    assert counter.shape == ()
    assert counter.dtype == np.int64
    if strategy is FedAvg:
        assert counter == 2 * 3 * 3
    network().load_state_dict(arrays.to_torch_state_dict())


@pytest.mark.parametrize(
    "array",
    [
        np.asarray(5, np.int64),
        np.asarray(0.5, np.float32),
        np.array([1, -2], np.int8),
        np.array([True, False]),
        np.ones(2, np.float16),
        np.zeros((0, 3), np.float32),
        np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
        np.array([1 + 2j], np.complex64),
        np.array([2**40], np.uint64),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
@pytest.mark.parametrize("strategy", [FedAvg, lambda: FedProx(proximal_mu=0.1), FedMedian])
def test_array_of_any_kind_comes_back_as_it_was(
    strategy: Callable[[], Strategy], array: np.ndarray[Any, Any]
) -> None:
    initial = model({"w": np.zeros(3, np.float32), "other": array})
    result, records, _ = start(strategy(), [answer] * 3, initial)
    assert all(record.stepped for record in records)
    found = result.arrays["other"].numpy()
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    assert np.array_equal(found, array)


@pytest.mark.parametrize("value", [np.asarray(5, np.int64), np.asarray(0.5, np.float32)])
def test_scalar_under_clipping_on_the_server(value: np.ndarray[Any, Any]) -> None:
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 10.0, 3)
    initial = model({"w": np.zeros(3, np.float32), "n": value})
    client: Client = lambda m: answer(m, lambda a: {**a, "w": a["w"] + np.float32(1)})  # noqa: E731
    result, records, _ = start(strategy, [client] * 3, initial)
    assert all(record.stepped for record in records)
    assert result.arrays["n"].numpy() == pytest.approx(value, rel=1e-6)
    assert result.arrays["n"].numpy().shape == ()


def test_model_that_flowers_rule_cannot_aggregate_is_refused_before_the_first_round() -> None:
    counter = {"w": np.zeros(3, np.float32), "n": np.asarray(5, np.int64)}
    with pytest.raises(ConfigError, match="n = 'array of int64': QFedAvg cannot aggregate it"):
        start(QFedAvg(client_learning_rate=0.1), [answer] * 3, model(counter))
    result, records, _ = start(
        QFedAvg(client_learning_rate=0.1),
        [lambda m: answer(m, train_loss=1.0)] * 3,
        model({"w": np.zeros(3, np.float32), "n": np.asarray(5, np.float32)}),
    )
    assert all(record.stepped for record in records)
    assert result.arrays["n"].numpy().shape == ()


def test_number_that_numpy_does_not_know_is_named_at_either_end() -> None:
    odd = np.zeros(3, "V2")  # what is left of bfloat16 on the way
    with pytest.raises(ConfigError, match=r"w = 'array of \|V2': must be numbers .* send float32"):
        start(FedAvg(), [answer] * 2, model({"w": odd}))
    client: Client = lambda m: answer(m, lambda a: {"w": odd})  # noqa: E731
    _, records, _ = start(FedAvg(), [client, answer], model({"w": np.zeros(3, np.float32)}))
    assert "send float32" in str(records[0].reason[0])
    assert all(record.stepped for record in records)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Flower's arithmetic
@pytest.mark.parametrize("fill", [-math.inf, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("strategy", [FedAvg, FedAdam, FedMedian])
def test_mask_stays_what_it_is_and_weights_are_still_checked(
    strategy: type[Strategy], fill: float, caplog: pytest.LogCaptureFixture
) -> None:
    def trains(message: Message) -> Message:
        return answer(message, lambda a: {**a, "w": a["w"] + np.float32(1)})

    def spoils(message: Message) -> Message:
        return answer(message, lambda a: {**a, "w": np.full(3, fill, np.float32)})

    def unmasks(message: Message) -> Message:
        return answer(message, lambda a: {**a, "mask": np.full((3, 3), math.nan, np.float32)})

    mask = np.triu(np.full((3, 3), fill, np.float32), 1)
    initial = model({"w": np.zeros(3, np.float32), "mask": mask})
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        result, records, _ = start(strategy(), [trains, spoils, trains, unmasks], initial)
    assert [record.completed for record in records] == [[True, False, True, False]] * 3
    assert all(record.stepped for record in records)
    assert np.array_equal(result.arrays["mask"].numpy(), mask)
    assert np.isfinite(result.arrays["w"].numpy()).all()
    said = [line for line in caplog.messages if "is not finite in" in line]
    assert len(said) == (1 if math.isinf(fill) else 0)


def test_metric_that_is_no_number_costs_no_update() -> None:
    clients = [lambda m, loss=loss: answer(m, train_loss=loss) for loss in (0.5, math.nan, 2.0)]
    _, records, scheduled = start(
        FedAvg(), clients, model({"w": np.zeros(3, np.float32)}), policy="oort"
    )
    assert [record.completed for record in records] == [[True] * 3] * 3
    told = scheduled.policy.state_dict()["last_loss"]
    assert told.tolist() == [0.5, -math.inf, 2.0], "no number is no report"


# -- records, keys and shapes --------------------------------------------------------------------


def test_scaffold_gets_its_control_variates() -> None:
    class Scaffold(FedAvg):
        controls = 0

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            arrays = []
            for reply in replies:
                self.controls += "control" in reply.content
                arrays.append(reply.content["arrays"]["w"].numpy())
            return model({"w": np.mean(arrays, axis=0)}), None

    def client(message: Message) -> Message:
        control = {"control": model({"c": np.ones(2)})}
        return answer(message, lambda a: {"w": a["w"] + np.float32(1)}, records=control)

    strategy = Scaffold()
    result, records, _ = start(strategy, [client] * 3, model({"w": np.zeros(3, np.float32)}))
    assert strategy.controls == 9
    assert all(record.stepped for record in records)
    assert result.arrays["w"].numpy().tolist() == [3.0] * 3


def test_submodels_of_other_shapes_go_to_a_strategy_that_merges_them() -> None:
    class HeteroFL(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            total, count = np.zeros(4), np.zeros(4)
            for reply in replies:
                part = reply.content["arrays"]["w"].numpy()
                total[: len(part)] += part
                count[: len(part)] += 1
            return model({"w": total / count}), None

    def client(width: int) -> Client:
        return lambda message: answer(message, lambda a: {"w": a["w"][:width] + np.float32(1)})

    clients = [client(width) for width in (4, 2, 1)]
    result, records, _ = start(HeteroFL(), clients, model({"w": np.zeros(4, np.float32)}))
    assert all(record.completed == [True] * 3 for record in records)
    assert result.arrays["w"].numpy().tolist() == [3.0] * 4
    assert result.arrays["w"].numpy().dtype == np.float32
    _, records, _ = start(
        HeteroFL(), clients, model({"w": np.zeros(4, np.float32)}), fixed_shapes=True
    )
    assert [record.completed for record in records] == [[True, False, False]] * 3


def test_reply_of_other_names_costs_an_own_rule_one_reply_not_the_round() -> None:
    class Logging(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            return super().aggregate_train(server_round, replies)

    clients: list[Client] = [answer, lambda m: answer(m, surprise=1.0), answer]
    _, records, _ = start(Logging(), clients, model({"w": np.zeros(3, np.float32)}))
    assert [record.completed for record in records] == [[True, False, True]] * 3
    assert all(record.stepped for record in records)


def test_adapters_alone_become_the_model_if_all_clients_send_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def adapter(message: Message) -> Message:
        return answer(message, lambda a: {"w": a["w"] + np.float32(1)})

    initial = model({"w": np.zeros(3, np.float32), "frozen": np.ones(5, np.float32)})
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        result, records, _ = start(FedAvg(), [adapter] * 3, initial)
    assert all(record.stepped for record in records)
    assert list(result.arrays) == ["w"]
    assert result.arrays["w"].numpy().tolist() == [3.0] * 3
    said = [line for line in caplog.messages if "the model has" in line]
    assert said == ["round 1: the model has changed: 'frozen' is gone"]


@pytest.mark.parametrize("arrays", [{"w": np.ones(2, "f4")}, {"evil": np.ones(3, "f4")}])
def test_one_client_alone_cannot_replace_the_model(arrays: Arrays) -> None:
    grid = ScriptedGrid([lambda m: answer(m, lambda a: arrays), answer, answer])
    grid.connected = {100}
    grid.on_begin = lambda server_round: grid.connected.update({101, 102})
    initial = model({"w": np.zeros(3, np.float32)})
    result, records, _ = start(
        FedAvg(), [], initial, grid=grid, rounds=8, num_selected=1, min_clients=1
    )
    assert "(fixed_shapes=False takes it)" in str(records[0].reason[0])
    assert {name for record in records[1:] if record.stepped for name in record.names} <= {
        "dev-1",
        "dev-2",
    }
    assert result.arrays["w"].numpy().shape == (3,)


def test_model_that_the_clients_bring_replaces_an_empty_one() -> None:
    def client(message: Message) -> Message:
        return answer(message, lambda a: {"w": np.full(2, len(a) + 1.0, np.float32)})

    class OwnRule(FedAvg):
        def aggregate_train(self, *args: Any, **kwargs: Any) -> Any:
            return super().aggregate_train(*args, **kwargs)

    class OwnStart(FedAvg):
        def start(self, *args: Any, **kwargs: Any) -> Result:
            return super().start(*args, **kwargs)

    settings: dict[str, Any] = {"fixed_shapes": False}
    for strategy, more in ((FedAvg(), settings), (OwnRule(), {}), (OwnStart(), {})):
        result, records, _ = start(strategy, [client] * 3, ArrayRecord(), **more)
        assert all(record.stepped for record in records)
        assert result.arrays["w"].numpy().tolist() == [2.0, 2.0]


def test_an_empty_model_is_refused_where_nothing_is_known_to_fill_it(tmp_path: Path) -> None:
    scheduled = schedule(FedAvg(), [], run_dir=tmp_path / "run")
    text = r"an empty ArrayRecord.*must have an array at least \(fixed_shapes=False if clients"
    with pytest.raises(ConfigError, match=text):
        scheduled.start(ScriptedGrid([answer] * 3), ArrayRecord())
    assert not (tmp_path / "run").exists()


def test_part_of_a_model_is_refused_beside_whole_ones() -> None:
    def part(message: Message) -> Message:
        return answer(message, lambda a: {"w": a["w"]})

    initial = model({"w": np.zeros(3, np.float32), "b": np.ones(5, np.float32)})
    _, records, _ = start(FedAvg(), [part, answer, part], initial)
    reason = "wrong arrays: keys ['w'] instead of ['b', 'w']"
    assert [record.reason for record in records] == [[reason, None, reason]] * 3


def test_trees_grow() -> None:
    def client(message: Message) -> Message:
        tree = b'{"learner": {"gradient_booster": {"model": {"gbtree_model_param": '
        tree += b'{"num_trees": "1", "num_parallel_tree": "1"}, "iteration_indptr": [0, 1], '
        tree += b'"trees": [{"id": 0}], "tree_info": [0]}}}}'
        return answer(message, lambda a: {"0": np.frombuffer(tree, np.uint8)})

    initial = ArrayRecord([np.frombuffer(b"", np.uint8)])
    result, records, _ = start(FedXgbBagging(), [client] * 3, initial)
    assert all(record.stepped for record in records)
    assert b'"num_trees": "9"' in result.arrays["0"].numpy().tobytes()


def test_number_of_examples_may_count_tokens() -> None:
    clients = [lambda m, k=k: answer(m, num_examples=k * 3_000_000_000) for k in (1, 2, 3)]
    _, records, _ = start(FedAvg(), clients, model({"w": np.zeros(3, np.float32)}))
    assert [record.completed for record in records] == [[True] * 3] * 3


# -- strategies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metrics", "accuracy", "loss", "diverged"),
    [
        ({"accuracy": 0.5}, 0.5, None, False),
        ({"accuracy": 0.5, "loss": 2}, 0.5, 2.0, False),
        ({"loss": math.nan}, None, None, True),
        ({"accuracy": math.nan, "loss": math.inf}, None, None, True),
        ({"accuracy": math.nan}, None, None, False),
    ],
)
def test_loss_that_is_not_finite_is_not_a_missing_one(
    metrics: dict[str, float], accuracy: float | None, loss: float | None, diverged: bool
) -> None:
    _, (record,), _ = start(
        FedAvg(),
        [answer] * 3,
        model({"w": np.zeros(3, np.float32)}),
        rounds=1,
        evaluate_fn=lambda server_round, arrays: MetricRecord(metrics),
    )
    assert (record.accuracy, record.loss, record.diverged) == (accuracy, loss, diverged)


class LateGrid(ScriptedGrid):
    """Its late replies come at some time, as on streams."""

    fastest_late_s = math.inf


@pytest.mark.parametrize(
    ("timeout", "late_s", "text"),
    [
        (3600, math.inf, "deadline of 0.05 s; raise tau_max_s"),
        (3600, 0.3117, r"raise tau_max_s \(the fastest late reply took 0.312 s\)"),
        (0.01, math.inf, r"deadline of 0.01 s; raise the timeout of start\(\)"),
    ],
)
def test_a_deadline_that_all_miss_is_named(
    timeout: float, late_s: float, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = LateGrid([lambda message: None] * 3)
    grid.fastest_late_s = late_s
    scheduled = ScheduledStrategy(
        FedAvg(), "random", num_selected=2, tau_max_s=0.05, client_eval_every=0
    )
    whole = f"all selected clients missed the .*{text}$"
    with (
        caplog.at_level(logging.WARNING, LOGGER.name),
        pytest.raises(NoStepError, match=f"no-replies .*timeout.*: {whole}"),
    ):
        scheduled.start(grid, model({"w": np.zeros(3, np.float32)}), 8, timeout)
    lines = [line for line in caplog.messages if "missed the deadline" in line]
    assert len(lines) == 1
    assert re.match(f"round 3: for 3 rounds {whole}", lines[0])


def test_an_error_beside_late_replies_is_no_matter_of_the_deadline() -> None:
    def breaks(message: Message) -> Message:
        return Message(Error(2, "out of memory"), reply_to=message)

    with pytest.raises(NoStepError) as caught:
        start(FedAvg(), [breaks, lambda message: None], model({"w": np.zeros(3, np.float32)}))
    assert "tau_max_s" not in str(caught.value)


@pytest.mark.parametrize("clients", [[], [lambda message: None] * 2])
def test_metrics_of_a_start_that_no_client_had_a_part_in_are_no_result(
    clients: list[Client],
) -> None:
    class Counting(FedAvg):
        def start(self, *args: Any, **kwargs: Any) -> Result:
            result = super().start(*args, **kwargs)
            result.train_metrics_clientapp[1] = MetricRecord({"bytes": 0})
            return result

    with pytest.raises(NoStepError):
        start(Counting(), clients, model({"w": np.zeros(3, np.float32)}), num_selected=2)


@pytest.mark.parametrize(
    ("num_selected", "warning"), [(3, None), (10, "10 clients per round wanted, 3 known")]
)
def test_a_run_says_once_with_how_many_clients_it_starts(
    num_selected: int, warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, LOGGER.name):
        start(
            FedAvg(),
            [answer] * 3,
            model({"w": np.zeros(3, np.float32)}),
            num_selected=num_selected,
        )
    assert caplog.messages.count("starts with 3 clients (a larger min-clients waits for more)") == 1
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == [warning] * (warning is not None)


@pytest.mark.parametrize(
    "key",
    [
        *("num_selected", "tau_max_s", "seed", "min_clients", "wait_s", "query_timeout_s"),
        *("min_replies", "eval_every", "client_eval_every", "client_eval_timeout_s"),
        *("availability", "max_update_norm", "log_every_s", "checkpoint_every"),
    ],
)
def test_a_number_in_quotes_is_refused(key: str) -> None:
    settings: dict[str, Any] = {"num_selected": 2, "tau_max_s": 4.0, key: "3"}
    with pytest.raises(ConfigError, match=f"^{key} = '3': must be an? (integer|finite number)"):
        ScheduledStrategy(FedAvg(), **settings)


@pytest.mark.parametrize("num_rounds", ["3", 2.5, None, -1])
def test_rounds_are_a_whole_number(num_rounds: Any, tmp_path: Path) -> None:
    scheduled = schedule(FedAvg(), [], run_dir=tmp_path / "run")
    arrays = model({"w": np.zeros(3, np.float32)})
    with pytest.raises(ConfigError, match=r"num_rounds = .*: must be an integer >= 0"):
        scheduled.start(ScriptedGrid([answer] * 3), arrays, num_rounds)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("key", "value"), [("run_dir", ""), ("run_dir", 3), ("fairness", 0.5)])
def test_a_setting_of_no_use_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{key} = .*: must be a "):
        ScheduledStrategy(FedAvg(), num_selected=2, tau_max_s=4.0, **{key: value})


def test_metrics_of_other_names_are_shown_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = {"test_acc": 0.25, "test_loss": math.nan}
    with caplog.at_level(logging.INFO, LOGGER.name):
        _, records, _ = start(
            FedAvg(),
            [answer] * 3,
            model({"w": np.zeros(3, np.float32)}),
            evaluate_fn=lambda server_round, arrays: MetricRecord(metrics),
        )
    assert [(r.accuracy, r.loss, r.diverged) for r in records] == [(None, None, False)] * 3
    assert [r.server_metrics for r in records] == [{"test_acc": 0.25}] * 3
    said = [text for text in caplog.messages if "no 'accuracy' or 'loss'" in text]
    assert len(said) == 1
    assert said[0].startswith("no 'accuracy' or 'loss' among test_acc, test_loss: ")
    lines = [text for text in caplog.messages if text.startswith("[ROUND")]
    assert len(lines) == 3
    assert all("; test_acc 0.25; 3 available" in line for line in lines)


def test_start_of_ones_own_runs_the_rounds() -> None:
    class Mine(FedAvg):
        def start(self, *args: Any, **kwargs: Any) -> Result:
            self.log = ["begin"]
            result = super().start(*args, **kwargs)
            self.log.append("end")
            return result

    def client(message: Message) -> Message:
        if message.metadata.message_type == MessageType.TRAIN:
            return answer(message, lambda a: {"w": a["w"] + np.float32(1)}, train_loss=0.5)
        metrics = MetricRecord({NUM_EXAMPLES: 1, "accuracy": 0.25})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    evaluated = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        evaluated.append(server_round)
        return MetricRecord({"accuracy": server_round / 10})

    strategy = Mine()
    result, records, scheduled = start(
        strategy,
        [client] * 5,
        model({"w": np.zeros(3, np.float32)}),
        num_selected=2,
        client_eval_every=None,
        evaluate_fn=evaluate,
    )
    assert scheduled.log == ["begin", "end"], "its attributes are to be had"
    assert [record.round for record in records] == [1, 2, 3]
    assert [len(record.selected) for record in records] == [2, 2, 2]
    assert [record.accuracy for record in records] == [0.1, 0.2, 0.3]
    assert evaluated == [0, 1, 2, 3]
    assert result.arrays["w"].numpy().tolist() == [3.0] * 3
    assert result.train_metrics_clientapp[3]["train_loss"] == 0.5
    assert result.evaluate_metrics_clientapp[3]["accuracy"] == 0.25
    assert [record.client_metrics for record in records] == [{"accuracy": 0.25}] * 3
    assert scheduled.policy.play_count.sum() == 6
    assert "configure_train" not in vars(strategy), "as before"


def test_a_round_that_a_start_of_ones_own_gives_up_makes_no_step() -> None:
    class Choosy(FedAvg):
        def start(  # type: ignore[override]
            self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int, **more: Any
        ) -> Result:
            for number in range(1, num_rounds + 1):
                messages = self.configure_train(number, initial_arrays, ConfigRecord(), grid)
                replies = list(grid.send_and_receive(messages))
                if number == 2:
                    self.aggregate_train(number, replies)
            return Result(arrays=initial_arrays)

    def plus_one(arrays: dict[str, Any]) -> Arrays:
        return {key: array + np.float32(1) for key, array in arrays.items()}

    initial = model({"w": np.zeros(3, np.float32)})
    _, records, _ = start(Choosy(), [lambda m: answer(m, plus_one)] * 2, initial)
    assert [record.no_step for record in records] == ["aggregation", None, "aggregation"]


class Clusters(FedAvg):
    """Several models, packed into one for the wire, as clustered learning has them."""

    def start(  # type: ignore[override]
        self,
        grid: Grid,
        initial_list_arrays: list[ArrayRecord],
        train_config: ConfigRecord | None = None,
        num_rounds: int = 2,
        evaluate_fn: Any = None,
    ) -> Result:
        self.seen = train_config
        models = enumerate(initial_list_arrays)
        packed = {f"{i} {key}": array for i, each in models for key, array in each.items()}
        return super().start(
            grid, ArrayRecord(packed), num_rounds, 3.0, train_config, evaluate_fn=evaluate_fn
        )


def schedule(strategy: Strategy, records: list[RoundRecord], **settings: Any) -> ScheduledStrategy:
    return ScheduledStrategy(
        strategy,
        "random",
        num_selected=2,
        tau_max_s=4.0,
        client_eval_every=0,
        hooks=[lambda record, arrays: records.append(record)],
        **settings,
    )


@pytest.mark.parametrize("by_name", [True, False])
def test_start_of_another_signature_gets_its_own_arguments(by_name: bool, tmp_path: Path) -> None:
    two = [model({"w": np.full(3, value, np.float32)}) for value in (1, 5)]
    config = ConfigRecord({"lr": 0.5})

    def client(message: Message) -> Message:
        assert message.content["config"]["lr"] == 0.5
        return answer(message, lambda a: {k: v + np.float32(1) for k, v in a.items()})

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": server_round / 10})

    records: list[RoundRecord] = []
    scheduled = schedule(Clusters(), records, run_dir=tmp_path / "run")
    grid = ScriptedGrid([client] * 3)
    if by_name:
        result = scheduled.start(
            grid=grid,
            initial_list_arrays=two,
            num_rounds=3,
            train_config=config,
            evaluate_fn=evaluate,
        )
    else:
        result = scheduled.start(grid, two, config, 3, evaluate)
    assert scheduled.seen is config
    assert [record.stepped for record in records] == [True] * 3
    assert [record.accuracy for record in records] == [0.1, 0.2, 0.3]
    arrays = {key: array.numpy().tolist() for key, array in result.arrays.items()}
    assert arrays == {"0 w": [4.0] * 3, "1 w": [8.0] * 3}
    saved = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert saved["rounds"] == 3
    assert load_file(tmp_path / "run" / "model.safetensors")["1 w"].tolist() == [8.0] * 3


def test_start_of_another_signature_has_its_own_number_of_rounds() -> None:
    class Phases(FedAvg):
        def start(self, grid: Grid, weights: Any, phases: int) -> Result:  # type: ignore[override]
            return super().start(grid, ArrayRecord([weights]), num_rounds=2 * phases)

    records: list[RoundRecord] = []
    clients = [lambda m: answer(m)] * 3
    weights = np.zeros(3, np.float32)
    schedule(Phases(), records).start(ScriptedGrid(clients), weights=weights, phases=2)
    assert [record.round for record in records] == [1, 2, 3, 4]
    defaults: list[RoundRecord] = []
    schedule(Clusters(), defaults).start(ScriptedGrid(clients), [model({"w": weights})])
    assert len(defaults) == 2, "the default of its own"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, r"missing a required argument: 'initial_list_arrays'; it takes grid, initial_list_"),
        ({"initial_list_arrays": [], "rounds": 3}, "unexpected keyword argument 'rounds'"),
        ({"initial_list_arrays": [], "num_rounds": -1}, "num_rounds = -1: must be an integer >= 0"),
        ({"initial_list_arrays": [], "num_rounds": "3"}, "num_rounds = '3': must be an integer"),
    ],
)
def test_wrong_arguments_leave_no_run_directory(
    arguments: dict[str, Any], text: str, tmp_path: Path
) -> None:
    scheduled = schedule(Clusters(), [], run_dir=tmp_path / "run")
    with pytest.raises(SchedulingError, match=text):
        scheduled.start(grid=ScriptedGrid([answer] * 3), **arguments)
    with pytest.raises(SchedulingError, match=r"FedAvg.start.*it takes grid, initial_arrays, .num"):
        schedule(FedAvg(), [], run_dir=tmp_path / "run").start(ScriptedGrid([answer] * 3))
    assert not (tmp_path / "run").exists()


def test_model_that_start_hands_on_otherwise_than_flower_is_refused(tmp_path: Path) -> None:
    class Listed(FedAvg):
        def start(self, grid: Grid, models: list[ArrayRecord]) -> Result:  # type: ignore[override]
            self.configure_train(1, models, ConfigRecord(), grid)  # type: ignore[arg-type]
            return Result()

    scheduled = schedule(Listed(), [], run_dir=tmp_path / "run")
    with pytest.raises(SchedulingError, match=r"given a list for the model: start.. must hand it"):
        scheduled.start(ScriptedGrid([answer] * 3), models=[])
    assert not (tmp_path / "run").exists()


def test_start_that_trains_by_other_means_is_named() -> None:
    class Odd(FedAvg):
        def start(self, *args: Any, **kwargs: Any) -> Result:
            return Result(arrays=ArrayRecord())

    with pytest.raises(SchedulingError, match=r"Odd.start\(\) trained no round"):
        start(Odd(), [answer] * 3, model({"w": np.zeros(3, np.float32)}))


@pytest.mark.parametrize("where", ["attribute", "list", "mapping"])
def test_strategy_held_under_any_name_waits_for_no_more_clients(where: str) -> None:
    class Holder(Strategy):
        def __init__(self, inner: Strategy) -> None:
            self.inner = {"attribute": inner, "list": [inner], "mapping": {"a": inner}}[where]

        def _get(self) -> Any:
            inner: Any = self.inner
            return inner if where == "attribute" else inner[0 if where == "list" else "a"]

        def configure_train(self, *args: Any) -> Iterable[Message]:
            return self._get().configure_train(*args)  # type: ignore[no-any-return]

        def aggregate_train(self, *args: Any) -> Any:
            return self._get().aggregate_train(*args)

        def configure_evaluate(self, *args: Any) -> Iterable[Message]:
            return self._get().configure_evaluate(*args)  # type: ignore[no-any-return]

        def aggregate_evaluate(self, *args: Any) -> Any:
            return self._get().aggregate_evaluate(*args)

        def summary(self) -> None: ...

    _, records, _ = start(
        Holder(FedAvg(min_available_nodes=4)),
        [answer] * 4,
        model({"w": np.zeros(3, np.float32)}),
        num_selected=1,
    )
    assert [len(record.selected) for record in records] == [1, 1, 1]
    assert len(records[0].available) == 4, "it waits for what the strategy asks for, once"


def test_strategy_that_waits_for_more_than_it_can_get_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Waiting(FedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            while len(list(grid.get_node_ids())) < 3:
                pass
            return super().configure_train(server_round, arrays, config, grid)

    initial = model({"w": np.zeros(3, np.float32)})
    with pytest.raises(SchedulingError, match="Waiting: it waits for more than the 2 clients"):
        start(Waiting(), [answer] * 4, initial, num_selected=2)
    grid = ScriptedGrid([answer] * 4)
    grid.on_begin = lambda server_round: grid.away.update({100, 101} if server_round == 2 else ())
    _, records, _ = start(Waiting(), [], initial, grid=grid, num_selected=3)
    assert [record.no_step for record in records] == [None, "quorum", "quorum"]


def test_fraction_of_the_clients_gives_way_to_the_policys_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = FedAvg(fraction_train=0.5)
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        _, records, _ = start(
            strategy, [answer] * 8, model({"w": np.zeros(3, np.float32)}), num_selected=3
        )
    assert [len(record.selected) for record in records] == [3, 3, 3]
    assert strategy.fraction_train == 0.5
    assert any("fraction_train = 0.5: of those available, 3 clients" in m for m in caplog.messages)


def test_started_again_it_goes_on_with_what_it_has_learned() -> None:
    grid = ScriptedGrid([answer] * 4)
    records: list[RoundRecord] = []
    scheduled = ScheduledStrategy(
        FedAvg(),
        num_selected=2,
        tau_max_s=4.0,
        client_eval_every=0,
        hooks=[lambda record, arrays: records.append(record)],
    )
    before = scheduled.start(grid, model({"w": np.zeros(3, np.float32)}), num_rounds=3)
    after = scheduled.start(grid, before.arrays, num_rounds=2)
    assert [record.round for record in records] == [1, 2, 3, 1, 2]
    assert scheduled.policy.play_count.sum() == 10
    assert scheduled.policy.last_round == 5
    assert records[3].time_s <= records[2].time_s, "its time begins anew"
    assert list(after.arrays) == ["w"]


def test_attributes_are_those_of_the_wrapped_strategy() -> None:
    class Mine(FedAvg):
        def set_path(self, path: str) -> None:
            self.path = path

    scheduled = ScheduledStrategy(Mine(fraction_evaluate=0.25), num_selected=2, tau_max_s=1.0)
    scheduled.set_path("here")
    assert scheduled.path == "here"
    scheduled.fraction_evaluate = 0.75
    assert scheduled.fraction_evaluate == 0.75
    assert "fraction_evaluate" not in vars(scheduled)
    with pytest.raises(AttributeError, match="'Mine' object has no attribute 'nothing'"):
        _ = scheduled.nothing


# -- evaluation on clients -----------------------------------------------------------------------


def evaluates(message: Message) -> Message:
    if message.metadata.message_type == MessageType.TRAIN:
        return answer(message)
    metrics = MetricRecord({NUM_EXAMPLES: 1, "accuracy": 0.5})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def no_handler(message: Message) -> Message:
    if message.metadata.message_type == MessageType.TRAIN:
        return answer(message)
    reason = "ValueError: No evaluate function registered with name 'default'"
    return Message(Error(2, reason), reply_to=message)


def asked(grid: ScriptedGrid) -> list[int]:
    kind = MessageType.EVALUATE
    sent = [m.metadata.dst_node_id - 100 for m in grid.sent if m.metadata.message_type == kind]
    return sorted(sent)


def evaluation_rounds(strategy: Strategy, client: Client, **settings: Any) -> tuple[Any, list[int]]:
    grid = ScriptedGrid([client] * 4)
    initial = model({"w": np.zeros(3, np.float32)})
    settings = {"num_selected": 2, "min_clients": 4, "client_eval_every": None, **settings}
    result, _, _ = start(strategy, [], initial, grid=grid, rounds=2, **settings)
    return result.evaluate_metrics_clientapp, asked(grid)


def test_clients_evaluate_as_the_wrapped_strategy_wants() -> None:
    metrics, nodes = evaluation_rounds(FedAvg(), evaluates)
    assert [m["accuracy"] for m in metrics.values()] == [0.5, 0.5]
    assert nodes == [0, 0, 1, 1, 2, 2, 3, 3], "also outside the super arm"
    metrics, nodes = evaluation_rounds(FedAvg(fraction_evaluate=0.5), evaluates)
    assert len(nodes) == 2 * 2
    metrics, nodes = evaluation_rounds(FedAvg(min_evaluate_nodes=7), evaluates)
    assert len(nodes) == 2 * 4, "as many as there are"
    assert evaluation_rounds(FedAvg(fraction_evaluate=0.0), evaluates) == ({}, [])
    metrics, nodes = evaluation_rounds(FedAvg(), evaluates, client_eval_on="selected")
    assert len(nodes) == 2 * 2


def test_clients_without_a_function_to_evaluate_are_asked_once() -> None:
    assert evaluation_rounds(FedAvg(), no_handler) == ({}, [0, 1, 2, 3])


# -- clients without examples --------------------------------------------------------------------


def test_client_without_examples_is_owed_nothing_and_tried_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    has_data_from = 30

    def empty(message: Message) -> Message:
        late = message.content["config"]["server-round"] >= has_data_from
        return answer(message, num_examples=20 if late else 0)

    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        _, records, scheduled = start(
            FedAvg(),
            [],
            model({"w": np.zeros(3, np.float32)}),
            grid=ScriptedGrid([empty, answer, answer], answers_query=False),
            rounds=60,
            policy="cs-ucb-q-adaptive",
            fairness="equal:0.3",
            num_selected=2,
        )
    tried = [record.round for record in records if 0 in record.selected]
    before = [number for number in tried if number < has_data_from]
    assert 1 <= len(before) <= 3
    assert not any(set(record.selected) & set(record.absent) for record in records)
    assert all(record.reason == [None] * len(record.selected) for record in records)
    assert sum(1 for number in tried if number > has_data_from) > 5, "it takes part again"
    said = [line for line in caplog.messages if "has no examples" in line]
    assert len(said) == 1
    assert scheduled.floors == [0.3, 0.3, 0.3]


def test_floor_is_none_while_a_client_has_no_examples() -> None:
    _, _, scheduled = start(
        FedAvg(),
        [lambda m: answer(m, num_examples=0), answer, answer],
        model({"w": np.zeros(3, np.float32)}),
        policy="cs-ucb-q-adaptive",
        fairness="equal:0.3",
        num_selected=3,
    )
    assert scheduled.floors == [0.0, 0.3, 0.3]
    assert scheduled.queues is not None
    assert scheduled.queues[0] <= 0.3


def test_fleet_without_any_examples_ends() -> None:
    clients = [lambda m: answer(m, num_examples=0)] * 3
    with pytest.raises(SchedulingError, match="no client has examples: all 3 said"):
        start(FedAvg(), clients, model({"w": np.zeros(3, np.float32)}), rounds=50)


def test_floor_follows_the_number_of_examples() -> None:
    def client(message: Message) -> Message:
        more = message.content["config"]["server-round"] > 1
        return answer(message, num_examples=610 if more else 110)

    grid = ScriptedGrid([client, lambda m: answer(m, num_examples=110)], answers_query=False)
    floors: list[Any] = []
    scheduled = ScheduledStrategy(
        FedAvg(), num_selected=1, min_clients=2, tau_max_s=9.0, fairness="proportional:0.5"
    )
    scheduled.add_hook(lambda record, arrays: floors.append(scheduled.floors))
    scheduled.start(grid, model({"w": np.zeros(3, np.float32)}), num_rounds=20)
    assert floors[-1] == pytest.approx([0.5 * 610 / 720, 0.5 * 110 / 720])


def test_fleet_without_examples_is_not_waited_for() -> None:
    grid = ScriptedGrid([lambda m: answer(m, num_examples=0)] * 2)
    with pytest.raises(SchedulingError, match="no client has examples"):
        start(FedAvg(), [], model({"w": np.zeros(3, np.float32)}), grid=grid, wait_s=60.0)
    assert grid.now_s < 60.0


# -- policies ------------------------------------------------------------------------------------


class Broken(SchedulingPolicy):
    """Selects by a rule that is none."""

    answer: Callable[[RoundContext], np.ndarray[Any, Any]]

    def _select(self, context: RoundContext) -> np.ndarray[Any, Any]:
        return type(self).answer(context)


def fails(context: RoundContext) -> np.ndarray[Any, Any]:
    raise ZeroDivisionError("by 0")


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        (lambda context: np.ones_like(context.available), "broken selected 3 arms, at most 2"),
        (lambda context: ~context.available, r"broken selected \w+, which is not available"),
        (fails, "the policy broken raised ZeroDivisionError: by 0"),
        (lambda context: np.array([0, 1]), r"what broken selects has shape \(2,\), must be \(3,\)"),
        (lambda context: np.arange(3), "what broken selects is int64, must be bool"),
        (lambda context: None, "what broken selects is a NoneType, must be a numpy array"),
    ],
)
def test_policy_that_breaks_its_promise_is_named(
    rule: Callable[[RoundContext], np.ndarray[Any, Any]], error: str
) -> None:
    grid = ScriptedGrid([answer] * 3)
    grid.away = {102}
    policy = type("Broken", (Broken,), {"answer": staticmethod(rule), "name": "broken"})
    with pytest.raises(SchedulingError, match=error):
        start(
            FedAvg(),
            [],
            model({"w": np.zeros(3, np.float32)}),
            grid=grid,
            policy=policy,
            num_selected=2,
        )
