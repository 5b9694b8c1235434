"""Work by speed, in virtual time: what is asked for, how it counts, and what policies learn."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from factories import small_model
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
    FedMedian,
    FedXgbBagging,
    Strategy,
)

from flower_scheduling.client.wire.protocol import BASE_STEPS, LOCAL_STEPS, REQUEST
from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.engine.virtual_grid import VirtualGrid
from flower_scheduling.simulation.environments.paper import Environment, RoundDraw
from flower_scheduling.strategies.flower import LOGGER, RoundRecord, ScheduledStrategy

NUM_ARMS, BASE, LINK_S = 8, 20, 1.0


class Links:
    """At base work client k computes for k + 1 seconds, beside a second for its link."""

    def round(self, t: int) -> RoundDraw:
        nothing, there = np.zeros(NUM_ARMS), np.ones(NUM_ARMS, dtype=np.bool_)
        link_s = np.full(NUM_ARMS, LINK_S)
        return RoundDraw(there, link_s, np.arange(1.0, NUM_ARMS + 1), nothing, there & False)

    def slowdown(self, t: int) -> np.ndarray[Any, Any]:
        return np.ones(NUM_ARMS)


def stepping_app(*, silent: tuple[int, ...] = (), claims: int | None = None) -> ClientApp:
    """Make an app that adds 1 to its model in each local step, and tells how many it made."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arm = int(context.node_config["partition-id"])
        asked = message.content.get(REQUEST)
        steps = BASE
        if isinstance(asked, ConfigRecord) and arm not in silent:
            steps = int(asked[LOCAL_STEPS])  # type: ignore[arg-type]
        # A bit of its own, lest equal updates pass for copies.
        step = 1.0 + 1e-4 * arm
        arrays = {
            key: Array(np.float32(array.numpy() + step * steps))
            for key, array in message.content["arrays"].items()
        }
        metrics = MetricRecord({"num-examples": 10 + arm})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        if asked is not None and arm not in silent:
            told = steps if claims is None else claims
            content[REQUEST] = ConfigRecord({LOCAL_STEPS: told})
        return Message(content, reply_to=message)

    return app


def grid_of(app: ClientApp, environment: Any = None) -> VirtualGrid:
    nodes = [{"partition-id": arm, "name": f"client-{arm}"} for arm in range(NUM_ARMS)]
    return VirtualGrid(app, environment or Links(), nodes, {})


def build(
    records: list[RoundRecord],
    policy: Any = "random",
    strategy: Strategy | None = None,
    **options: Any,
) -> ScheduledStrategy:
    values: dict[str, Any] = {
        **{"num_selected": 3, "tau_max_s": 20.0, "wait_s": 0.0, "log_every_s": math.inf},
        **{"local_work": "equal-time", "local_steps": BASE, "fairness": "none"},
    }
    values |= options
    if values["local_work"] == "equal":
        del values["local_steps"]
    return ScheduledStrategy(
        strategy or FedAvg(fraction_evaluate=0.0),
        policy,
        hooks=[lambda record, arrays: records.append(record)],
        **values,
    )


def run(
    num_rounds: int = 60, app: ClientApp | None = None, **options: Any
) -> tuple[list[RoundRecord], list[float], ScheduledStrategy]:
    """Return the records, the model's first value after each round, and the strategy."""
    records: list[RoundRecord] = []
    values: list[float] = []
    strategy = build(records, **options)
    strategy.add_hook(lambda record, arrays: values.append(float(arrays["w"].numpy()[0])))
    strategy.start(grid_of(app or stepping_app()), small_model(), num_rounds=num_rounds)
    return records, values, strategy


MODES: dict[str, dict[str, Any]] = {
    "rounds": {},
    "spare": {"num_spare": 2},
    "late": {"num_spare": 2, "late_updates": "use"},
    "buffered": {"mode": "buffered", "buffer_size": 2},
    "buffered-auto": {"mode": "buffered", "buffer_size": 2, "tau_max_s": "auto"},
}


@pytest.mark.parametrize("mode", MODES)
def test_each_is_asked_for_what_fits_the_time_of_the_nth_fastest(mode: str) -> None:
    records, _, _ = run(**MODES[mode])
    results = [each for record in records[40:] for each in record.results]
    asked = {each.arm: each.steps_asked for each in results}
    assert len(asked) == NUM_ARMS
    # The third fastest takes 1 + 3 s at base work: of (4 - 1) s client k makes 3 BASE / (k + 1).
    fitting = {arm: max(math.floor(3 * BASE / (arm + 1) + 1e-9), BASE // 4) for arm in asked}
    assert asked == fitting
    assert all(each.steps_done == each.steps_asked for each in results)
    assert all(
        each.rtt_s == pytest.approx(LINK_S + (each.arm + 1) * each.steps_asked / BASE)
        for each in results
        if each.steps_asked is not None
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", [FedAvg, FedMedian])
def test_updates_of_any_number_of_steps_count_as_one_of_the_base_work(
    mode: str, strategy: type[Strategy]
) -> None:
    options = {**MODES[mode], "even_weights": False} if "buffered" in mode else MODES[mode]
    wrapped = strategy(fraction_evaluate=0.0)
    _, values, _ = run(strategy=wrapped, **options)
    change = np.diff(values)[20:]
    if "buffered" in mode:  # steps are as long as their weights are heavy
        change = change[:, np.newaxis].mean(axis=0)
    np.testing.assert_allclose(change, BASE, rtol=0.02)


def test_rounds_are_shorter() -> None:
    by_speed, _, _ = run()
    equal, _, _ = run(local_work="equal")
    assert sum(r.round_s for r in by_speed) < 0.65 * sum(r.round_s for r in equal)


@pytest.mark.parametrize("mode", MODES)
def test_policies_learn_times_of_the_base_work(mode: str) -> None:
    options = {**MODES[mode], "tau_max_s": 20.0}
    _, _, strategy = run(num_rounds=120, policy="random", **options)
    policy = strategy.policy
    assert (policy.play_count > 0).all()
    expected = 1.0 - (LINK_S + np.arange(1.0, NUM_ARMS + 1)) / 20.0
    order = [strategy.arms.names.index(f"client-{arm}") for arm in range(NUM_ARMS)]
    assert policy.mean_reward[order] == pytest.approx(expected)


def test_floors_and_their_queues_do_not_notice() -> None:
    options: dict[str, Any] = {"policy": "cs-ucb-q-adaptive", "fairness": "equal:0.2"}
    by_speed, _, one = run(num_rounds=150, **options)
    equal, _, other = run(num_rounds=150, local_work="equal", **options)
    assert [r.selected for r in by_speed] == [r.selected for r in equal]
    assert one.queues == other.queues


def test_an_app_that_does_not_read_the_key_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, LOGGER.name)
    records, _, _ = run(app=stepping_app(silent=tuple(range(NUM_ARMS))))
    said = [r.getMessage() for r in caplog.records if "local_work" in r.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("local_work='equal-time' has no effect: no client's reply says")
    equal, _, _ = run(local_work="equal", app=stepping_app(silent=tuple(range(NUM_ARMS))))
    assert [r.time_s for r in records] == [r.time_s for r in equal]
    assert all(each.steps_done is None for record in records for each in record.results)


def test_a_client_that_does_not_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, LOGGER.name)
    _, values, _ = run(app=stepping_app(silent=(5,)))
    said = [r.getMessage() for r in caplog.records if "local_work" in r.getMessage()]
    assert said == [
        "client-5 does not reply how many local steps it has made: local_work='equal-time' has no "
        "effect on it"
    ]
    np.testing.assert_allclose(np.diff(values)[20:], BASE, rtol=0.02)


def test_a_claim_of_few_steps_makes_no_update_huge() -> None:
    _, values, _ = run(app=stepping_app(claims=1))
    # Believed are BASE / 4 steps: no update counts for more than four times as much.
    assert max(np.diff(values)) <= 4 * 3 * BASE * 1.01
    records, _, _ = run(app=stepping_app(claims=10**9))
    assert all(each.steps_done == 10**9 for record in records for each in record.results)


def test_a_found_deadline_leaves_time_for_more_work() -> None:
    records, _, _ = run(policy="cs-ucb-adaptive", tau_max_s="auto", most_work=10.0)
    assert all(all(record.completed) for record in records)
    assert any((each.steps_asked or 0) > BASE for each in records[-1].results)


def test_requests_say_what_ordinary_work_is() -> None:
    seen: list[dict[str, Any]] = []
    app = stepping_app()

    def spy(message: Message, context: Context) -> Message:
        seen.append(dict(message.content[REQUEST]))
        return app(message, context)

    records: list[RoundRecord] = []
    build(records, "cs-ucb-q-loss").start(grid_of(spy), small_model(), num_rounds=4)  # type: ignore[arg-type]
    assert {each[BASE_STEPS] for each in seen} == {BASE}
    assert {each["report"] for each in seen} == {"train-loss"}


@pytest.mark.parametrize("mode", ["rounds", "late", "buffered"])
def test_a_resumed_run_goes_on_alike(mode: str) -> None:
    options = {**MODES[mode], "policy": "cs-ucb-q-adaptive"}
    environment = Environment(num_arms=NUM_ARMS, seed=3, failure_probability=0.1)
    whole: list[RoundRecord] = []
    grid = grid_of(stepping_app(), environment)
    build(whole, **options).start(grid, small_model(), num_rounds=50)
    first: list[RoundRecord] = []
    half = build(first, stop_when=lambda record: record.round == 21, **options)
    grid = grid_of(stepping_app(), environment)
    arrays = half.start(grid, small_model(), num_rounds=50).arrays
    rest: list[RoundRecord] = []
    again, grid_again = build(rest, **options), grid_of(stepping_app(), environment)
    again.load_state_dict(half.state_dict())
    grid_again.load_state_dict(grid.state_dict())
    again.start(grid_again, arrays, num_rounds=50)
    assert first + rest == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_work": "fair"}, "local_work = 'fair': must be equal or equal-time"),
        ({"local_steps": None}, "local_work = 'equal-time': needs ScheduledStrategy"),
        ({"local_steps": 0}, "local_steps = 0: must be an integer >= 1"),
        ({"least_work": 2.0}, "least_work = 2.0: must be"),
        (
            {"strategy": DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1.0, 1.0, 3)},
            "'equal-time': DifferentialPrivacyClientSideFixedClipping allows no update",
        ),
        (
            {"strategy": FedXgbBagging()},
            "local_work = 'equal-time': FedXgbBagging allows no update",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build([], **options)


def test_settings_say_it() -> None:
    asked = build([], most_work=2.0).asked_settings
    found = {key: asked[key] for key in ("local-work", "local-steps", "least-work", "most-work")}
    assert found == {
        "local-work": "equal-time",
        "local-steps": BASE,
        "least-work": 0.25,
        "most-work": 2.0,
    }
    assert "local-work" not in build([], local_work="equal").asked_settings
