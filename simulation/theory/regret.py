"""Regret in three readings, and the paper's two bounds; all in seconds.

The paper's gap is Theta = tau_max Sigma, with its rewards r = 1 - tau / tau_max put back into
times. With tau_k(t) the time of arm k in round t, S(t) the super arm of a policy and S* the N arms
with the smallest means:

    literal:  sum over t of max over S(t) of tau_k(t)    -  T max over S* of E tau_k
    pseudo:   sum over t of max over S(t) of E tau_k     -  T max over S* of E tau_k
    honest:   sum over t of max over S(t) of tau_k(t)    -  T min over S of E max over S of tau_k

Literal is the paper's definition, pseudo what its proof bounds, and honest, the regret against the
best fixed set, what schedulers are to be judged by.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.base import FloatArray, check_count, check_real
from flower_scheduling.strategies.fairness import check_min_participation

from .optimum import check_set_size, check_times

# --- three readings -------------------------------------------------------------------------------


def regret_s(cumulative_s: ArrayLike, rounds: ArrayLike, benchmark_s: ArrayLike) -> FloatArray:
    """Return the regret against a benchmark: sum of times minus t times the benchmark.

    The form that all readings share. In the non-ideal scenario the benchmark is the optimum of the
    linear program (the paper's eq. regret problem, T r* - E sum of r),
    :func:`.best_stationary_policy`; the regret of a policy that does not meet
    the floors may then be negative.

    Parameters
    ----------
    cumulative_s : (..., num_checkpoints) array-like of float, >= 0
        Time of all rounds up to and including each checkpoint [s].
    rounds : (num_checkpoints,) array-like of int, >= 1
        The checkpoints t.
    benchmark_s : scalar or (...) array-like of float, >= 0
        Time per round that is compared with [s].

    Returns
    -------
    (..., num_checkpoints) float64
        Regret [s].

    Raises
    ------
    ConfigError
        If an argument is out of range or the shapes do not fit.
    """
    cumulative = check_times("cumulative_s", cumulative_s)
    rounds = _rounds(rounds)
    benchmark = check_times("benchmark_s", benchmark_s)
    if cumulative.shape[-1:] != rounds.shape:
        raise ConfigError(
            "cumulative_s", cumulative_s, f"must be {rounds.size} times per row, one a round"
        )
    if benchmark.shape not in ((), cumulative.shape[:-1]):
        raise ConfigError(
            "benchmark_s", benchmark_s, f"must be one time, or of shape {cumulative.shape[:-1]}"
        )
    return np.asarray(cumulative - rounds * benchmark[..., np.newaxis])


def literal_regret_s(
    time_s: ArrayLike, rounds: ArrayLike, expected_time_s: ArrayLike, num_selected: int
) -> FloatArray:
    """Return the regret by the paper's definition, its eq. (regret 1).

    tau_max (T mu(S*) - sum of r(S(t))): realised maxima are compared with a maximum of means, which
    is smaller, so that even the best set has linear regret (0.026 s per round at K=20, N=5).

    Parameters
    ----------
    time_s : (..., num_checkpoints) array-like of float, >= 0
        Time that the rounds took up to each checkpoint [s].
    rounds : (num_checkpoints,) array-like of int, >= 1
        The checkpoints t.
    expected_time_s : (..., num_arms) array-like of float, >= 0
        E min(tau_k, tau_max) of each arm [s].
    num_selected : int, in [1, num_arms]
        Arms per round, N.

    Returns, Raises
        As :func:`regret_s`.
    """
    return regret_s(time_s, rounds, _best_slowest_mean(expected_time_s, num_selected))


def pseudo_regret_s(
    pseudo_time_s: ArrayLike, rounds: ArrayLike, expected_time_s: ArrayLike, num_selected: int
) -> FloatArray:
    """Return the pseudo-regret, which the paper's proof uses and its bounds are bounds of.

    The first line of its eq. (eq xl), which takes E r(S) for the minimum of mu_k. With N arms in
    every round it is never negative, 0 for the best set, and blind to everything but the slowest
    mean. `pseudo_time_s` is the sum over rounds, up to each checkpoint, of the largest mean in the
    super arm [s]; all else is as for :func:`literal_regret_s`.
    """
    return regret_s(pseudo_time_s, rounds, _best_slowest_mean(expected_time_s, num_selected))


def best_set_regret_s(time_s: ArrayLike, rounds: ArrayLike, best_set_s: ArrayLike) -> FloatArray:
    """Return the regret against the best fixed set, the honest reading.

    The paper's problem (original pro) taken at its word: a policy that always plays the best set
    has regret 0 on average. `best_set_s` is the mean time of a round of that set [s], by
    :func:`.best_fixed_set`; all else is as for :func:`regret_s`.
    """
    return regret_s(time_s, rounds, best_set_s)


# --- the paper's bounds ---------------------------------------------------------------------------


def reward_gaps(
    expected_time_s: ArrayLike, num_selected: int, tau_max_s: float
) -> tuple[FloatArray, FloatArray]:
    """Return Delta_min and Delta_max of Theorem 1.

    Delta_S = sum of mu_k over S* minus sum over S, the smallest and the largest over the super
    arms S that are not optimal. The smallest is that of one exchange, the largest that of the N
    slowest arms. Sets that tie with S* count as optimal.

    Parameters
    ----------
    expected_time_s : (..., num_arms) array-like of float, >= 0
        E min(tau_k, tau_max) of each arm [s].
    num_selected : int, in [1, num_arms]
        Arms per round, N.
    tau_max_s : float, > 0
        Deadline tau_max [s].

    Returns
    -------
    smallest, largest : (...) float64, >= 0
        Gaps in units of the reward; both 0 where every super arm is optimal.

    Raises
    ------
    ConfigError
        If an argument is out of range.
    """
    means, num_selected = _means_and_size(expected_time_s, num_selected)
    tau_max_s = check_real("tau_max_s", tau_max_s, above=0.0)
    ordered = np.sort(means, axis=-1) / tau_max_s
    inside, outside = ordered[..., :num_selected], ordered[..., num_selected:]
    largest = ordered[..., -num_selected:].sum(axis=-1) - inside.sum(axis=-1)
    # Of the exchanges that make a difference: the nearest mean beyond the cut from inside, or
    # before it from outside.
    cut = inside[..., -1:]
    beyond = np.where(outside > cut, outside, np.inf).min(axis=-1, initial=np.inf)
    before = np.where(inside < cut, inside, -np.inf).max(axis=-1, initial=-np.inf)
    tied = (outside == cut).any(axis=-1)  # an outside arm as fast as the slowest inside
    edge = cut[..., 0]
    smallest = np.minimum(beyond - edge, np.where(tied, edge - before, np.inf))
    return np.where(np.isfinite(smallest), smallest, 0.0), np.maximum(largest, 0.0)


def cs_ucb_bound_s(
    rounds: ArrayLike, expected_time_s: ArrayLike, num_selected: int, tau_max_s: float
) -> FloatArray:
    """Return the paper's bound on the regret of CS-UCB, Theorem 1 (eq. upper bound 1).

        tau_max Delta_max [K/N + 1 + 4 N^2 (N+1) K ln T / Delta_min^2 + K + (pi^2 / 3) N K]

    It bounds the pseudo-regret, see :func:`pseudo_regret_s`; as for the regret by its definition
    the proof takes E of a minimum for the minimum of E.

    At the paper's settings the bound is vacuous. Rewards are 1 - tau / tau_max and the times are
    some hundredths of tau_max, so that Delta_min is about 1e-3: the bracket, which counts rounds
    that are not optimal, is more than 1e10 where the paper plays 5000 (K=20, N=5; the median of
    400 drops is 4e10, the least 7e8).

    Parameters
    ----------
    rounds : (num_rounds,) or scalar array-like of int, >= 1
        Rounds T.
    expected_time_s : (..., num_arms) array-like of float, >= 0
        E min(tau_k, tau_max) of each arm [s], a row per drop.
    num_selected : int, in [1, num_arms]
        Arms per round, N.
    tau_max_s : float, > 0
        Deadline tau_max [s].

    Returns
    -------
    (..., num_rounds) float64
        Bound [s]; 0 where every super arm is optimal.

    Raises
    ------
    ConfigError
        If an argument is out of range.
    """
    times = _rounds(rounds)
    means, n = _means_and_size(expected_time_s, num_selected)
    k = means.shape[-1]
    smallest, largest = (
        gap[..., np.newaxis] for gap in reward_gaps(means, n, tau_max_s)
    )  # (..., 1)
    squared = np.where(smallest > 0, smallest, 1.0) ** 2
    bracket = k / n + 1 + 4.0 * n**2 * (n + 1) * k * np.log(times) / squared
    bracket = bracket + k + math.pi**2 / 3 * n * k
    return np.asarray(tau_max_s * np.where(smallest > 0, largest, 0.0) * bracket)


def cs_ucb_q_bound_s(
    rounds: ArrayLike,
    min_participation: ArrayLike,
    num_selected: int,
    tau_max_s: float,
    beta: ArrayLike,
) -> FloatArray:
    """Return the paper's bound on the regret of CS-UCB-Q, Theorem 2 (eq. upper bound2).

        tau_max (beta Omega T / 2 + (1 - beta) [(pi^2 / 3 + 1) K + 4 sqrt(2 K N T ln T)])

    with Omega = sum over k of max(c_k^2, (1 - c_k)^2), the same for every drop. By its proof it
    bounds the pseudo-regret: largest means of the super arms against the optimum of the linear
    program with that objective.

    As printed. The proof's drift-plus-regret weights the regret with 1 - beta, which is lost where
    it is summed; with it the bound is larger by the factor 1 / (1 - beta), no difference at the
    paper's beta of 1e-3 and less.

    Parameters
    ----------
    rounds : (num_rounds,) or scalar array-like of int, >= 1
        Rounds T.
    min_participation : (num_arms,) array-like of float, in [0, 1)
        Participation floors c.
    num_selected : int, >= 1
        Most arms per round, N.
    tau_max_s : float, > 0
        Deadline tau_max [s].
    beta : scalar or (...) array-like of float, in [0, 1]
        Weight of the queues.

    Returns
    -------
    (..., num_rounds) float64
        Bound [s].

    Raises
    ------
    ConfigError
        If an argument is out of range.
    """
    times = _rounds(rounds)
    floors = check_min_participation(min_participation, np.size(min_participation))
    n = check_count("num_selected", num_selected, minimum=1)
    tau_max_s = check_real("tau_max_s", tau_max_s, above=0.0)
    weight = np.asarray(beta)
    if weight.dtype.kind not in "iuf" or not ((weight >= 0) & (weight <= 1)).all():
        raise ConfigError("beta", beta, "must be in [0, 1]")
    weight = weight[..., np.newaxis]
    omega = float(np.maximum(floors**2, (1.0 - floors) ** 2).sum())
    learning = 4.0 * np.sqrt(2.0 * floors.size * n * times * np.log(times))
    learning += (math.pi**2 / 3 + 1) * floors.size
    return np.asarray(tau_max_s * (weight * omega * times / 2 + (1 - weight) * learning))


# --- arguments ------------------------------------------------------------------------------------


def _best_slowest_mean(expected_time_s: ArrayLike, num_selected: int) -> FloatArray:
    """Return max over S* of E tau_k: the N-th smallest mean, (...)."""
    means, num_selected = _means_and_size(expected_time_s, num_selected)
    return np.asarray(np.sort(means, axis=-1)[..., num_selected - 1])


def _means_and_size(expected_time_s: ArrayLike, num_selected: object) -> tuple[FloatArray, int]:
    means = np.atleast_1d(check_times("expected_time_s", expected_time_s))
    return means, check_set_size(num_selected, means.shape[-1])


def _rounds(value: ArrayLike) -> FloatArray:
    """Return rounds as float64, so that no product of them can overflow."""
    rounds = np.atleast_1d(check_times("rounds", value))
    if rounds.ndim != 1 or not ((rounds >= 1) & (rounds == np.floor(rounds))).all():
        raise ConfigError("rounds", value, "must be integers >= 1")
    return rounds
