"""Draws of the environment: reproducible, independent of order, as configured."""

from __future__ import annotations

import numpy as np
import pytest

from flower_scheduling.client.link.model import ComputeModel, LinkModel
from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.environments.paper import Environment

FIELDS = ("available", "download_s", "compute_s", "upload_s", "failed")


def same(one, other):
    return all(np.array_equal(getattr(one, field), getattr(other, field)) for field in FIELDS)


def test_rounds_do_not_depend_on_the_order_of_asking():
    params = {"num_arms": 3, "batch_shape": (2,), "availability": 0.5, "failure_probability": 0.1}
    forward, backward = Environment(**params, seed=1), Environment(**params, seed=1)
    rounds = [1, 2, 256, 257, 600]  # more than one block
    draws = [forward.round(t) for t in rounds]
    for t, draw in zip(rounds[::-1], draws[::-1], strict=True):
        assert same(backward.round(t), draw)
    assert not same(forward.round(1), forward.round(2))
    assert not same(Environment(**params, seed=2).round(1), draws[0])


def test_a_spawned_seed_is_not_consumed():
    root = np.random.SeedSequence(5)
    assert same(
        Environment(num_arms=3, seed=root).round(1), Environment(num_arms=3, seed=root).round(1)
    )
    assert same(
        Environment(num_arms=3, seed=5).round(1), Environment(num_arms=3, seed=root).round(1)
    )


def test_settings_do_not_move_other_draws():
    plain = Environment(num_arms=4, seed=3).round(7)
    other = Environment(num_arms=4, seed=3, availability=0.3, failure_probability=0.3).round(7)
    assert np.array_equal(plain.download_s, other.download_s)
    assert np.array_equal(plain.compute_s, other.compute_s)


def test_round_trip_is_the_sum_and_infinite_where_failed():
    draw = Environment(num_arms=50, failure_probability=0.5, seed=1).round(3)
    total = draw.download_s + draw.compute_s + draw.upload_s
    assert draw.failed.any()
    assert not draw.failed.all()
    assert np.array_equal(draw.round_trip_time_s, np.where(draw.failed, np.inf, total))


def test_draws_are_read_only():
    draw = Environment(num_arms=2).round(1)
    for field in FIELDS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(draw, field)[0] = 1


def test_late_joiners_are_neither_members_nor_available():
    env = Environment(num_arms=3, batch_shape=(2,), joins_at_round=[1, 3, 300])
    assert env.round(2).available.tolist() == [[True, False, False]] * 2
    assert env.round(3).member.tolist() == [[True, True, False]] * 2
    assert env.round(299).available.tolist() == [[True, True, False]] * 2
    assert env.round(300).available.all()
    assert Environment(num_arms=3).round(1).member is None


def test_drift_multiplies_every_part_from_its_round_on():
    plain = Environment(num_arms=2, seed=1)
    drift = Environment(num_arms=2, seed=1, slow_from_round=[4, 1], slow_factor=[10.0, 1.0])
    assert np.array_equal(drift.round(3).round_trip_time_s, plain.round(3).round_trip_time_s)
    ratio = drift.round(4).round_trip_time_s / plain.round(4).round_trip_time_s
    assert ratio == pytest.approx([10.0, 1.0])


def test_distances_given_or_drawn():
    given = Environment(num_arms=2, batch_shape=(3,), distance_m=[100.0, 500.0])
    assert given.distance_m.tolist() == [[100.0, 500.0]] * 3
    drawn = Environment(num_arms=2, batch_shape=(3,)).distance_m
    assert drawn.shape == (3, 2)
    assert len(np.unique(drawn)) == 6
    assert ((drawn > 0) & (drawn <= 500)).all()


def test_models_are_used():
    link = LinkModel(download_bits=1e-6, upload_bits=1e-6)
    draw = Environment(num_arms=2, link=link, compute=ComputeModel(samples_per_round=200)).round(1)
    assert (draw.compute_s > 3.0).all()  # 200 samples at no more than 50 per second
    assert (draw.download_s < 1e-6).all()


def test_nobody_available_or_everybody_failing():
    assert not Environment(num_arms=3, availability=0.0).round(1).available.any()
    assert Environment(num_arms=3, failure_probability=1).round(1).failed.all()
    mixed = Environment(num_arms=3, availability=[1.0, 0.0, 1.0]).round(9)
    assert mixed.available.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("num_arms", 0),
        ("seed", -1),
        ("seed", 1.5),
        ("availability", 1.5),
        ("availability", [0.5]),
        ("availability", "0.5"),
        ("failure_probability", np.nan),
        ("joins_at_round", 0),
        ("slow_from_round", [0, 1]),
        ("slow_factor", 0.0),
        ("distance_m", [100.0]),
        ("distance_m", [100.0, 0.0]),
        ("distance_m", [100.0, np.inf]),
        ("batch_shape", (0,)),
    ],
)
def test_wrong_parameters(param, value):
    with pytest.raises(ConfigError, match=param):
        Environment(**{"num_arms": 2, param: value})


@pytest.mark.parametrize("t", [0, -1, 1.0, True])
def test_wrong_round(t):
    with pytest.raises(ConfigError):
        Environment(num_arms=2).round(t)


def test_true_means_of_the_paper():
    """Of 20 clients the fastest takes 0.07 s on average and the slowest 0.31 s (deadline 5 s)."""
    means = Environment(num_arms=20, batch_shape=(100,), seed=1).expected_time_s(5.0)
    assert means.shape == (100, 20)
    # Standard errors over drops: 0.003 and 0.002.
    assert means.min(axis=1).mean() == pytest.approx(0.07, abs=0.01)
    assert means.max(axis=1).mean() == pytest.approx(0.31, abs=0.01)
    three = Environment(num_arms=3, distance_m=[450.0, 300.0, 150.0])
    assert three.expected_time_s(5.0) == pytest.approx([0.3047, 0.1807, 0.1110], abs=1e-4)


def test_true_means_know_of_failures_and_of_arms_that_slow_down():
    plain = Environment(num_arms=3, seed=4)
    means = plain.expected_time_s(5.0)
    failing = Environment(num_arms=3, seed=4, failure_probability=[0.0, 0.5, 1.0])
    assert failing.expected_time_s(5.0) == pytest.approx(
        [means[0], (means[1] + 5.0) / 2, 5.0], abs=1e-9
    )
    slow = Environment(
        num_arms=3, seed=4, slow_from_round=[10, 20, 5000], slow_factor=[3.0, 0.5, 9.0]
    )
    assert np.array_equal(slow.expected_time_s(5.0, 9), means)
    assert slow.expected_time_s(5.0, 20) == pytest.approx(
        [
            3 * plain.expected_time_s(5.0 / 3)[0],
            0.5 * plain.expected_time_s(10.0)[1],
            means[2],
        ]
    )
    with pytest.raises(ValueError, match="read-only"):
        means[0] = 1.0


@pytest.mark.parametrize("t", [1, 30])
def test_law_and_means_agree(t):
    env = Environment(
        num_arms=4,
        batch_shape=(2,),
        seed=4,
        failure_probability=[0.0, 0.1, 0.0, 0.2],
        slow_from_round=30,
        slow_factor=[1.0, 0.2, 4.0, 2.0],
    )
    survival, weight_s = env.time_law(5.0, t)
    assert survival.shape == (weight_s.size, 2, 4)
    assert np.tensordot(weight_s, survival, 1) == pytest.approx(
        env.expected_time_s(5.0, t), rel=1e-3
    )


@pytest.mark.parametrize("method", ["expected_time_s", "time_law"])
@pytest.mark.parametrize(("args", "key"), [((0.0,), "tau_max_s"), ((1.0, 0), "t")])
def test_wrong_arguments_of_the_law(method, args, key):
    with pytest.raises(ConfigError, match=key):
        getattr(Environment(num_arms=2), method)(*args)
