"""What not knowing the clients costs any policy: a lower bound on its time, in ideal rounds.

Round-trip times of K clients have laws that a policy does not know, and clients look alike: which
client has which law is a uniformly random permutation. Let a genie tell a policy, without noise,

- the law of every client that was selected once, and
- the order in which it is going to try the others, with their laws.

The genie can only help. Since untried clients look alike, they may as well be tried in the order of
a list that the permutation has shuffled. So every policy, adaptive or not, takes at least as long
as the best way through that list: a sequence of rounds, each of j new clients, the next ones of the
list, and N - j of those tried before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.base import FloatArray, check_count

from .optimum import check_set_size


@dataclass(frozen=True, slots=True)
class Exploration:
    """The cheapest way to try clients and then to play the best of those tried.

    Attributes
    ----------
    time_s : float
        Time of all rounds [s].
    tried : int
        Clients that are tried.
    """

    time_s: float
    tried: int


def trial_costs_s(survival: FloatArray, weight_s: FloatArray, num_selected: int) -> FloatArray:
    """Return the least mean time of a round with j untried clients, after a were tried.

    The mean of the slowest of a set is the integral of 1 - product of P(tau_k <= y). At each y it
    is least for the N - j clients that are likeliest to be back by then, which need not be the
    same at every y. So this is at most what any set takes, and for laws that are ordered, faster or
    slower at every y, it is what the best set takes.

    Parameters
    ----------
    survival : (num_points, num_arms) float64, in [0, 1]
        P(tau_k > y) at each point, arms in the order in which they are tried.
    weight_s : (num_points,) float64, > 0
        Weights of the points [s], see :meth:`.RoundTimeLaw.nodes_s`.
    num_selected : int, in [1, num_arms]
        Arms per round, N.

    Returns
    -------
    (num_arms + 1, N + 1) float64, > 0
        Seconds, by a and j; infinite where there are too few tried clients, or untried ones.

    Raises
    ------
    ConfigError
        If N is out of range.
    """
    num_points, num_arms = survival.shape
    n = check_set_size(num_selected, num_arms)
    in_time = 1.0 - survival
    costs: FloatArray = np.full((num_arms + 1, n + 1), np.inf)
    likeliest: FloatArray = np.zeros((num_points, 0))  # of the tried, the largest first
    for tried in range(num_arms + 1):
        most_new = min(n, num_arms - tried)
        if tried + most_new >= n:
            old, new = (
                np.concatenate([np.ones((num_points, 1)), np.cumprod(some, axis=1)], axis=1)
                for some in (likeliest, in_time[:, tried : tried + most_new])
            )
            count = np.arange(max(n - tried, 0), most_new + 1)
            costs[tried, count] = weight_s @ (1.0 - old[:, n - count] * new[:, count])
        if tried < num_arms:
            likeliest = np.concatenate([likeliest, in_time[:, tried : tried + 1]], axis=1)
            likeliest = -np.sort(-likeliest, axis=1)[:, :n]
    return costs


def best_exploration(costs_s: FloatArray, num_rounds: int) -> Exploration:
    """Return the cheapest sequence of rounds by what they cost, exactly.

    With more clients tried, a round without new ones costs no more. So all trials come first, and
    for each number b of clients that are tried in the end their sequence is the shortest path from
    0 to b, in which a round of j new ones costs what it takes beyond a round of the best of b.

    Parameters
    ----------
    costs_s : (num_arms + 1, N + 1) float64
        By clients tried before and new ones [s], :func:`trial_costs_s`, or a mean of such.
    num_rounds : int, >= 1
        Rounds T.

    Returns
    -------
    Exploration

    Raises
    ------
    ConfigError
        If there are fewer rounds than trials may need.
    """
    num_arms, n = costs_s.shape[0] - 1, costs_s.shape[1] - 1
    if check_count("num_rounds", num_rounds, minimum=1) < num_arms:
        message = f"must be at least {num_arms}: clients may be tried one by one"
        raise ConfigError("num_rounds", num_rounds, message)
    played_s = costs_s[:, 0]  # by b, infinite below N
    best = np.where(np.isfinite(played_s), played_s, 0.0)
    excess: FloatArray = np.full((num_arms + 1, num_arms + 1), np.inf)  # by clients tried, and b
    excess[0] = 0.0
    for tried in range(num_arms):
        for new in range(1, min(n, num_arms - tried) + 1):
            if np.isfinite(costs_s[tried, new]):
                reached = excess[tried] + (costs_s[tried, new] - best)
                np.minimum(excess[tried + new], reached, out=excess[tried + new])
    total_s = num_rounds * played_s + np.diagonal(excess)
    tried = int(np.argmin(total_s))
    return Exploration(float(total_s[tried]), tried)
