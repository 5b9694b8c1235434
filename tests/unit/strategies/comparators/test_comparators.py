"""Hand-computed indices of the comparators, and recomputations from the history."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flower_scheduling.errors import ArrayError, ConfigError
from flower_scheduling.strategies import (
    POLICIES,
    RoundContext,
    RoundOutcome,
    Selection,
    build_policy,
)
from flower_scheduling.strategies.comparators.kl_ucb import upper_bound

TAU_MAX_S = 4.0
COMPARATORS = [name for name, spec in POLICIES.items() if spec.comparator]


def build(name, *, num_arms=3, num_selected=1, seed=0, batch_shape=(), **params):
    return build_policy(
        name,
        num_arms=num_arms,
        num_selected=num_selected,
        tau_max_s=TAU_MAX_S,
        rng=np.random.default_rng(seed),
        batch_shape=batch_shape,
        **params,
    )


def context(round, available):
    return RoundContext(round, np.array(available, dtype=bool))


def force(policy, round, mask, times, completed=None, **reported):
    """Tell a round whose super arm the test chose, with everybody available."""
    mask = np.array(mask, dtype=bool)
    done = np.ones(mask.shape, bool) if completed is None else np.array(completed, dtype=bool)
    reported = {key: np.array(value, dtype=float) for key, value in reported.items()}
    policy.tell(
        Selection(RoundContext(round, np.ones_like(mask)), mask),
        RoundOutcome(np.array(times, dtype=float), done, reported),
    )


def chosen(policy, round, available=None):
    available = np.ones(policy.shape, bool) if available is None else np.array(available, bool)
    return np.flatnonzero(policy.ask(RoundContext(round, available)).mask).tolist()


def random_rounds(policy, num_rounds, seed=3, **reported):
    """Play rounds of random times; yield what happened in each."""
    rng = np.random.default_rng(seed)
    for t in range(1, num_rounds + 1):
        available = rng.random(policy.shape) < 0.8
        selection = policy.ask(RoundContext(t, available))
        times = rng.uniform(0.1, 5.0, policy.shape)
        completed = (times <= TAU_MAX_S) & (rng.random(policy.shape) < 0.9)
        policy.tell(selection, RoundOutcome(times, completed))
        gain = 1.0 - np.where(completed, times, TAU_MAX_S) / TAU_MAX_S
        yield t, available, selection.mask, gain, completed


@pytest.mark.parametrize("name", [n for n in COMPARATORS if n not in ("tscsf-b", "e3cs", "pisces")])
def test_untried_arms_come_first_unless_drawn_by_chance(name):
    policy = build(name, num_arms=5, num_selected=2)
    first = chosen(policy, 1)
    force(policy, 1, np.isin(np.arange(5), first), [0.4] * 5)
    assert not set(chosen(policy, 2)) & set(first)


# --- UCB-Tuned ------------------------------------------------------------------------------------


def test_ucb_tuned_index_by_hand():
    policy = build("ucb-tuned")
    force(policy, 1, [1, 1, 0], [1.0, 2.0, 0.0])  # rewards 3/4 and 1/2
    force(policy, 2, [1, 0, 0], [3.0, 0.0, 0.0])  # 1/4
    for t in range(3, 41):
        force(policy, t, [1, 0, 0], [2.0, 0.0, 0.0])  # 1/2: mean 1/2, squares (5/8 + 38/4) / 40
    log = math.log(41)
    variance = (0.625 + 9.5) / 40 - 0.25 + math.sqrt(2 * log / 40)
    assert variance > 0.25  # the cap decides here
    index = policy.tuned_index(41)
    assert index[0] == pytest.approx(0.5 + math.sqrt(log / 40 * 0.25))
    assert index[1] == pytest.approx(0.5 + math.sqrt(log / 1 * 0.25))
    assert index[2] == math.inf
    for t in range(41, 401):
        force(policy, t, [1, 0, 0], [2.0, 0.0, 0.0])
    log = math.log(401)
    variance = (0.625 + 0.25 * 398) / 400 - 0.25 + math.sqrt(2 * log / 400)
    assert variance < 0.25
    assert policy.tuned_index(401)[0] == pytest.approx(0.5 + math.sqrt(log / 400 * variance))


def test_ucb_tuned_prefers_the_arm_that_varies_more_at_equal_means():
    policy = build("ucb-tuned", num_arms=2)
    for t in range(1, 601):
        force(policy, t, [1, 1], [2.0, 1.0 if t % 2 else 3.0])
    assert policy.mean_reward == pytest.approx([0.5, 0.5])
    assert chosen(policy, 601) == [1]


# --- KL-UCB ---------------------------------------------------------------------------------------


def divergence(p, q):
    return sum(a * math.log(a / b) for a, b in ((p, q), (1 - p, 1 - q)) if a > 0)


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.03, 0.5, 0.97, 1 - 1e-9])
@pytest.mark.parametrize("bound", [1e-7, 1e-3, 0.1, 1.0, 5.0])
def test_kl_bound_inverts_the_divergence(p, bound):
    """By bisection, in the variable s = -ln(1 - q), which does not saturate."""

    def excess(s):
        first = 0.0 if p == 0 else p * (math.log(p) - math.log(-math.expm1(-s)))
        return first + (1 - p) * (math.log1p(-p) + s) - bound

    low, high = -math.log1p(-p), (bound + 1.0) / (1 - p) - math.log1p(-p)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    s = upper_bound(np.array([p]), np.array([bound]))[0]
    assert s == pytest.approx(high, rel=1e-6)
    q = -math.expm1(-s)
    if p < q < 1 - 1e-6:
        assert divergence(p, q) == pytest.approx(bound, rel=1e-5)


def test_kl_bound_at_its_ends():
    assert upper_bound(np.array([1.0]), np.array([0.1]))[0] == math.inf
    s = upper_bound(np.array([0.0, 0.25]), np.array([0.0, 0.0]))
    assert -np.expm1(-s) == pytest.approx([0.0, 0.25])
    # d(0, q) = -ln(1 - q).
    assert upper_bound(np.array([0.0]), np.array([0.7]))[0] == pytest.approx(0.7)


def test_kl_ucb_index_by_hand():
    policy = build("kl-ucb")
    for t in (1, 2):
        force(policy, t, [1, 1, 0], [2.0, 4.0, 0.0])  # rewards 1/2 and 0
    index = policy.kl_index(3)
    # d(1/2, q) = -ln(4 q (1 - q)) / 2 = ln(3) / 2, so q (1 - q) = 1/12.
    q = (1 + math.sqrt(1 - 1 / 3)) / 2
    assert -math.expm1(-index[0]) == pytest.approx(q)
    assert index[1] == pytest.approx(math.log(3) / 2)
    assert index[2] == math.inf
    assert chosen(policy, 3, [1, 1, 0]) == [0]
    wide = build("kl-ucb", exploration=3.0)
    force(wide, 1, [0, 1, 0], [4.0] * 3)
    assert wide.kl_index(9)[1] == pytest.approx(math.log(9) + 3 * math.log(math.log(9)))
    assert wide.kl_index(2)[1] == 0.0  # ln ln 2 < 0: no bound below 0


def test_kl_ucb_tells_apart_arms_whose_bounds_round_to_one():
    policy = build("kl-ucb", num_arms=2)
    force(policy, 1, [1, 1], [0.08, 0.04])  # rewards 0.98 and 0.99
    index = policy.kl_index(50)
    assert (-np.expm1(-index) == 1.0).all()
    assert chosen(policy, 50) == [1]
    best = build("kl-ucb", num_arms=2)
    force(best, 1, [1, 0], [0.0, 0.0])  # reward 1, and never tried
    assert chosen(best, 2) == [1]


# --- D-UCB and SW-UCB -----------------------------------------------------------------------------


def test_d_ucb_index_by_hand():
    policy = build("d-ucb", discount=0.5, exploration=0.6)
    force(policy, 1, [1, 1, 0], [1.0, 2.0, 0.0])  # 3/4 and 1/2
    force(policy, 2, [1, 0, 0], [3.0, 0.0, 0.0])  # 1/4
    # N = (1/2 + 1, 1/2), X = (3/8 + 1/4, 1/4), n = 3/2.
    width = 4 * 0.6 * math.log(1.5)
    index = policy.discounted_index()
    assert index[0] == pytest.approx(0.625 / 1.5 + math.sqrt(width / 1.5))
    assert index[1] == pytest.approx(0.5 + math.sqrt(width / 0.5))
    assert index[2] == math.inf


def test_d_ucb_forgets_rounds_left_out():
    policy = build("d-ucb", discount=0.5)
    force(policy, 1, [1, 0, 0], [1.0] * 3)
    force(policy, 4, [0, 1, 0], [1.0] * 3)
    assert policy.discounted_count == pytest.approx([0.125, 1.0, 0.0])


def test_sw_ucb_index_by_hand():
    policy = build("sw-ucb", num_selected=2, window=2, exploration=0.6)
    force(policy, 1, [1, 1, 0], [1.0, 2.0, 0.0])
    force(policy, 2, [1, 0, 0], [3.0, 0.0, 0.0])
    index = policy.window_index()
    width = 0.6 * math.log(2)
    assert index[0] == pytest.approx(0.5 + math.sqrt(width / 2))
    assert index[1] == pytest.approx(0.5 + math.sqrt(width))
    assert index[2] == math.inf
    force(policy, 3, [1, 0, 0], [3.0, 0.0, 0.0])  # round 1 leaves
    index = policy.window_index()
    assert index[0] == pytest.approx(0.25 + math.sqrt(width / 2))
    assert index[1] == math.inf
    assert policy.recent_reward[1] == 0.0


@pytest.mark.parametrize(("step", "width"), [(1, 1), (1, 5), (2, 5), (7, 5)])
def test_sums_that_forget_are_those_of_the_history(step, width):
    """Rounds may be left out: times and windows count by their numbers."""
    discounted = build("d-ucb", num_arms=4, num_selected=2, batch_shape=(3,), discount=0.8)
    window = build("sw-ucb", num_arms=4, num_selected=2, batch_shape=(3,), window=width)
    rng = np.random.default_rng(1)
    history = []
    for t in range(1, 60, step):
        mask = np.zeros((3, 4), bool)
        for row in range(3):
            mask[row, rng.choice(4, rng.integers(0, 3), replace=False)] = True
        times = rng.uniform(0.0, 4.0, (3, 4))
        history.append((t, mask, 1 - times / 4))
        for policy in (discounted, window):
            force(policy, t, mask, times)
        fading = [(0.8 ** (t - s), mask, gain) for s, mask, gain in history]
        recent = [(1.0, mask, gain) for s, mask, gain in history if s > t - width]
        for policy, parts, count, reward in (
            (discounted, fading, "discounted_count", "discounted_reward"),
            (window, recent, "recent_count", "recent_reward"),
        ):
            n = sum(weight * mask for weight, mask, _ in parts)
            x = sum(weight * mask * gain for weight, mask, gain in parts)
            assert np.allclose(getattr(policy, count), n, rtol=0, atol=1e-12)
            assert np.allclose(getattr(policy, reward), x, rtol=0, atol=1e-12)
        assert not window.recent_reward[window.recent_count == 0].any()


def test_policies_that_forget_notice_a_change_and_ucb1_would_not():
    for name, params in (("d-ucb", {"discount": 0.9}), ("sw-ucb", {"window": 20})):
        policy = build(name, num_arms=2, **params)
        for t in range(1, 301):
            mask = np.isin(np.arange(2), chosen(policy, t))
            force(policy, t, mask, [0.0, 4.0] if t <= 200 else [4.0, 0.0])
            if t == 200:
                before = policy.play_count.copy()
        late = policy.play_count - before
        assert before[0] > before[1]
        assert late[1] > late[0], name


# --- TSCSF-B --------------------------------------------------------------------------------------


def test_tscsf_b_draws_from_the_posterior():
    """The chance that a draw of Beta(3, 1) is above one of Beta(1, 3) is 19/20."""
    rows = 20_000
    policy = build("tscsf-b", num_arms=2, batch_shape=(rows,))
    for t in (1, 2):
        force(policy, t, np.ones((rows, 2)), np.tile([0.0, 4.0], (rows, 1)))
    first = policy.ask(RoundContext(3, np.ones((rows, 2), bool))).mask[:, 0].mean()
    # 6 sigma of a binomial, about 1e-9.
    assert abs(first - 0.95) < 6 * math.sqrt(0.95 * 0.05 / rows)


def test_tscsf_b_weighs_debts_against_rewards():
    for weight, who in ((1e9, 0), (1e-9, 1)):
        policy = build("tscsf-b", num_arms=2, reward_weight=weight, min_participation=[0.0, 0.5])
        for t in range(1, 61):
            force(policy, t, [1, 0], [0.0, 4.0])
        force(policy, 61, [0, 1], [0.0, 4.0])  # known to be slow, and owed 29.5
        assert policy.virtual_queue == pytest.approx([0.0, 29.5])
        counts = np.bincount([chosen(policy, 62)[0] for _ in range(50)], minlength=2)
        assert counts[who] > 40


# --- RBCS-F ---------------------------------------------------------------------------------------


def test_rbcs_f_estimate_by_hand():
    policy = build("rbcs-f", exploration=0.1, ridge=1.0)
    force(policy, 1, [1, 1, 0], [1.0, 3.0, 0.0])
    force(policy, 2, [1, 0, 0], [2.0, 0.0, 0.0])
    force(policy, 3, [1, 0, 0], [0.0] * 3, completed=[0, 1, 1])  # counts as 4 s
    time_s = policy.optimistic_time_s()
    assert time_s[0] == pytest.approx((1 + 2 + 4) / 4 - 0.1 / 2)
    assert time_s[1] == pytest.approx(3 / 2 - 0.1 / math.sqrt(2))
    assert time_s[2] == 0.0


def test_rbcs_f_super_arm_is_the_best_of_all():
    policy = build(
        "rbcs-f", num_arms=6, num_selected=3, time_weight=2.0, min_participation=[0.4] * 6
    )
    before = policy.state_dict()
    for _, available, mask, _, _ in random_rounds(policy, 60):
        twin = build("rbcs-f", num_arms=6, num_selected=3, time_weight=2.0)
        twin.load_state_dict(before)
        time_s, debt = twin.optimistic_time_s(), twin.virtual_queue
        arms = np.flatnonzero(available)
        worth = {
            arms: 2.0 * max(time_s[list(arms)]) - sum(debt[list(arms)])
            for arms in itertools.combinations(arms.tolist(), min(3, len(arms)))
            if arms
        }
        if worth:
            assert worth[tuple(np.flatnonzero(mask).tolist())] == pytest.approx(min(worth.values()))
        before = policy.state_dict()


# --- E3CS -----------------------------------------------------------------------------------------


def test_e3cs_probabilities_by_hand():
    policy = build("e3cs", num_arms=4, num_selected=2, min_participation=[0.1, 0.1, 0.2, 0.0])
    policy.log_weight = np.log([1.0, 2.0, 1.0, 4.0])
    everybody = np.ones(4, bool)
    # 1.6 places by weight: 0.1 + 0.2, 0.1 + 0.4, 0.2 + 0.2, 0.8.
    probability, overflow, spare = policy.probabilities(everybody)
    assert probability == pytest.approx([0.3, 0.5, 0.4, 0.8])
    assert not overflow.any()
    assert spare == pytest.approx(1.6)
    # Weight 12 would make 1.2: capped at 1, and 2 - 1 - 0.4 = 0.6 places are left for 4 parts.
    policy.log_weight = np.log([1.0, 2.0, 1.0, 12.0])
    probability, overflow, _ = policy.probabilities(everybody)
    assert probability == pytest.approx([0.25, 0.4, 0.35, 1.0])
    assert overflow.tolist() == [False, False, False, True]
    # Only three are there: their places, floors and weights.
    probability, _, spare = policy.probabilities(np.array([True, True, True, False]))
    assert probability == pytest.approx([0.5, 0.9, 0.6, 0.0])
    assert spare == pytest.approx(1.6)


def test_e3cs_capping_solves_the_equation_of_the_paper():
    """p = c + spare min(w, (1 - c) a) / sum of that, a / sum = 1 / spare, by bisection for a."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        floors = rng.choice([0.0, 0.1, 0.3], 7)
        policy = build("e3cs", num_arms=7, num_selected=3, min_participation=floors)
        weight = np.exp(rng.normal(0.0, 3.0, 7))
        policy.log_weight = np.log(weight)
        probability, overflow, spare = policy.probabilities(np.ones(7, bool))
        assert spare == pytest.approx(3 - floors.sum())
        low, high = 0.0, weight.sum() / spare * 10
        for _ in range(200):
            a = (low + high) / 2
            capped = np.minimum(weight, (1 - floors) * a)
            low, high = (a, high) if a < capped.sum() / spare else (low, a)
        if overflow.any():
            expected = floors + spare * capped / capped.sum()
        else:
            expected = floors + spare * weight / weight.sum()
        assert probability == pytest.approx(expected, abs=1e-9)
        assert probability.sum() == pytest.approx(3.0)


def test_e3cs_draws_with_its_probabilities():
    rows = 40_000
    policy = build("e3cs", num_arms=4, num_selected=2, batch_shape=(rows,))
    weight = np.array([1.0, 2.0, 3.0, 4.0])
    policy.log_weight = np.tile(np.log(weight), (rows, 1))
    mask = policy.ask(RoundContext(1, np.ones((rows, 4), bool))).mask
    assert (mask.sum(axis=1) == 2).all()
    p = 2 * weight / 10
    # 6 sigma of a binomial, about 1e-9.
    assert (abs(mask.mean(axis=0) - p) < 6 * np.sqrt(p * (1 - p) / rows)).all()
    for pair in itertools.combinations(range(4), 2):  # none is barred by the order
        assert mask[:, pair].all(axis=1).any()


def test_e3cs_learns_by_hand():
    for graded, gain in ((False, 1.0), (True, 0.75)):
        policy = build("e3cs", num_arms=4, num_selected=2, graded=graded)
        # p = 1/2 for all; the second failed. Factor N eta / K = 1/4.
        force(policy, 1, [1, 1, 0, 0], [1.0, 1.0, 9, 9], completed=[1, 0, 1, 1])
        w = np.array([math.exp(0.25 * gain / 0.5), 1.0, 1.0, 1.0])
        assert policy.log_weight == pytest.approx(np.log(w / w.mean()))


def test_e3cs_overflow_learns_nothing_and_weights_stay_finite():
    policy = build("e3cs", num_arms=3, num_selected=2)
    policy.log_weight = np.array([800.0, 0.0, 0.0])
    probability, overflow, _ = policy.probabilities(np.ones(3, bool))
    assert overflow.tolist() == [True, False, False]
    assert probability == pytest.approx([1.0, 0.5, 0.5])
    force(policy, 1, [1, 0, 1], [0.0] * 3, completed=[1, 1, 0])
    assert policy.log_weight[0] - policy.log_weight[1] == pytest.approx(800.0)
    assert np.isfinite(policy.log_weight).all()


def test_e3cs_floors_beyond_the_places_shrink_in_proportion():
    policy = build("e3cs", num_arms=3, num_selected=1, min_participation=[0.6, 0.6, 0.8])
    probability, _, spare = policy.probabilities(np.ones(3, bool))
    assert probability == pytest.approx([0.3, 0.3, 0.4])
    assert spare == 0.0


# --- BSFL -----------------------------------------------------------------------------------------


def test_bsfl_terms_by_hand():
    policy = build("bsfl", num_arms=4, num_selected=2, exponent=2.0)
    force(policy, 1, [1, 1, 0, 0], [1.0, 2.0, 0, 0])
    force(policy, 2, [1, 0, 1, 0], [0.5, 0, 0, 0], completed=[1, 1, 0, 1])  # a failure: 4 s
    assert policy.mean_rate_hz == pytest.approx([1.5, 0.5, 0.25, 0.0])
    assert policy.least_time_s == 0.5
    index = policy.ucb_index(3)
    bonus = 3 * math.log(2)
    assert index[:3] == pytest.approx(
        [0.75 + math.sqrt(bonus / 2), 0.25 + math.sqrt(bonus), 0.125 + math.sqrt(bonus)]
    )
    # Due is a half; they had 1, 1/2, 1/2, 0.
    assert policy.generalization_term(3) == pytest.approx([-0.25, 0.0, 0.0, 0.25])
    known = build("bsfl", num_arms=4, num_selected=2, tau_min_s=1.0)
    force(known, 1, [1, 1, 0, 0], [0.5, 2.0, 0, 0])
    assert known.ucb_index(2)[:2] == pytest.approx([1.0, 0.5])  # ln 1: no bonus yet


@pytest.mark.parametrize("weight", [0.0, 1.0, 3.0, 10.0])
def test_bsfl_super_arm_is_the_best_of_all(weight):
    settings = {"generalization": 3 * weight, "exponent": 1.0}
    policy = build("bsfl", num_arms=6, num_selected=3, **settings)
    before, compared = policy.state_dict(), 0
    for t, available, mask, _, _ in random_rounds(policy, 150):
        twin = build("bsfl", num_arms=6, num_selected=3, **settings)
        twin.load_state_dict(before)
        index, g = twin.ucb_index(t), twin.generalization_term(t)
        arms = np.flatnonzero(available).tolist()
        if arms and (twin.play_count > 0).all():
            size = min(3, len(arms))
            best = max(
                min(index[list(s)]) + weight * sum(g[list(s)])
                for s in itertools.combinations(arms, size)
            )
            taken = np.flatnonzero(mask)
            assert min(index[taken]) + weight * sum(g[taken]) == pytest.approx(best)
            compared += 1
        before = policy.state_dict()
    assert compared > 40


# --- Oort -----------------------------------------------------------------------------------------


def test_oort_utility_without_losses_by_hand():
    policy = build("oort", num_arms=4, preferred_percentile=30.0)
    for t, arm, time_s in ((1, 0, 1.0), (2, 1, 2.0), (3, 2, 4.0)):
        force(policy, t, np.arange(4) == arm, [time_s] * 4)
    # T is the least of three times: rank int(0.3 * 3) = 0.
    root = 0.1 * math.log(5)
    assert policy.utility(5) == pytest.approx(
        [
            1 + math.sqrt(root),
            (1 + math.sqrt(root / 2)) / 4,
            (1 + math.sqrt(root / 3)) / 16,
            0.0,
        ]
    )


def test_oort_utility_with_losses_by_hand():
    policy = build("oort", num_arms=4, num_selected=4, preferred_percentile=100.0)
    force(policy, 1, [1] * 4, [1.0, 2.0, 3.0, 3.0], loss=[1.0, -3.0, math.nan, 2.0])
    # Losses 1, 3, 2 reported: the third client has their mean. 0.999 to 3 becomes 0 to 1.
    root = math.sqrt(0.1 * math.log(2))
    expected = [(loss - 0.999) / (3 - 0.999) + root for loss in (1.0, 3.0, 2.0, 2.0)]
    assert policy.utility(2) == pytest.approx(expected)
    force(policy, 2, [1, 0, 0, 0], [1.0] * 4)  # reports nothing: keeps 1
    assert policy.last_loss.tolist() == [1.0, 3.0, -math.inf, 2.0]
    assert policy.last_selected.tolist() == [2, 1, 1, 1]


def test_oort_splits_its_places_between_known_and_unknown():
    policy = build("oort", num_arms=30, num_selected=10)
    known = np.arange(30) < 12
    force(policy, 1, known, np.where(known, 1.0, 0.0))
    # epsilon = 0.9 * 0.98 in round 2: int(10 * 0.118) = 1 place for those tried.
    assert sum(arm < 12 for arm in chosen(policy, 2)) == 1
    assert sum(arm < 12 for arm in chosen(policy, 200)) == 8  # 1 - 0.2 of them
    # Nobody new is there: all places for those tried. And the other way round.
    assert len(chosen(policy, 200, known)) == 10
    assert all(arm < 12 for arm in chosen(policy, 200, known))
    assert len(chosen(policy, 200, ~known)) == 10


def test_oort_draws_only_near_the_cut_and_by_utility():
    rows = 20_000
    policy = build("oort", num_arms=3, batch_shape=(rows,), preferred_percentile=1.0)
    times = np.tile([1.0, 1.01, 2.0], (rows, 1))
    force(policy, 1, np.ones((rows, 3)), times)
    mask = policy.ask(RoundContext(2, np.ones((rows, 3), bool))).mask
    # Utilities are as 1 to 1 / 1.01^2, 0.98 of it, and a quarter: below 0.95.
    assert not mask[:, 2].any()
    p = 1 / (1 + 1.01**-2)
    # 6 sigma of a binomial, about 1e-9.
    assert abs(mask[:, 0].mean() - p) < 6 * math.sqrt(p * (1 - p) / rows)


def test_oort_refuses_losses_of_the_wrong_shape_and_learns_nothing():
    policy = build("oort")
    with pytest.raises(ArrayError, match="loss"):
        force(policy, 1, [1, 0, 0], [1.0] * 3, loss=[1.0])
    assert policy.last_round == 0
    assert not policy.last_selected.any()


# --- FedCS ----------------------------------------------------------------------------------------


def test_fedcs_takes_the_smallest_mean_times():
    policy = build("fedcs", num_arms=4, num_selected=2)
    force(policy, 1, [1, 1, 1, 0], [3.0, 1.0, 2.0, 0.0])
    force(policy, 2, [1, 1, 0, 0], [2.0, 0.5, 0.0, 0.0], completed=[1, 0, 1, 1])  # 4 s
    assert policy.estimated_time_s() == pytest.approx([2.5, 2.5, 2.0, 0.0])
    assert chosen(policy, 3) == [2, 3]
    force(policy, 3, [1, 0, 0, 1], [0.5, 0, 0, 4.0])
    assert chosen(policy, 4) == [0, 2]
    assert chosen(policy, 4, [0, 1, 0, 1]) == [1, 3]


def test_fedcs_asks_a_part_of_the_clients():
    rows = 20_000
    policy = build("fedcs", num_arms=4, batch_shape=(rows,), candidate_fraction=0.5)
    force(policy, 1, np.ones((rows, 4)), np.tile([1.0, 2.0, 3.0, 4.0], (rows, 1)))
    mask = policy.ask(RoundContext(2, np.ones((rows, 4), bool))).mask
    # The fastest of two of four: chances 1/2, 1/3, 1/6 and 0.
    p = np.array([1 / 2, 1 / 3, 1 / 6])
    assert not mask[:, 3].any()
    # 6 sigma of a binomial, about 1e-9.
    assert (abs(mask[:, :3].mean(axis=0) - p) < 6 * np.sqrt(p * (1 - p) / rows)).all()


# --- TiFL -----------------------------------------------------------------------------------------

SIX_TIMES_S = [0.5, 0.6, 1.0, 1.2, 3.0, 3.5]  # two fast, two in the middle, two slow


def three_tiers(loss=(0.1, 0.1, 0.3, 0.5, 0.2, 0.2), **params):
    params = {"num_arms": 6, "num_selected": 2, "num_tiers": 3, "interval": 2, **params}
    policy = build("tifl", **params)
    force(policy, 1, [1] * 6, SIX_TIMES_S, loss=loss)
    return policy


def test_tifl_sorts_clients_into_tiers_of_equal_size_by_mean_times():
    policy = build("tifl", num_arms=8, num_selected=2, num_tiers=3)
    times = [3.0, 0.5, 2.0, 0.6, 1.0, 3.5, 0.7, 0.0]
    force(policy, 1, [1] * 7 + [0], times)
    assert policy.tier.tolist() == [2, 0, 1, 0, 1, 2, 0, -1]
    force(policy, 2, [0, 1, 0, 0, 0, 0, 0, 0], times, completed=[0] * 8)  # (0.5 + 4) / 2
    assert policy.tier.tolist() == [2, 1, 1, 0, 0, 2, 0, -1]
    # No more tiers than can have two clients each.
    few = build("tifl", num_arms=5, num_selected=2)
    force(few, 1, [1] * 5, times[:5])
    assert few.tier.tolist() == [1, 0, 1, 0, 0]


def test_tifl_draws_a_tier_and_its_clients_uniformly():
    rows = 20_000
    policy = build("tifl", num_arms=7, num_selected=2, num_tiers=3, batch_shape=(rows,))
    everybody = np.ones((rows, 7), bool)
    force(policy, 1, everybody, np.tile([0.5, 0.6, 0.7, 1.0, 1.2, 3.0, 3.5], (rows, 1)))
    policy.tier_chance = np.tile([0.6, 0.3, 0.1], (rows, 1))
    mask = policy.ask(RoundContext(2, everybody)).mask
    assert (mask.sum(axis=1) == 2).all()
    tiers = policy.tier[mask].reshape(rows, 2)
    assert (tiers[:, 0] == tiers[:, 1]).all()
    p = np.array([0.4, 0.4, 0.4, 0.3, 0.3, 0.1, 0.1])
    assert policy.probability(everybody)[0] == pytest.approx(p)
    # 6 sigma of a binomial, about 1e-9.
    assert (abs(mask.mean(axis=0) - p) < 6 * np.sqrt(p * (1 - p) / rows)).all()


def test_tifl_credits_are_spent_and_given_again():
    policy = three_tiers(credits=2, interval=1000)
    assert policy.credits_left.tolist() == [2, 2, 2], "measuring everybody costs none"
    for t, arms in ((2, [0, 1]), (3, [0, 1]), (4, [4, 5])):
        force(policy, t, np.isin(np.arange(6), arms), SIX_TIMES_S)
    assert policy.credits_left.tolist() == [0, 2, 1]
    assert policy.last_tier == 2
    assert policy.probability(np.ones(6, bool)) == pytest.approx([0, 0, 0.5, 0.5, 0.5, 0.5])
    # Where only those without credits are complete, they are drawn all the same.
    assert chosen(policy, 5, [1, 1, 1, 0, 1, 0]) == [0, 1]
    for t, arms in ((5, [4, 5]), (6, [2, 3])):
        force(policy, t, np.isin(np.arange(6), arms), SIX_TIMES_S)
    assert policy.credits_left.tolist() == [0, 1, 0]
    policy.tier_chance = np.array([0.5, 0.5, 0.0])
    force(policy, 7, [0, 0, 1, 1, 0, 0], SIX_TIMES_S)
    assert policy.credits_left.tolist() == [2, 2, 2]
    assert policy.tier_chance == pytest.approx([1 / 3] * 3)


def test_tifl_chances_follow_the_losses_where_they_do_not_fall():
    policy = three_tiers()
    assert policy.tier_chance == pytest.approx([1 / 3] * 3)
    force(policy, 2, [1, 1, 0, 0, 0, 0], SIX_TIMES_S)
    # Losses 0.1, 0.4, 0.2, and nothing to compare with: 3, 2 and 1 sixths by losses.
    assert policy.tier_chance == pytest.approx([1 / 6, 3 / 6, 2 / 6])
    assert policy.tier_checked_loss == pytest.approx([0.1, 0.4, 0.2])
    force(policy, 3, [0, 0, 0, 0, 1, 1], SIX_TIMES_S, loss=[0] * 4 + [0.9, 0.9])
    force(policy, 4, [0, 0, 1, 1, 0, 0], SIX_TIMES_S, loss=[0, 0, 0.3, 0.4, 0, 0])
    # The tier drawn last has 0.35 after 0.4: nothing changes.
    assert policy.tier_chance == pytest.approx([1 / 6, 3 / 6, 2 / 6])
    assert policy.tier_checked_loss == pytest.approx([0.1, 0.35, 0.9])
    force(policy, 6, [0, 0, 1, 1, 0, 0], SIX_TIMES_S)  # still 0.35
    assert policy.tier_chance == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_tifl_tiers_without_credits_have_no_chance():
    policy = three_tiers(credits=1)
    force(policy, 2, [0, 0, 1, 1, 0, 0], SIX_TIMES_S)
    assert policy.tier_chance == pytest.approx([1 / 3, 0, 2 / 3])


def test_tifl_without_losses_draws_tiers_equally():
    policy = three_tiers(loss=[math.nan] * 6)
    for t in range(2, 9):
        force(policy, t, [1, 1, 0, 0, 0, 0], SIX_TIMES_S)
    assert policy.tier_chance == pytest.approx([1 / 3] * 3)


def test_tifl_fills_a_round_that_no_tier_fills():
    policy = build("tifl", num_arms=9, num_selected=3, num_tiers=3)
    force(policy, 1, [1] * 9, np.arange(9) / 3)
    there = np.array([1, 0, 0, 1, 1, 0, 1, 0, 0], bool)  # two of the middle
    assert policy.probability(there) == pytest.approx([0.5, 0, 0, 1, 1, 0, 0.5, 0, 0])
    assert {3, 4} < set(chosen(policy, 2, there))


# --- PyramidFL ------------------------------------------------------------------------------------


def test_pyramidfl_explores_less_and_admits_more_than_oort():
    policies = [build(name, num_arms=30, num_selected=10) for name in ("pyramidfl", "oort")]
    known = np.arange(30) < 12
    for policy in policies:
        force(policy, 1, known, np.where(known, 1.0, 0.0))
    # Round 20: epsilon = 0.9 * 0.95^19 = 0.340 and 0.9 * 0.98^19 = 0.613.
    counts = [sum(arm < 12 for arm in chosen(policy, 20)) for policy in policies]
    assert counts == [6, 3]


def test_pyramidfl_draws_down_to_seven_tenths_of_the_cut():
    rows = 20_000
    policy = build("pyramidfl", num_arms=3, batch_shape=(rows,))
    force(policy, 1, np.ones((rows, 3)), np.tile([1.0, 1.1, 1.2], (rows, 1)))
    mask = policy.ask(RoundContext(2, np.ones((rows, 3), bool))).mask
    # Utilities are as 1 to 1 / 1.1^2 = 0.83 to 1 / 1.2^2 = 0.694: T is the least of three times.
    assert not mask[:, 2].any()
    p = 1 / (1 + 1.1**-2)
    # 6 sigma of a binomial, about 1e-9.
    assert abs(mask[:, 0].mean() - p) < 6 * math.sqrt(p * (1 - p) / rows)


def test_pyramidfl_cuts_losses_at_98_percent():
    loss = np.arange(1.0, 31.0)
    utilities = []
    for name in ("pyramidfl", "oort"):
        policy = build(name, num_arms=30)
        force(policy, 1, [1] * 30, [1.0] * 30, loss=loss)
        utilities.append(policy.utility(1))  # ln 1: no bonus
    expected = (loss - 0.999) / (30 - 0.999)
    assert utilities[0] == pytest.approx(expected)  # rank int(0.98 * 30) is the last
    assert utilities[1] == pytest.approx(np.minimum(expected, expected[28]))


# --- Pisces ---------------------------------------------------------------------------------------


def test_pisces_utility_by_hand():
    policy = build("pisces", mean_staleness=2.0)
    force(policy, 1, [1, 1, 0], [1.0, 3.0, 0.0], loss=[0.5, -2.0, 0.0])
    # Mean time 2: 2 * 1 / 2 and 2 * 3 / 2 steps behind.
    assert policy.utility() == pytest.approx([0.5 / 2, 2.0 / 4, 0.0])
    force(policy, 2, [1, 0, 0], [2.0, 0.0, 0.0])  # mean 2 again: 1 and 2 steps
    assert policy.utility() == pytest.approx([0.5 / 2.5, 2.0 / 4, 0.0])
    force(policy, 3, [0, 0, 1], [0.0] * 3, completed=[1, 1, 0])  # 4 s, mean 2.5
    # Reported nothing: the mean of 0.5 and 2.
    assert policy.utility()[2] == pytest.approx(1.25 / (2 * 4 / 2.5 + 1))
    steep = build("pisces", staleness_penalty=2.0)
    force(steep, 1, [1, 1, 0], [1.0, 3.0, 0.0])
    assert steep.utility() == pytest.approx([1 / 1.5**2, 1 / 2.5**2, 0.0])


def test_pisces_forgets_all_but_five_stalenesses():
    policy = build("pisces", num_arms=2)
    expected, total = [], 0.0
    for t, time_s in enumerate([4.0, 1.0, 2.0, 3.0, 1.0, 2.0, 1.0], start=1):
        force(policy, t, [1, 0], [time_s, 0.0], loss=[1.0, 0.0])
        total += time_s
        expected.append(time_s / (total / t))
    assert policy.utility()[0] == pytest.approx(1 / (1 + sum(expected[-5:]) / 5))


@pytest.mark.parametrize(("round", "chance"), [(2, 0.3), (12, 0.3 * 0.99**10), (1000, 0.1)])
def test_pisces_explores_now_and_then(round, chance):
    rows = 20_000
    policy = build("pisces", num_arms=4, batch_shape=(rows,))
    force(policy, 1, np.tile([1, 1, 0, 0], (rows, 1)), np.tile([1.0, 2.0, 0, 0], (rows, 1)))
    mask = policy.ask(RoundContext(round, np.ones((rows, 4), bool))).mask
    assert not mask[:, 1].any(), "of those tried, the one with the larger utility"
    p = np.array([1 - chance, 0.0, chance / 2, chance / 2])
    # 6 sigma of a binomial, about 1e-9.
    assert (abs(mask.mean(axis=0) - p) <= 6 * np.sqrt(p * (1 - p) / rows)).all()


def test_pisces_gives_places_away_one_by_one():
    policy = build("pisces", num_arms=3)
    at_work, ends = set(), []
    for t in range(1, 40):
        while len(at_work) < 2:
            idle = [arm not in at_work for arm in range(3)]
            (arm,) = chosen(policy, t, idle)
            assert arm not in at_work
            at_work.add(arm)
        done = min(at_work, key=lambda arm: (ends.count(arm) + 1) * (1.0, 1.5, 3.9)[arm])
        at_work.remove(done)
        ends.append(done)
        force(policy, t, np.arange(3) == done, [1.0, 1.5, 3.9], loss=[0.5, 0.5, 0.5])
    assert chosen(policy, 40, [0, 0, 0]) == []
    assert policy.play_count.tolist() == [ends.count(arm) for arm in range(3)]
    assert policy.utility()[0] > policy.utility()[1]
    # Places that exploration cannot fill go to those tried, and the other way round.
    some = build("pisces", num_arms=4, num_selected=3)
    force(some, 1, [1, 1, 0, 0], [1.0] * 4)
    assert chosen(some, 2, [1, 0, 1, 1]) == [0, 2, 3]
    assert chosen(some, 2, [1, 1, 0, 1]) == [0, 1, 3]


# --- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "param", "values"),
    [
        ("kl-ucb", "exploration", [-0.1, math.nan, "3", True]),
        ("d-ucb", "discount", [0.0, 1.0, math.nan]),
        ("d-ucb", "exploration", [0.0, math.inf]),
        ("sw-ucb", "window", [0, 2.0, True]),
        ("sw-ucb", "exploration", [0.0]),
        ("tscsf-b", "reward_weight", [0.0, math.inf]),
        ("rbcs-f", "time_weight", [-1.0]),
        ("rbcs-f", "exploration", [-1.0]),
        ("rbcs-f", "ridge", [0.0]),
        ("e3cs", "learning_rate", [0.0]),
        ("e3cs", "graded", [1, "yes"]),
        ("bsfl", "generalization", [-1.0]),
        ("bsfl", "exponent", [0.0]),
        ("bsfl", "tau_min_s", [-1.0, None]),
        ("oort", "time_penalty", [-1.0]),
        ("oort", "preferred_percentile", [0.0, 100.5]),
        ("fedcs", "candidate_fraction", [0.0, 1.5]),
        ("delay-het", "heterogeneity", [0.0, 1.0, "much"]),
        ("delay-het", "pairwise", [0, "yes"]),
        ("tifl", "num_tiers", [0, 2.0]),
        ("tifl", "interval", [0, True]),
        ("tifl", "credits", [0, "many"]),
        ("pyramidfl", "time_penalty", [-1.0]),
        ("pyramidfl", "preferred_percentile", [0.0, 100.5]),
        ("pisces", "staleness_penalty", [-1.0, math.inf]),
        ("pisces", "mean_staleness", [-1.0, None]),
    ],
)
def test_wrong_parameters_are_refused(name, param, values):
    for value in values:
        with pytest.raises(ConfigError, match=param):
            build(name, **{param: value})
    # A state learned with another value means something else.
    state = build(name).state_dict()
    with pytest.raises(ConfigError, match=param):
        build(name).load_state_dict(state | {param: -7})


@pytest.mark.parametrize("name", ["tscsf-b", "rbcs-f", "e3cs"])
def test_floors_can_be_set_and_grow(name):
    policy = build(name, min_participation=[0.1, 0.2, 0.3])
    policy.min_participation = [0.3, 0.2, 0.1]
    with pytest.raises(ConfigError, match="min_participation"):
        policy.min_participation = [0.1]
    with pytest.raises(ConfigError, match="min_participation"):
        build(name, min_participation=[0.1, 0.2, 1.0])
    policy.add_arms(1, min_participation=[0.4])
    policy.add_arms(1)
    assert policy.min_participation.tolist() == [0.3, 0.2, 0.1, 0.4, 0.0]


@pytest.mark.parametrize("name", ["tscsf-b", "rbcs-f", "e3cs"])
def test_floors_are_kept(name):
    """The last arm always takes longest, and has its share."""
    rows, rounds = 20, 3000
    params = {"reward_weight": 10.0} if name == "tscsf-b" else {}
    params |= {"graded": True} if name == "e3cs" else {}
    policy = build(
        name,
        num_arms=4,
        num_selected=2,
        batch_shape=(rows,),
        min_participation=[0.0, 0.0, 0.0, 0.4],
        **params,
    )
    everybody = np.ones((rows, 4), bool)
    times = np.tile([0.5, 0.6, 2.0, 3.9], (rows, 1))
    for t in range(1, rounds + 1):
        selection = policy.ask(RoundContext(t, everybody))
        policy.tell(selection, RoundOutcome(times, everybody))
    share = policy.play_count[:, 3] / rounds
    # Queues leave a debt of at most some 100 rounds; for E3CS 6 sigma of a binomial, about 1e-9.
    slack = 6 * math.sqrt(0.24 / rounds) if name == "e3cs" else 100 / rounds
    assert (share > 0.4 - slack).all()
    assert (share < 0.5).all()


# --- explanations ---------------------------------------------------------------------------------


def test_what_was_drawn_goes_with_the_selection():
    policy = build("tscsf-b", num_arms=2, reward_weight=10.0)
    force(policy, 1, [1, 0], [1.0, 0.0])  # Beta(1.75, 1.25)
    selection = policy.ask(context(2, [1, 1]))
    parts = policy.explain(selection).parts
    assert list(parts) == ["mean", "draw", "queue"]
    assert parts["mean"] == pytest.approx([10 * 1.75 / 3, 10 / 2])
    assert parts["mean"] + parts["draw"] == pytest.approx(selection.drawn)
    with pytest.raises(ArrayError, match="drawn"):
        policy.explain(Selection(selection.context, selection.mask))
    with pytest.raises(ArrayError, match="drawn"):
        policy.explain(Selection(selection.context, selection.mask, np.zeros(3)))
    assert selection == Selection(selection.context, selection.mask)
    assert "drawn" not in repr(selection)


def test_fedcs_explains_who_was_no_candidate():
    policy = build("fedcs", num_arms=4, candidate_fraction=0.5)
    force(policy, 1, [1] * 4, [1.0, 2.0, 3.0, 3.5])
    explanation = policy.explain(policy.ask(context(2, [1, 1, 1, 0])))
    assert explanation.parts["mean"] == pytest.approx([1.0, 2.0, 3.0, 3.5])
    assert sorted(explanation.parts["chance"]) == [0.0, 0.0, 0.0, math.inf]
    assert explanation.parts["chance"][3] == 0.0


def test_e3cs_explains_floors_that_shrank_and_arms_that_are_certain():
    policy = build("e3cs", num_arms=3, num_selected=1, min_participation=[0.6, 0.9, 0.0])
    parts = policy.explain(policy.ask(context(1, [1, 1, 1]))).parts
    assert parts["floor"] == pytest.approx([0.4, 0.6, 0.0])
    assert parts["weight"] == pytest.approx([0.0, 0.0, 0.0])
    parts = policy.explain(policy.ask(context(1, [1, 0, 0]))).parts
    assert parts["floor"] == pytest.approx([0.6, 0.0, 0.0])
    assert parts["weight"] == pytest.approx([0.4, 0.0, 0.0])


def test_oort_explains_utilities_and_places():
    policy = build("oort", num_arms=5, num_selected=2, preferred_percentile=1.0)
    force(policy, 1, [1, 1, 0, 0, 0], [1.0, 2.0, 0, 0, 0])
    bonus = math.sqrt(0.1 * math.log(200))
    explanation = policy.explain(policy.ask(context(200, [1, 1, 1, 1, 0])))
    # One place of two for those tried. A quarter of the utility is left of twice the best time,
    # and that is below the cut. Each of two new ones is drawn half as often as the first.
    assert explanation.rule == "drawn"
    parts = explanation.parts
    assert parts["loss"] == pytest.approx([1, 1, 0, 0, 0])
    assert parts["bonus"] == pytest.approx([bonus, bonus, 0, 0, 0])
    assert parts["time"] == pytest.approx([0, -0.75 * (1 + bonus), 0, 0, 0])
    half = (1 + bonus) / 2
    assert parts["chance"] == pytest.approx([0, -0.25 * (1 + bonus), half, half, 0])


def test_tifl_explains_chances():
    policy = three_tiers()
    explanation = policy.explain(policy.ask(context(2, [1, 1, 1, 1, 1, 0])))
    assert explanation.rule == "drawn"
    # The slow tier is not complete.
    assert explanation.parts["weight"] == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.0, 0.0])
    policy.add_arms(2)
    explanation = policy.explain(policy.ask(context(2, [1] * 7 + [0])))
    assert explanation.parts["weight"] == pytest.approx([1 / 6] * 6 + [1.0, 0.0])


def test_pisces_explains_utilities_and_who_was_explored():
    policy = build("pisces", num_arms=4, num_selected=2)
    force(policy, 1, [1, 1, 0, 0], [1.0, 3.0, 0, 0], loss=[0.5, 2.0, 0, 0])
    selection = policy.ask(context(2, [1, 1, 1, 0]))
    explanation = policy.explain(selection)
    assert explanation.rule == "largest"
    parts = explanation.parts
    assert parts["loss"] == pytest.approx([0.5, 2.0, 0.0, 0.0])
    assert parts["staleness"] == pytest.approx([0.5 / 1.5 - 0.5, 2.0 / 2.5 - 2.0, 0.0, 0.0])
    explored = math.inf if selection.mask[2] else -math.inf
    assert parts["chance"].tolist() == [0.0, 0.0, explored, -math.inf]
