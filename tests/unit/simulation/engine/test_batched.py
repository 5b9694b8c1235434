"""The batched trainer against the message path: the same rounds, and not one bit apart."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from image_files import write_cifar10, write_idx_dataset
from safetensors.numpy import save_file

from flower_scheduling.client.learning.models import create_model
from flower_scheduling.client.learning.training import evaluate, train_logistic
from flower_scheduling.client.wire.arrays import decode_array
from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.engine import batched
from flower_scheduling.simulation.engine.batched import TrainingCurve, compare_batched, run_batched
from flower_scheduling.simulation.engine.runner import Simulation
from flower_scheduling.simulation.settings import SCENARIOS, SimulationConfig
from flower_scheduling.strategies.flower import RoundRecord

SMALL = {"partitioner": "iid:200", "num_clients": 6, "num_selected": 3, "eval_every": 10}


def make_config(scenario: str = "ideal", **settings: Any) -> SimulationConfig:
    flags = {name.replace("_", "-"): value for name, value in settings.items()}
    preset = {**SCENARIOS[scenario], "scenario": scenario, "target-accuracy": 0.0, "seed": 3}
    return SimulationConfig.from_mapping({**preset, **flags})


def by_messages(config: SimulationConfig) -> tuple[list[RoundRecord], dict[str, np.ndarray]]:
    models: list[ArrayRecord] = []

    def keep_last(record: RoundRecord, arrays: ArrayRecord) -> None:
        models[:] = [arrays]

    records = Simulation(config).run([keep_last]).records
    return records, {key: decode_array(array) for key, array in models[0].items()}


def assert_equal(config: SimulationConfig) -> tuple[list[RoundRecord], TrainingCurve]:
    """Run both ways and compare round for round."""
    records, weights = by_messages(config)
    rounds = []
    curve = run_batched(
        config,
        lambda t, selected, completed, time_s: rounds.append(
            (t, np.flatnonzero(selected).tolist(), np.flatnonzero(completed).tolist(), time_s)
        ),
    )
    for record, (t, selected, completed, time_s) in zip(records, rounds, strict=True):
        expected = [arm for arm, ok in zip(record.selected, record.completed, strict=True) if ok]
        assert (t, selected, completed) == (record.round, record.selected, expected)
        assert time_s == record.time_s
    assert curve.selections.sum() == sum(len(record.selected) for record in records)
    assert curve.failures.sum() == sum(record.completed.count(False) for record in records)

    evaluated = [record for record in records if record.accuracy is not None]
    assert curve.rounds.tolist() == [record.round for record in evaluated]
    assert curve.time_s.tolist() == [record.time_s for record in evaluated]
    # One image of 10,000 may be decided by rounding.
    assert curve.accuracy == pytest.approx([r.accuracy for r in evaluated], abs=1.5e-4)
    losses = [np.nan if r.loss is None else r.loss for r in evaluated]
    assert curve.loss == pytest.approx(losses, abs=1e-5, rel=1e-5, nan_ok=True)
    assert curve.weights.keys() == weights.keys()
    for key, expected_weights in weights.items():
        assert curve.weights[key] == pytest.approx(expected_weights, abs=1e-6)
    return records, curve


@pytest.mark.parametrize(
    ("scenario", "strategy"),
    [
        ("ideal", "cs-ucb"),
        ("non-ideal", "cs-ucb-q"),
        ("ideal", "random"),
        ("non-ideal", "round-robin"),
        pytest.param("non-ideal", "cs-ucb", marks=pytest.mark.slow),
        pytest.param("ideal", "cs-ucb-q", marks=pytest.mark.slow),
        pytest.param("non-ideal", "random", marks=pytest.mark.slow),
        pytest.param("ideal", "round-robin", marks=pytest.mark.slow),
    ],
)
def test_equals_the_message_path(scenario, strategy):
    _, curve = assert_equal(make_config(scenario, strategy=strategy, rounds=300))
    assert curve.accuracy[-1] > 0.4


@pytest.mark.parametrize(
    ("scenario", "partitioner"),
    [
        pytest.param("ideal", "iid:300", marks=pytest.mark.slow),
        ("non-ideal", "by-label:1000,200"),
    ],
)
def test_clients_report_the_same_local_accuracy(scenario, partitioner):
    settings = {"strategy": "local-accuracy", "rounds": 200, "failure_probability": "0.05"}
    assert_equal(make_config(scenario, partitioner=partitioner, **settings))


def test_the_policy_gets_the_same_sketches():
    more = {"partitioner": "dirichlet:0.1", "local_steps": 5, "failure_probability": "0.1"}
    config = make_config(strategy="delay-het", rounds=150, num_selected=4, tau_max_s=0.6, **more)
    records, curve = assert_equal(config)
    assert any(False in record.completed for record in records)
    assert curve.selections.min() < curve.selections.mean() / 2, "not as without any sketch"


@pytest.mark.parametrize("late", ["abandon", "busy"])
def test_clients_report_the_same_loss(late):
    settings = {"partitioner": "by-label:1000,200", "late": late, "tau_max_s": 0.4}
    config = make_config("non-ideal", strategy="oort", rounds=200, num_spare=0, **settings)
    records, _ = assert_equal(config)
    assert any(False in record.completed for record in records)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "oort", "num_selected": 4},  # which asks 1.3 N
        {"strategy": "random", "num_spare": 2, "failure_probability": "0.2", "late": "busy"},
        {"strategy": "cs-ucb-q", "num_spare": 2, "failure_probability": "0.2", "tau_max_s": 0.3},
        {"strategy": "cs-ucb-q-adaptive", "num_spare": 2, "fairness": "equal:0.3"},
    ],
)
def test_spare_clients_are_the_same(settings):
    small = {**SMALL, "rounds": 120, "num_clients": 10, "partitioner": "dirichlet:0.3"}
    records, _ = assert_equal(make_config(**{**small, **settings}))
    assert sum(bool(record.late) for record in records) > 30


BY_SPEED = {"local_work": "equal-time", "local_steps": 8, "learning_rate": 0.01}


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "random"},
        {"strategy": "cs-ucb-q-loss", "fairness": "equal:0.2", "failure_probability": "0.1"},
        {"strategy": "random", "num_spare": 2, "tau_max_s": 0.6, "late": "busy"},
    ],
)
def test_work_by_speed_is_the_same(settings):
    small = {**SMALL, "rounds": 120, "num_clients": 10, "partitioner": "dirichlet:0.3"}
    records, _ = assert_equal(make_config(**{**small, **BY_SPEED, **settings}))
    results = [result for record in records for result in record.results]
    assert len({result.steps_asked for result in results}) > 3
    assert all(each.steps_done in (each.steps_asked, None) for each in results)


@pytest.mark.parametrize(
    "settings",
    [
        {"failure_probability": "0.3", "rounds": 200},
        {"local_steps": 4, "batch_size": 7, "learning_rate": 0.01},
        {"batch_size": 1, "partitioner": "dirichlet:0.3"},
        {"num_clients": 1, "num_selected": 1, "partitioner": "iid"},
        {"beta": 0.1, "truncate": False, "fairness": "proportional:1"},
        # Sizes become known one by one, and floors with them; some rounds have nobody.
        {"availability": "0.2", "partitioner": "sizes:900,50,100,20,300,80", "fairness": "none"},
        {"tau_max_s": 0.12, "late": "abandon", "strategy": "random"},
        {"tau_max_s": 0.12, "late": "busy", "strategy": "random", "failure_probability": "0.1"},
        {"slowdowns": "2:20:30,5:40:0.1", "payload_bits": "model"},
        {"compute_law": "lognormal", "compute_shape": 2.0, "tau_max_s": 0.4},
        {"tau_max_s": 1e6, "slowdowns": "2:20:1000000"},  # a round ends after an hour at most
    ],
    ids=lambda settings: ",".join(map(str, settings)),
)
def test_equals_the_message_path_whatever_the_settings(settings):
    config = make_config(**{**SMALL, "strategy": "cs-ucb-q", "rounds": 80, **settings})
    assert_equal(config)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "cs-ucb-q-loss", "buffer_size": 3, "late": "busy", "tau_max_s": 0.4},
        {"strategy": "proportional-fair", "partitioner": "by-label:1000,200"},
        {"strategy": "cs-ucb-q-adaptive", "max_staleness": 1, "staleness_discount": 0.5},
        {"strategy": "e3cs", "failure_probability": "0.1", "even_weights": "false"},
        {"strategy": "local-accuracy", "buffer_size": 6, "availability": "0.3"},
        {"strategy": "delay-het", "tau_max_s": 0.4, "partitioner": "by-label:1000,200"},
        {"strategy": "random", "learning_rate": 0.5, "late": "abandon", "tau_max_s": 0.2},
        {**BY_SPEED, "strategy": "proportional-fair", "least_work": 0.1},
        {**BY_SPEED, "strategy": "cs-ucb-q-loss", "tau_max_s": 0.5, "most_work": 2.0},
    ],
    ids=lambda settings: settings["strategy"] + settings.get("local_work", ""),
)
def test_buffered_steps_equal_the_message_path(settings):
    defaults = {"rounds": 120, "mode": "buffered", "eval_every": 10, "fairness": "equal:0.1"}
    config = make_config("non-ideal", **{**defaults, **settings})
    records, weights = by_messages(config)
    ends: list[tuple[int, int, bool]] = []
    times: dict[int, float] = {}

    def note(t, selected, completed, time_s):
        ends.append((t, *np.flatnonzero(selected).tolist(), bool(completed.any())))
        times[t] = time_s

    curve = run_batched(config, note)
    assert ends == [(r.round, one.arm, one.completed) for r in records for one in r.results]
    assert times == {record.round: record.time_s for record in records if record.results}
    evaluated = [record for record in records if record.accuracy is not None]
    assert curve.time_s.tolist() == [record.time_s for record in evaluated]
    assert curve.accuracy == pytest.approx([r.accuracy for r in evaluated], abs=1.5e-4)
    for key, expected_weights in weights.items():
        assert curve.weights[key] == pytest.approx(expected_weights, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_other_models_equal_the_message_path(model, mode):
    more = {"strategy": "oort" if mode == "rounds" else "proportional-fair", "mode": mode}
    settings = {**more, "local_steps": 3, "learning_rate": 0.05, "failure_probability": "0.1"}
    rounds = 20 if mode == "rounds" else 60  # a step has half of the updates, of any age
    config = make_config(**{**SMALL, **settings}, model=model, rounds=rounds)
    _, weights = by_messages(config)
    curve = run_batched(config)
    records = Simulation(config).run().records
    assert curve.time_s.tolist() == [r.time_s for r in records if r.accuracy is not None]
    assert curve.failures.sum() > 0
    assert curve.accuracy == pytest.approx(
        [r.accuracy for r in records if r.accuracy is not None], abs=1.5e-4
    )
    assert curve.accuracy[-1] > 0.2
    assert curve.weights.keys() == weights.keys()
    for key, expected in weights.items():
        assert curve.weights[key] == pytest.approx(expected, abs=1e-6)


def test_diverged_modules_are_left_out():
    settings = {"model": "cnn", "learning_rate": 1e12, "local_steps": 2, "strategy": "random"}
    _, curve = assert_equal(make_config(**{**SMALL, **settings}, rounds=10))
    assert curve.failures.sum() > 0


@pytest.mark.parametrize("dataset", ["fashion-mnist", "cifar10"])
def test_other_data_sets_equal_the_message_path(dataset, tmp_path, monkeypatch):
    write_idx_dataset(tmp_path)
    write_cifar10(tmp_path, monkeypatch)
    small = {**SMALL, "partitioner": "iid:40", "data_dir": str(tmp_path), "rounds": 20}
    _, curve = assert_equal(make_config(dataset=dataset, learning_rate=0.01, **small))
    assert curve.accuracy[-1] > curve.accuracy[0] or curve.accuracy[-1] > 0.5


def test_floors_follow_the_sizes_that_are_known():
    settings = {
        **SMALL,
        "availability": "0.3",
        "partitioner": "sizes:900,50,100,20,300,80",
        "fairness": "proportional:0.3",
        "beta": 1.0,  # the queues alone decide
    }
    records, _ = assert_equal(make_config(**settings, strategy="cs-ucb-q", rounds=120))
    assert not any(record.absent for record in records), "in the paper all are owed from round 1 on"


def test_diverged_clients_are_left_out():
    # Small enough at first, then beyond what is believed of some clients and not of others.
    settings = {"learning_rate": 6e14, "local_steps": 2, "strategy": "random", "rounds": 40}
    records, curve = assert_equal(make_config(**{**SMALL, **settings}))
    assert 0 < curve.failures.sum() < curve.selections.sum()
    assert any(0 < record.completed.count(True) < 3 for record in records)


def test_a_run_waits_for_diverged_clients_where_no_other_is_there():
    settings = {"learning_rate": 6e14, "local_steps": 2, "strategy": "random", "rounds": 60}
    small = {**SMALL, "num_clients": 3, "num_selected": 2, "partitioner": "iid:100"}
    config = make_config(**{**small, **settings})
    records, _ = assert_equal(config)
    waits_s = [b.time_s - b.round_s - a.time_s for a, b in pairwise(records)]
    assert max(waits_s) > 0.5, "for a client that is left out"
    assert any(len(record.left_out) == 2 for record in records)
    buffered = config.changed(mode="buffered", learning_rate=1e18, rounds=6)  # of all, always
    records, _ = by_messages(buffered)
    times: dict[int, float] = {}
    run_batched(buffered, lambda t, selected, completed, time_s: times.update({t: time_s}))
    assert times == {record.round: record.time_s for record in records if record.results}
    assert records[-1].time_s > 60.0


def test_nobody_in_time_makes_no_step():
    config = make_config(**SMALL, failure_probability="1", rounds=20)
    _, curve = assert_equal(config)
    assert curve.time_s[-1] == pytest.approx(20 * config.tau_max_s)
    assert not curve.weights["weight"].any()
    assert (curve.failures == curve.selections).all()


def test_a_run_stops_at_its_target():
    records, curve = assert_equal(
        make_config(**SMALL, learning_rate=0.05, target_accuracy=0.5, rounds=500)
    )
    assert len(records) == curve.rounds[-1] < 500
    assert curve.accuracy[-1] >= 0.5 > curve.accuracy[:-1].max()


def test_a_run_begins_with_a_given_model(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    weight = np.random.default_rng(0).normal(scale=0.05, size=(10, 784)).astype(np.float32)
    save_file({"weight": weight, "bias": np.zeros(10, dtype=np.float32)}, path)
    settings = {**SMALL, "strategy": "local-accuracy", "rounds": 50}
    assert_equal(make_config(**settings, initial_model=str(path)))


def test_the_final_weights_have_the_final_accuracy(mnist):
    curve = run_batched(make_config(rounds=100))
    model = create_model("logistic")
    for key, view in model.views.items():
        view[...] = curve.weights[key]
    loss, accuracy = evaluate(model, mnist.test_images, mnist.test_labels)
    assert curve.accuracy[-1] == pytest.approx(accuracy, abs=1.5e-4)
    assert curve.loss[-1] == pytest.approx(loss, rel=1e-5)


def test_the_final_model_on_the_data_of_single_clients(mnist):
    """Clients whose labels no other client trains are not recognised without them."""
    config = make_config(
        **{**SMALL, "num_selected": 2, "partitioner": "own-labels:2,5", "rounds": 60},
        strategy="cs-ucb",
        availability="0,0,1,1,1,1",
    )
    found = batched.client_accuracies(run_batched(config), np.arange(6))
    assert found[:2].tolist() == [0.0, 0.0]
    assert (found[2:] > 0.5).all()


def test_evaluating_several_models_at_once_changes_nothing(monkeypatch):
    config = make_config(**{**SMALL, "eval_every": 1}, rounds=20)
    together = run_batched(config)
    monkeypatch.setattr(batched, "_MODELS_PER_EVALUATION", 1)
    alone = run_batched(config)
    assert together.rounds.tolist() == alone.rounds.tolist() == list(range(1, 21))
    assert together.accuracy == pytest.approx(alone.accuracy, abs=1.5e-4)
    assert together.loss == pytest.approx(alone.loss, rel=1e-5)


def test_training_together_equals_training_apart(mnist):
    pixels, labels = mnist.train_images.numpy().reshape(-1, 784), mnist.train_labels.numpy()
    rng = np.random.default_rng(0)
    batches = rng.integers(len(labels), size=(3, 4, 2))
    weight = rng.normal(scale=0.1, size=(4, 10, 784)).astype(np.float32)
    bias = rng.normal(scale=0.1, size=(4, 10)).astype(np.float32)
    apart_weight, apart_bias = weight.copy(), bias.copy()
    loss = train_logistic(weight, bias, pixels, labels, batches, 0.1, 0.5)
    for k in range(4):
        one = slice(k, k + 1)
        (apart,) = train_logistic(
            apart_weight[one], apart_bias[one], pixels, labels, batches[:, one], 0.1, 0.5
        )
        assert apart == loss[k]
    np.testing.assert_array_equal(weight, apart_weight)
    np.testing.assert_array_equal(bias, apart_bias)


def test_comparison_is_its_single_runs():
    config = make_config(**SMALL, rounds=30)
    curves = compare_batched(config, ["random", "cs-ucb"], [0, 5])
    assert list(curves) == ["random", "cs-ucb"]
    assert [curve.config.seed for curve in curves["cs-ucb"]] == [0, 5]
    single = run_batched(make_config(**SMALL, rounds=30, strategy="cs-ucb", seed=5))
    np.testing.assert_array_equal(curves["cs-ucb"][1].weights["weight"], single.weights["weight"])
    assert curves["cs-ucb"][1].time_s.tolist() == single.time_s.tolist()
    assert curves["random"][1].time_s.tolist() != single.time_s.tolist()


@pytest.mark.parametrize(
    ("policies", "seeds", "key"),
    [(["random", "cs-ubc"], [0], "strategy"), (["random"], [0, -1], "seed")],
)
def test_a_comparison_refuses_before_it_runs(monkeypatch, policies, seeds, key):
    monkeypatch.setattr(batched, "run_batched", lambda config: pytest.fail("it ran"))
    with pytest.raises(ConfigError, match=f"^{key} = "):
        compare_batched(make_config(**SMALL), policies, seeds)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("model", "resnet18", "one of logistic, mlp, cnn"),
        ("aggregation", "fedadam", "fedavg"),
        ("aggregation-option", "fraction-evaluate=0.5", "empty"),
        ("client-eval-every", 5, "0"),
        ("late-updates", "use", "drop"),
        ("tau-max-s", "auto", "a number"),
        ("joins", "3:20", "empty"),
        ("wait-s", 1.0, "0"),
        ("run-dir", "runs/x", "empty"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(key, value, allowed):
    spare = {"num-spare": 1} if key == "late-updates" else {}
    config = make_config(**SMALL, **spare, **{key: value})
    with pytest.raises(ConfigError, match=f"^{key} = .*: must be {allowed}.* in batched training"):
        run_batched(config)


def test_what_a_simulation_refuses_is_refused():
    with pytest.raises(ConfigError, match=r"^fairness = "):
        run_batched(make_config(**SMALL, strategy="cs-ucb-q", fairness="equal:0.9"))
