"""Studies: totals by hand, common draws, chunks."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest

import flower_scheduling.simulation.engine.study as study
from flower_scheduling.errors import ConfigError, UnknownPolicyError
from flower_scheduling.simulation.engine.study import Contender, StudyResult, drops, run_study
from flower_scheduling.simulation.environments.paper import Environment
from flower_scheduling.strategies import RoundContext

SMALL = {"num_selected": 2, "tau_max_s": 0.3, "num_rounds": 30, "num_seeds": 5, "seed": 3}


def environment(**params):
    return partial(Environment, **{"num_arms": 4, **params})


def test_totals_equal_a_plain_recount():
    build = environment(availability=0.5, failure_probability=0.2)
    result = run_study(["round-robin"], build, checkpoints=[10, 30], **SMALL)["round-robin"]
    env = build(batch_shape=(5,), seed=np.random.SeedSequence(3, spawn_key=(0, 0)))
    total, failures, counts, at_10 = np.zeros(5), np.zeros(5), np.zeros((5, 4)), np.zeros(5)
    turn = [0] * 5
    for t in range(1, 31):
        draw = env.round(t)
        times = draw.round_trip_time_s
        for row in range(5):
            order = [(turn[row] + step) % 4 for step in range(4)]
            served = [arm for arm in order if draw.available[row, arm]][:2]
            if served:
                turn[row] = (served[-1] + 1) % 4
                total[row] += max(min(times[row, arm], 0.3) for arm in served)
            failures[row] += sum(times[row, arm] > 0.3 for arm in served)
            counts[row, served] += 1
        if t == 10:
            at_10 = total.copy()
    assert result.total_time_s == pytest.approx(total, abs=1e-12)
    assert result.time_s == pytest.approx(np.stack([at_10, total], axis=1), abs=1e-12)
    assert result.failures.tolist() == failures.tolist()
    assert result.play_count.tolist() == counts.tolist()
    assert failures.sum() > 0


@pytest.mark.parametrize("early_s", [0.05, 0.3])
def test_failures_take_until_they_are_known_and_are_told_as_ever(early_s):
    class Early(Environment):
        def round(self, t):
            draw = super().round(t)
            return replace(draw, failure_s=np.where(draw.failed, early_s, np.nan))

    build = environment(failure_probability=0.4)
    policies = ["random", "cs-ucb", "cs-ucb-q-adaptive"]
    whole = run_study(policies, build, **SMALL)
    early = run_study(policies, partial(Early, **build.keywords), **SMALL)
    for name in policies:
        assert np.array_equal(early[name].play_count, whole[name].play_count)
        assert np.array_equal(early[name].failures, whole[name].failures)
        assert whole[name].failures.sum() > 0
        took_s, most_s = early[name].total_time_s, whole[name].total_time_s
        assert (took_s < most_s).all() if early_s < 0.3 else np.array_equal(took_s, most_s)


def test_a_round_of_failures_alone_takes_as_long_as_the_last_of_them():
    class Failing(Environment):
        def round(self, t):
            draw = super().round(t)
            return replace(draw, failure_s=np.broadcast_to([0.1, 0.2, 0.1, 0.1], draw.failed.shape))

    build = partial(Failing, num_arms=4, failure_probability=1.0)
    (found,) = run_study(["random"], build, **(SMALL | {"num_selected": 4})).values()
    assert found.total_time_s == pytest.approx([30 * 0.2] * 5)


def test_checkpoints_equal_a_plain_recount():
    """The same study up to each checkpoint, with the sum of the largest means besides."""
    build = environment(availability=0.5, failure_probability=0.2)
    result = run_study(["cs-ucb-q"], build, checkpoints=[1, 10, 30], true_means=True, **SMALL)
    result = result["cs-ucb-q"]
    for column, rounds in enumerate([1, 10, 30]):
        shorter = run_study(["cs-ucb-q"], build, **(SMALL | {"num_rounds": rounds}))["cs-ucb-q"]
        assert np.array_equal(result.time_s[:, column], shorter.total_time_s)
        assert np.array_equal(result.failures_at[:, column], shorter.failures)
        assert np.array_equal(result.play_count_at[:, column], shorter.play_count)
        assert (shorter.expected_time_s, shorter.pseudo_time_s) == (None, None)
        assert shorter.time_s.shape == (5, 0)
        assert shorter.play_count_at.shape == (5, 0, 4)
    (env,) = drops(build, num_seeds=5, seed=3)
    assert np.array_equal(result.expected_time_s, env.expected_time_s(0.3))


@pytest.mark.parametrize("slow", [{}, {"slow_from_round": 12, "slow_factor": [1.0, 3.0, 1.0, 0.5]}])
def test_pseudo_time_equals_a_plain_recount(slow):
    build = environment(availability=0.5, **slow)
    params = {"checkpoints": list(range(1, 31)), "true_means": True}
    result = run_study(["round-robin"], build, **params, **SMALL)["round-robin"]
    (env,) = drops(build, num_seeds=5, seed=3)
    played = np.diff(result.play_count_at, axis=1, prepend=0)  # (seed, round, arm)
    pseudo_s = np.zeros(5)
    for t in range(1, 31):
        means = env.expected_time_s(0.3, t)
        for row in range(5):
            pseudo_s[row] += max(
                (means[row, arm] for arm in range(4) if played[row, t - 1, arm]), default=0.0
            )
        assert result.pseudo_time_s[:, t - 1] == pytest.approx(pseudo_s)


def test_true_means_change_nothing_else():
    build = environment(availability=0.5)
    plain = run_study(["cs-ucb"], build, checkpoints=[30], **SMALL)["cs-ucb"]
    more = run_study(["cs-ucb"], build, checkpoints=[30], true_means=True, **SMALL)["cs-ucb"]
    for name in ("total_time_s", "failures", "play_count", "time_s", "play_count_at"):
        assert np.array_equal(getattr(plain, name), getattr(more, name))


def test_a_policy_does_not_depend_on_who_else_takes_part():
    alone = run_study(["cs-ucb"], environment(), **SMALL)["cs-ucb"]
    among = run_study(["random", "cs-ucb"], environment(), **SMALL)["cs-ucb"]
    assert np.array_equal(alone.total_time_s, among.total_time_s)


def test_chunks_do_not_depend_on_the_number_of_processes(monkeypatch):
    monkeypatch.setattr(study, "SEEDS_PER_CHUNK", 3)
    serial = run_study(["cs-ucb-q"], environment(), **SMALL)["cs-ucb-q"]
    assert serial.play_count.shape == (5, 4)
    assert len(np.unique(serial.total_time_s)) == 5  # chunks differ
    monkeypatch.undo()
    params = SMALL | {"num_seeds": study.SEEDS_PER_CHUNK + 1, "num_rounds": 2}
    params |= {"checkpoints": [1, 2], "true_means": True}
    one = run_study(["random"], environment(), **params)["random"]
    two = run_study(["random"], environment(), **params, num_processes=2)["random"]
    for spec in fields(StudyResult):
        assert np.array_equal(getattr(one, spec.name), getattr(two, spec.name))
    chunks = list(drops(environment(), num_seeds=study.SEEDS_PER_CHUNK + 1, seed=3))
    assert [env.batch_shape for env in chunks] == [(study.SEEDS_PER_CHUNK,), (1,)]
    means = np.concatenate([env.expected_time_s(0.3) for env in chunks])
    assert np.array_equal(one.expected_time_s, means)


def test_parameters_may_depend_on_the_environment():
    contenders = {
        "nearest": Contender(
            "oracle", from_environment=lambda env: {"expected_time_s": env.distance_m}
        ),
        "floors": Contender("cs-ucb-q", {"min_participation": [0.1, 0.1, 0.1, 0.1]}),
    }
    results = run_study(contenders, environment(), **SMALL)
    assert list(results) == ["nearest", "floors"]
    assert (np.sort(results["nearest"].play_count, axis=1) == [0, 0, 30, 30]).all()


def test_late_joiners_owe_nothing_before_they_join(monkeypatch):
    seen = []
    monkeypatch.setattr(
        study, "RoundContext", lambda *args: seen.append(RoundContext(*args)) or seen[-1]
    )
    run_study(["cs-ucb-q"], environment(joins_at_round=[1, 1, 1, 20]), **SMALL)
    assert not seen[0].member[:, 3].any()
    assert seen[0].member[:, :3].all()


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("num_rounds", 0),
        ("num_seeds", 0),
        ("tau_max_s", -1.0),
        ("num_selected", 0),
        ("num_processes", 0),
        ("seed", -1),
        ("checkpoints", [0]),
        ("checkpoints", [2, 1]),
        ("checkpoints", [31]),
    ],
)
def test_wrong_arguments(param, value):
    with pytest.raises(ConfigError, match=param):
        run_study(["random"], environment(), **(SMALL | {param: value}))


@pytest.mark.parametrize(("param", "value"), [("num_seeds", 0), ("seed", -1)])
def test_wrong_arguments_of_drops(param, value):
    with pytest.raises(ConfigError, match=param):
        list(drops(environment(), **({"num_seeds": 1} | {param: value})))


def test_unknown_policy():
    with pytest.raises(UnknownPolicyError):
        run_study(["best"], environment(), **SMALL)
