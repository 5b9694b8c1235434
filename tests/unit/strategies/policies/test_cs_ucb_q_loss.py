"""CS-UCB-Q-Loss: the term by hand, what chance and lies make of it, floors, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.engine.batched import run_batched
from flower_scheduling.simulation.settings import SCENARIOS, SimulationConfig
from flower_scheduling.strategies import RoundContext, RoundOutcome, build_policy
from flower_scheduling.strategies.base import SchedulingPolicy
from flower_scheduling.strategies.policies.cs_ucb_q_loss import CsUcbQLoss

TAU_MAX_S = 5.0


def build(name: str = "cs-ucb-q-loss", *, num_arms: int = 3, num_selected: int = 1, **more: object):
    return build_policy(
        name,
        num_arms=num_arms,
        num_selected=num_selected,
        tau_max_s=TAU_MAX_S,
        rng=np.random.default_rng(0),
        **more,
    )


def play(policy: SchedulingPolicy, round: int, times_s, loss=None, only=None) -> list[int]:
    """Play a round in which arm k takes ``times_s[k]`` and reports ``loss[k]``."""
    available = np.ones(policy.num_arms, dtype=np.bool_)
    if only is not None:
        available = np.isin(np.arange(policy.num_arms), only)
    selection = policy.ask(RoundContext(round, available))
    times_s = np.broadcast_to(np.asarray(times_s, dtype=np.float64), policy.shape)
    reported = {} if loss is None else {"loss": np.asarray(loss, dtype=np.float64)}
    policy.tell(selection, RoundOutcome(times_s, np.ones(policy.shape, dtype=np.bool_), reported))
    return np.flatnonzero(selection.mask).tolist()


# --- the term -------------------------------------------------------------------------------------


def test_averages_by_hand() -> None:
    policy = build(num_arms=2, num_selected=2)
    for round, loss in enumerate(([1.0, 2.0], [2.0, np.nan], [3.0, 4.0]), start=1):
        play(policy, round, 1.0, loss)
    # Arm 1 did not report in round 2 and went a hundredth of its way to the upper median, itself.
    assert policy.loss_count.tolist() == [3, 2]
    assert policy.mean_loss == pytest.approx([2.0, 3.0])
    # (1 - r) (v + r d^2) with r = 1/2 and d = 1, then r = 1/3 and d = 1.5; r = 1/2 and d = 2.
    first = 0.5 * 0.5 * 1.0**2
    assert policy.loss_variance == pytest.approx([2 / 3 * (first + 1.5**2 / 3), 0.5 * 0.5 * 2.0**2])

    # From the tenth report on an average moves by a tenth.
    policy.loss_count[0] = 30
    play(policy, 4, 1.0, [12.0, 3.0])
    assert policy.mean_loss[0] == pytest.approx(2.0 + 0.1 * 10.0)


def test_an_old_loss_goes_to_the_median() -> None:
    policy = build(num_arms=3, num_selected=3)
    play(policy, 1, 1.0, [1.0, 2.0, 4.0])
    play(policy, 2, 1.0, [np.nan, 2.0, 4.0])
    assert policy.mean_loss == pytest.approx([1.0 + 0.01 * (2.0 - 1.0), 2.0, 4.0])
    play(policy, 3, 1.0, only=[])
    assert policy.mean_loss[2] == pytest.approx(4.0 + 0.01 * (2.0 - 4.0))


def test_relative_loss_by_hand() -> None:
    policy = build(num_arms=4, num_selected=3, loss_quantile=1.0)
    assert policy.relative_loss().tolist() == [0.0] * 4, "nobody has reported"
    play(policy, 1, 1.0, [1.0, 2.0, 3.0, 0.0], only=[0, 1, 2])
    assert policy.relative_loss().tolist() == [0.0] * 4, "how wrong reports are is not known yet"
    policy.loss_count[...] = [20, 20, 20, 0]
    policy.loss_variance[...] = [1.9, 0.019, 1.9, 0.0]
    shrinkage = 1.0 - 0.1 / 1.9 * 1.9 / (2 / 3)  # s^2 = 2/3 over the arms, 1.9 is the median of v
    assert policy.relative_loss() == pytest.approx([shrinkage * -0.5, 0.0, shrinkage * 0.5, 0.0])
    policy.mean_loss[...] = [-1.0, -2.0, -3.0, 0.0]
    assert policy.relative_loss() == pytest.approx([shrinkage * 0.5, 0.0, shrinkage * -0.5, 0.0])
    policy.loss_variance[...] = 30.0
    assert policy.relative_loss().tolist() == [0.0] * 4, "chance alone may differ by as much"


def test_what_a_client_claims_counts_within_limits() -> None:
    policy = build(num_arms=5, num_selected=5, loss_quantile=1.0)
    for round in range(1, 30):
        play(policy, round, 1.0, [1.0, 1.0 + 0.1 * (-1) ** round, 2.0, 2.0, 1e308])
    assert policy.mean_loss[4] == 1e100
    relative = policy.relative_loss()
    assert np.isfinite(relative).all()
    # As if 1, 1, 2, 2, 6 with the median 2.
    assert relative == pytest.approx([-0.5, -0.5, 0.0, 0.0, 2.0], rel=0.02, abs=0.02)
    for round in range(30, 60):  # and one that claims now this, now that
        play(policy, round, 1.0, [1.0, 1.0, 2.0, 2.0, (-1) ** round * 1e308])
    assert policy.mean_loss[4] < -1e97
    # As if 1, 1, 2, 2, -1 with the median 1.
    expected = [0.0, 0.0, 1.0, 1.0, -2.0]
    assert policy.relative_loss() == pytest.approx(expected, rel=0.02, abs=0.02)


# --- what is selected -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "reports"), [(20.0, False), (0.0, True)], ids=["no reports", "no weight"]
)
def test_without_losses_it_is_the_rule_without_losses(weight: float, reports: bool) -> None:
    floors = [0.3, 0.0, 0.2, 0.0, 0.0, 0.1]
    shape: dict[str, object] = {"num_arms": 6, "num_selected": 2, "min_participation": floors}
    ours = build(loss_weight=weight, **shape)
    theirs = build("cs-ucb-q-adaptive", **shape)
    rng = np.random.default_rng(1)
    for round in range(1, 300):
        times_s = rng.exponential([1.0, 2.0, 0.5, 0.6, 3.0, 0.4])
        loss = rng.random(6) if reports else None
        assert play(ours, round, times_s, loss) == play(theirs, round, times_s)


def test_a_high_loss_is_worth_a_slow_round() -> None:
    def selections(**settings: object) -> list[int]:
        policy = build(num_arms=5, num_selected=2, **settings)
        rng = np.random.default_rng(2)
        for round in range(1, 301):
            loss = np.array([1.0, 1.0, 1.0, 3.0, 3.0]) + rng.normal(0, 0.1, 5)
            play(policy, round, [0.1, 0.2, 0.2, 1.0, 1.0], loss)
        return policy.play_count.tolist()

    assert min(selections()[3:]) > 250
    assert max(selections(loss_weight=1.0)[3:]) < 50, "not at this weight"


@pytest.mark.parametrize("claim", [3.0, 300.0, 1e300], ids=["high", "lying", "absurd"])
def test_no_client_is_believed_by_itself(claim: float) -> None:
    def selections(claim: float, **settings: object) -> list[int]:
        policy = build(num_arms=20, num_selected=5, **settings)
        rng = np.random.default_rng(2)
        times_s = np.linspace(0.1, 1.0, 20)
        for round in range(1, 501):
            loss = 1.0 + rng.normal(0, 0.1, 20)
            loss[19] = claim
            play(policy, round, times_s, loss)
        return policy.play_count.tolist()

    assert selections(claim)[19] < 2 * selections(1.0)[19] + 5, "all others hold the same data"
    assert selections(claim, loss_quantile=1.0)[19] > 300, "without the bound it wins the fleet"


@pytest.mark.parametrize("num_liars", [1, 2, 3])
def test_liars_count_as_the_upper_end_of_the_others(num_liars: int) -> None:
    policy = build(num_arms=20, num_selected=5)
    policy.loss_count[...] = 50
    policy.loss_variance[...] = 1e-6

    def claim(loss: float, num_liars: int) -> None:
        policy.mean_loss[...] = np.linspace(1.0, 3.0, 20)
        policy.mean_loss[:num_liars] = loss

    claim(1.0, 0)
    highest = policy.relative_loss().max()
    claim(1e6, num_liars)
    relative = policy.relative_loss()
    assert relative.argmax() < num_liars, "no other counts for more"
    assert relative.max() <= highest * 1.2
    assert np.isclose(relative[num_liars:].max(), relative.max()), "and one for as much"
    claim(1e6, 5)  # a quarter of them
    assert policy.relative_loss().max() == pytest.approx(2.0)


def test_of_few_clients_the_largest_loss_is_not_believed() -> None:
    policy = build(num_arms=3, num_selected=3)
    play(policy, 1, 1.0, [1.0, np.nan, np.nan])
    assert policy.relative_loss().tolist() == [0.0] * 3
    for round in range(2, 30):
        play(policy, round, 1.0, [1.0 + 1e-3 * (-1) ** round, 100.0, np.nan])
    assert policy.relative_loss().max() <= 0.0, "of two the median is the larger"
    for round in range(30, 60):
        play(policy, round, 1.0, [1.0, 100.0, 1.01])
    assert policy.relative_loss().max() < 0.02


def test_losses_that_differ_by_chance_alone_cost_little() -> None:
    policy = build(num_arms=8, num_selected=2)
    rng = np.random.default_rng(3)
    times_s = np.array([0.1, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    fast = 0
    for round in range(1, 1001):
        fast += play(policy, round, times_s, rng.exponential(1.0, 8)) == [0, 1]
    assert fast > 600


@pytest.mark.parametrize("claim", [2.0, 1e300], ids=["honest", "lying"])
def test_one_that_is_far_away_does_not_make_chance_count(claim: float) -> None:
    policy = build(num_arms=20, num_selected=5, loss_quantile=1.0)
    policy.loss_count[...] = 50
    noise = np.random.default_rng(6).normal(0.0, 0.2 * np.sqrt(0.1 / 1.9), size=20)
    policy.mean_loss[...] = 1.0 + noise
    policy.loss_variance[...] = 0.2**2
    alone = np.abs(policy.relative_loss()).max()
    policy.mean_loss[0] = claim
    relative = policy.relative_loss()
    assert np.abs(relative[1:]).max() < alone + 0.02
    assert relative[0] > 0.9


def test_floors_hold_whatever_the_losses() -> None:
    floors = np.array([0.5, 0.3, 0.1, 0.0, 0.0])
    policy = build(num_arms=5, num_selected=2, min_participation=floors, loss_weight=1000.0)
    played = np.zeros(5)
    rng = np.random.default_rng(4)
    for round in range(1, 1001):
        loss = np.array([0.1, 0.1, 0.1, 5.0, 9.0]) + rng.normal(0, 0.01, 5)
        played[play(policy, round, [3.0, 2.0, 1.0, 0.1, 0.1], loss)] += 1
        assert (floors * round - played).max() < 9


def test_a_score_is_explained_by_its_loss() -> None:
    policy = build(num_arms=4, num_selected=2, min_participation=[0.2] * 4)
    rng = np.random.default_rng(5)
    for round in range(1, 60):
        loss = np.array([1.0, 2.0, 3.0, 4.0]) + rng.normal(0, 0.1, 4)
        play(policy, round, [0.1, 0.5, 0.2, 0.4], loss)
    selection = policy.ask(RoundContext(60, np.ones(4, dtype=np.bool_)))
    explanation = policy.explain(selection)
    assert list(explanation.parts) == ["time", "failures", "bonus", "queue", "loss"]
    fast = np.sort(policy.cost_s(60))[1]
    assert explanation.parts["loss"] == pytest.approx(-20.0 * fast * policy.relative_loss())


def test_weight_must_be_a_number_from_0() -> None:
    with pytest.raises(ConfigError, match="loss_weight"):
        build(loss_weight=-1.0)
    assert isinstance(build(), CsUcbQLoss)


# --- what it is for -------------------------------------------------------------------------------


def seconds_to(accuracy: float, strategy: str, **settings: object) -> float:
    flags = {name.replace("_", "-"): value for name, value in settings.items()}
    preset = {**SCENARIOS["ideal"], "fairness": "none", "eval-every": 10, "rounds": 600}
    config = SimulationConfig.from_mapping({**preset, **flags, "strategy": strategy})
    curve = run_batched(config)
    reached = curve.accuracy >= accuracy
    return float(curve.time_s[reached.argmax()]) if reached.any() else np.inf


@pytest.mark.slow
def test_it_learns_sooner_where_data_differ() -> None:
    settings = {"partitioner": "dirichlet:0.1", "batch_size": 16, "local_steps": 10}
    settings |= {"learning_rate": 0.02, "seed": 1}
    ours, by_time, by_chance = (
        seconds_to(0.84, name, **settings)
        for name in ("cs-ucb-q-loss", "cs-ucb-q-adaptive", "random")
    )
    assert ours < 0.8 * min(by_time, by_chance)
