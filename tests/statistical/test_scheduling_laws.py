"""What policies and environments do on average; fixed seeds, stated false-alarm rates."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest

from flower_scheduling.simulation.engine.study import Contender, drops, run_study
from flower_scheduling.simulation.environments.paper import Environment
from flower_scheduling.simulation.theory.optimum import best_fixed_set, mean_slowest_of_law
from flower_scheduling.simulation.theory.regret import (
    best_set_regret_s,
    literal_regret_s,
    pseudo_regret_s,
)
from flower_scheduling.strategies import RoundContext, RoundOutcome, build_policy

pytestmark = pytest.mark.statistical


def test_availability_and_failures_follow_their_probabilities():
    rounds, rows = 400, 100
    env = Environment(
        num_arms=3,
        batch_shape=(rows,),
        seed=1,
        availability=[0.9, 0.5, 0.1],
        failure_probability=0.05,
    )
    draws = [env.round(t) for t in range(1, rounds + 1)]
    available = np.stack([draw.available for draw in draws])
    failed = np.stack([draw.failed for draw in draws])
    n = rounds * rows
    for arm, alpha in enumerate([0.9, 0.5, 0.1]):
        # 6 sigma of a binomial, about 1e-9.
        assert abs(available[..., arm].mean() - alpha) < 6 * np.sqrt(alpha * (1 - alpha) / n)
        assert abs(failed[..., arm].mean() - 0.05) < 6 * np.sqrt(0.05 * 0.95 / n)
    # Independent of itself in the next round, of the other arms and of failing.
    centred = available - [0.9, 0.5, 0.1]
    scale = np.sqrt(np.outer([0.09, 0.25, 0.09], [0.09, 0.25, 0.09]))
    lagged = np.einsum("trk,trl->kl", centred[1:], centred[:-1]) / (n * scale)
    together = np.einsum("trk,trl->kl", centred, centred) / (n * scale)
    with_failure = np.einsum("trk,trl->kl", centred, failed - 0.05) / n / 0.05**0.5
    limit = 6 / np.sqrt(n)  # correlations of independent draws: 6 sigma, about 1e-9
    assert (abs(lagged) < limit).all()
    assert (abs(together - np.diag(np.diag(together))) < limit).all()
    assert (abs(with_failure) < limit).all()


def test_first_pass_of_cs_ucb_is_uniform_over_partitions():
    # K = 4, N = 2: six equally likely first pairs, the second round is the rest.
    rows = 60_000
    policy = build_policy(
        "cs-ucb",
        num_arms=4,
        num_selected=2,
        tau_max_s=1.0,
        rng=np.random.default_rng(2),
        batch_shape=(rows,),
    )
    everybody = np.ones((rows, 4), dtype=bool)
    first = policy.ask(RoundContext(1, everybody))
    policy.tell(first, RoundOutcome(np.full((rows, 4), 0.5), everybody))
    second = policy.ask(RoundContext(2, everybody))
    assert np.array_equal(second.mask, ~first.mask)
    for pair in itertools.combinations(range(4), 2):
        count = first.mask[:, list(pair)].all(axis=1).sum()
        # 6 sigma of a binomial, about 1e-9.
        assert abs(count - rows / 6) < 6 * np.sqrt(rows * 5 / 36)


def test_fill_up_of_the_first_pass_is_uniform():
    # K = 5, N = 3: the second round takes the two left and one of three at random.
    rows = 60_000
    policy = build_policy(
        "cs-ucb",
        num_arms=5,
        num_selected=3,
        tau_max_s=1.0,
        rng=np.random.default_rng(3),
        batch_shape=(rows,),
    )
    everybody = np.ones((rows, 5), dtype=bool)
    first = policy.ask(RoundContext(1, everybody))
    times = np.tile(np.linspace(0.1, 0.9, 5), (rows, 1))
    policy.tell(first, RoundOutcome(times, everybody))
    second = policy.ask(RoundContext(2, everybody))
    fill = second.mask & first.mask
    assert (fill.sum(axis=1) == 1).all()
    # Each arm is filled up with chance 3/5 * 1/3; 6 sigma, about 1e-9.
    assert (abs(fill.sum(axis=0) - rows / 5) < 6 * np.sqrt(rows * 4 / 25)).all()


def test_regret_of_cs_ucb_is_logarithmic_on_well_separated_arms():
    """Doubling the horizon adds a constant; a linear regret would double what it adds.

    Two arms of four per round, Bernoulli rewards with means 1, 1, 0.1, 0.1: the gap is large
    enough for the asymptotics to show after some hundred rounds.
    """
    rows, horizon = 100, 2000
    means = np.array([1.0, 1.0, 0.1, 0.1])
    rng = np.random.default_rng(4)
    policy = build_policy(
        "cs-ucb",
        num_arms=4,
        num_selected=2,
        tau_max_s=1.0,
        rng=np.random.default_rng(5),
        batch_shape=(rows,),
    )
    everybody = np.ones((rows, 4), dtype=bool)
    regret, at = np.zeros(rows), {}
    for t in range(1, 4 * horizon + 1):
        selection = policy.ask(RoundContext(t, everybody))
        reward = (rng.random((rows, 4)) < means).astype(float)
        policy.tell(selection, RoundOutcome(1.0 - reward, everybody))
        regret += means[:2].sum() - (selection.mask * means).sum(axis=1)
        if t in (horizon, 2 * horizon, 4 * horizon):
            at[t] = regret.copy()
    first = at[2 * horizon] - at[horizon]
    second = at[4 * horizon] - at[2 * horizon]
    ratio = second.mean() / first.mean()
    # A law c ln T gives 1, a linear one 2. The standard error of the ratio is about 0.03, so that
    # the limits below are more than 6 sigma away (less than 1e-9).
    assert 0.75 < ratio < 1.3
    # And the level is near the theory of UCB: each slow arm is played about (N+1) ln T / gap^2.
    plays = policy.play_count[:, 2:].mean()
    assert 0.5 < plays / (3 * np.log(4 * horizon) / 0.9**2) < 1.5


def test_cs_ucb_q_meets_feasible_floors():
    floors = np.array([0.6, 0.5, 0.4])
    rounds, seeds = 4000, 50
    results = run_study(
        {
            "q": Contender("cs-ucb-q", {"beta": 0.1, "min_participation": floors}),
            "fast": Contender("modified-cs-ucb"),
        },
        partial(Environment, num_arms=3, availability=0.9, distance_m=[450.0, 300.0, 150.0]),
        num_selected=2,
        tau_max_s=5.0,
        num_rounds=rounds,
        num_seeds=seeds,
    )
    share = results["q"].play_count / rounds
    # The debt bounds the shortfall for certain: share >= c - D(T) / T, and D stays near
    # (1 - beta) / beta = 9, which is 0.002 here; 0.01 leaves room and no chance.
    assert (share >= floors - 0.01).all()
    assert results["fast"].play_count[:, 0].mean() / rounds < 0.5  # without floors it is starved


def test_paper_comparison_holds_on_common_draws():
    """K=20, N=5: CS-UCB saves time and failures against random and round robin."""
    results = run_study(
        ["random", "round-robin", "cs-ucb"],
        partial(Environment, num_arms=20),
        num_selected=5,
        tau_max_s=5.0,
        num_rounds=2000,
        num_seeds=200,
    )
    for other in ("random", "round-robin"):
        saved = results[other].total_time_s - results["cs-ucb"].total_time_s
        # The effect is above 8 standard errors here; 4 are demanded (false alarm below 1e-4
        # for another seed, none for this one).
        assert saved.mean() > 4 * saved.std() / np.sqrt(len(saved))


def knows_the_means(env):
    return {"expected_time_s": env.expected_time_s(5.0)}


@pytest.mark.slow
def test_figures_of_the_specification():
    """K=20, N=5, T=5000: totals, failures and the three readings of the regret.

    Every mean is demanded to lie within 5 standard errors, and every difference between policies
    within 5 of its own (the draws are common); some 1e-6 of seeds would raise a false alarm. The
    specification's own figures are rounded to 1 s and come from another sample, about as large:
    hence the factor sqrt(2).
    """
    build, seeds, rounds = partial(Environment, num_arms=20), 200, [1000, 5000]
    results = run_study(
        {
            "random": Contender("random"),
            "round-robin": Contender("round-robin"),
            "cs-ucb": Contender("cs-ucb"),
            "oracle": Contender("oracle", from_environment=knows_the_means),
        },
        build,
        num_selected=5,
        tau_max_s=5.0,
        num_rounds=5000,
        num_seeds=seeds,
        seed=11,
        checkpoints=rounds,
        true_means=True,
    )

    def assert_near(samples, expected):
        assert abs(samples.mean() - expected) < 5 * np.sqrt(2 / seeds) * samples.std() + 0.5

    totals = {label: result.total_time_s for label, result in results.items()}
    for label, expected_s in {"random": 1898, "round-robin": 1890, "cs-ucb": 1785}.items():
        assert_near(totals[label], expected_s)
    assert_near(totals["random"] - totals["cs-ucb"], 113)
    assert_near(results["random"].failures, 40)
    assert_near(results["cs-ucb"].failures, 35)

    # The best set by exact laws, drop by drop.
    (env,) = drops(build, num_seeds=seeds, seed=11)
    survival, weight_s = env.time_law(5.0)
    best_s = np.array(
        [
            best_fixed_set(
                mean_slowest_of_law(survival[:, row], weight_s), 20, 5, exhaustive=False
            ).cost_s
            for row in range(seeds)
        ]
    )
    for label, ratio in {"random": 2.47, "round-robin": 2.45, "cs-ucb": 2.33}.items():
        # The specification has two digits, and ratios of totals.
        error = 5 * np.sqrt(2 / seeds) * (totals[label] - ratio * 5000 * best_s).std()
        assert abs(totals[label].mean() - ratio * 5000 * best_s.mean()) < error + 25
    means = results["oracle"].expected_time_s
    literal, pseudo, honest = (
        {
            label: reading(getattr(result, name), rounds, benchmark, *more)
            for label, result in results.items()
        }
        for reading, name, benchmark, more in (
            (literal_regret_s, "time_s", means, [5]),
            (pseudo_regret_s, "pseudo_time_s", means, [5]),
            (best_set_regret_s, "time_s", best_s, []),
        )
    )
    # The best set by means has no pseudo-regret, hardly any honest one, and the literal floor of
    # 0.026 s per round.
    assert pseudo["oracle"] == pytest.approx(0.0, abs=1e-9)
    assert (pseudo["cs-ucb"] > 0).all()
    assert_near(literal["oracle"][:, 1] / 5000 * 1000, 26)
    assert_near(honest["oracle"][:, 1], 0.00028 * 5000)
    # Not logarithmic by T=5000: the regret of CS-UCB is still linear.
    assert 4 < honest["cs-ucb"][:, 1].mean() / honest["cs-ucb"][:, 0].mean() < 5.2
