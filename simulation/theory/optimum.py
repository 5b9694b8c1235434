"""Optima with known laws of all round times: the best fixed set and the linear program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.base import BoolArray, FloatArray, IntArray, check_count
from flower_scheduling.strategies.fairness import (
    Feasibility,
    check_feasibility,
    check_min_participation,
)

SetCost: TypeAlias = Callable[[IntArray], FloatArray]
"""Mean time of a round for each of some super arms of one size:
``(num_sets, size)`` arms, ``size >= 1``, to ``(num_sets,)`` seconds."""

# Up to so many arms :func:`best_stationary_policy` looks at every availability set.
MAX_EXACT_ARMS: Final = 10

_MAX_SETS: Final = 20_000  # 15504 super arms of K = 20, N = 5
_MAX_PRICED_SETS: Final = 200_000
_NUM_SAMPLES: Final = 1000
_VALUES_PER_BLOCK: Final = 2**20
_TOLERANCE: Final = 1e-9


# --- arguments ------------------------------------------------------------------------------------


def check_times(key: str, value: ArrayLike, *, ndim: int | None = None) -> FloatArray:
    """Return `value` as float64 if it is finite numbers >= 0, else raise ConfigError.

    `ndim` axes are demanded: 1, one per arm, or 2, draws by arms.
    """
    try:
        array: NDArray[np.generic] = np.asarray(value)
    except ValueError:  # a ragged list
        array = np.empty(0, dtype=np.object_)
    if array.dtype.kind in "iuf" and ndim in (None, array.ndim):
        times = array.astype(np.float64)
        if (np.isfinite(times) & (times >= 0)).all() and (ndim is None or times.size):
            return times
    shape = {None: "", 1: ", one per arm", 2: ", draws by arms"}.get(ndim, "")
    raise ConfigError(key, value, f"must be finite times >= 0{shape}")


def check_set_size(num_selected: object, num_arms: int) -> int:
    """Return N as an int if it is an integer from 1 to `num_arms`, else raise ConfigError."""
    size = check_count("num_selected", num_selected, minimum=1)
    if size > num_arms:
        raise ConfigError(
            "num_selected", num_selected, f"must be at most {num_arms}, the number of arms"
        )
    return size


# --- the mean time of a round ---------------------------------------------------------------------


def slowest_mean(expected_time_s: ArrayLike) -> SetCost:
    """Return the paper's cost of a super arm, max over k in S of E tau_k.

    tau_max (1 - mu(S)) with mu(S) = min of mu_k as in the paper's eq. (regret 1). No round lasts
    as short as that on average: the mean of a maximum is larger.

    Parameters
    ----------
    expected_time_s : (num_arms,) array-like of float, >= 0
        E min(tau_k, tau_max) of each arm [s].

    Returns
    -------
    SetCost

    Raises
    ------
    ConfigError
        If the times are not finite numbers >= 0, one per arm.
    """
    means = check_times("expected_time_s", expected_time_s, ndim=1)

    def cost(sets: IntArray) -> FloatArray:
        return np.asarray(means[sets].max(axis=1))

    return cost


def mean_slowest(time_s: ArrayLike) -> SetCost:
    """Return the cost E max over k in S of tau_k as an average over draws, any dependence.

    All sets are measured on the same draws, so that their differences are less noisy than their
    costs. The best of many sets looks better than it is; use draws of their own to judge it.

    Parameters
    ----------
    time_s : (num_draws, num_arms) array-like of float, >= 0
        Round-trip times of all arms in independent rounds, limited to tau_max [s].

    Returns
    -------
    SetCost

    Raises
    ------
    ConfigError
        If the times are not finite numbers >= 0, draws by arms.
    """
    by_arm = np.ascontiguousarray(check_times("time_s", time_s, ndim=2).T)

    def block(sets: IntArray) -> FloatArray:
        slowest = by_arm[sets[:, 0]]
        for arms in sets.T[1:]:
            np.maximum(slowest, by_arm[arms], out=slowest)
        return np.asarray(slowest.mean(axis=1))

    return _in_blocks(block, by_arm.shape[1])


def mean_slowest_of_law(survival: ArrayLike, weight_s: ArrayLike) -> SetCost:
    """Return the cost E max over k in S of tau_k for independent arms, without draws.

    E max = integral over y in (0, tau_max) of 1 - product over k in S of P(tau_k <= y).

    Parameters
    ----------
    survival : (num_points, num_arms) array-like of float, in [0, 1]
        P(tau_k > y) at points y between 0 and tau_max.
    weight_s : (num_points,) array-like of float, >= 0
        Weights of the points in an integral over y [s].

    Returns
    -------
    SetCost

    Raises
    ------
    ConfigError
        If a value is out of range or the shapes do not fit.
    """
    later = np.asarray(survival)
    if later.dtype.kind not in "iuf" or later.ndim != 2 or not ((later >= 0) & (later <= 1)).all():
        raise ConfigError("survival", survival, "must be probabilities, points by arms")
    weight = check_times("weight_s", weight_s, ndim=1)
    if weight.shape != later.shape[:1]:
        raise ConfigError("weight_s", weight_s, f"must be {later.shape[0]} numbers, one per point")
    back = np.ascontiguousarray(1.0 - later.T)  # (num_arms, num_points)
    longest_s = float(weight.sum())

    def block(sets: IntArray) -> FloatArray:
        all_back = back[sets[:, 0]]
        for arms in sets.T[1:]:
            all_back *= back[arms]
        return np.asarray(longest_s - all_back @ weight)

    return _in_blocks(block, weight.size)


# --- the best fixed set ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BestSet:
    """The super arm with the smallest mean time, if the same is played in every round.

    Attributes
    ----------
    arms : tuple of int
        The arms in increasing order.
    cost_s : float
        Its mean time of a round [s].
    proven : bool
        Whether every set was looked at.
    """

    arms: tuple[int, ...]
    cost_s: float
    proven: bool


def best_fixed_set(
    cost: SetCost, num_arms: int, num_selected: int, *, exhaustive: bool | None = None
) -> BestSet:
    """Find min over sets of the mean time of a round: what regret is measured against.

    With few sets, all of them. Else a search by swaps: from the best N single arms, exchange the
    one arm that saves most against one outside until no exchange saves anything. The result is
    then at least as good as the set with the smallest means, and no single exchange improves it,
    but it can miss a set that differs in two arms (two steady arms against two erratic ones).
    Compared with all sets, by exact laws on placements in the paper's cell, it found the best
    every time: 200 placements with K=20, N=5 and 200 each with K=12 and N = 2, 3, 4, 6, 8, 10.
    The set with the smallest means was the best in 171 of the first 200 and took up to 6 ms longer.

    Parameters
    ----------
    cost : SetCost
        Mean time of a round by set: :func:`mean_slowest_of_law`, :func:`mean_slowest` or
        :func:`slowest_mean`.
    num_arms : int, >= 1
        Number of arms, K.
    num_selected : int, in [1, num_arms]
        Arms per round, N.
    exhaustive : bool, optional
        Look at all sets (True) or search (False); by default all up to 20000.

    Returns
    -------
    BestSet

    Raises
    ------
    ConfigError
        If an argument is out of range.
    """
    num_arms = check_count("num_arms", num_arms, minimum=1)
    num_selected = check_set_size(num_selected, num_arms)
    if exhaustive is None:
        exhaustive = math.comb(num_arms, num_selected) <= _MAX_SETS
    if exhaustive:
        best, best_s = np.arange(num_selected), math.inf
        for sets in _sets_of(num_arms, num_selected):
            costs_s = cost(sets)
            least = int(costs_s.argmin())
            if costs_s[least] < best_s:
                best, best_s = sets[least], float(costs_s[least])
        return BestSet(tuple(best.tolist()), best_s, proven=True)

    alone_s = cost(np.arange(num_arms)[:, np.newaxis])
    best = np.argsort(alone_s, kind="stable")[:num_selected]
    best_s = float(cost(best[np.newaxis])[0])
    while True:
        outside = np.setdiff1d(np.arange(num_arms), best)
        swapped = np.tile(best, (num_selected * outside.size, 1))
        place = np.repeat(np.arange(num_selected), outside.size)
        swapped[np.arange(place.size), place] = np.tile(outside, num_selected)
        costs_s = cost(swapped) if place.size else np.empty(0)
        least = int(costs_s.argmin()) if place.size else 0
        # Rounding must not make it exchange equals for ever.
        if not place.size or costs_s[least] >= best_s * (1.0 - 1e-12):
            return BestSet(tuple(np.sort(best).tolist()), best_s, proven=num_selected == num_arms)
        best, best_s = swapped[least], float(costs_s[least])


# --- the linear program of the non-ideal scenario -------------------------------------------------


class InfeasibleFloorsError(ConfigError):
    """No policy meets the participation floors; the error holds the proof.

    Attributes
    ----------
    feasibility : Feasibility
        ``arms`` is a set S that asks for more than any policy can serve: ``asked``, the sum of
        its floors, exceeds ``served`` = E min(N, number of available arms in S).
    """

    def __init__(self, min_participation: object, feasibility: Feasibility) -> None:
        super().__init__("min_participation", min_participation, "feasible")
        self.feasibility = feasibility
        self.args = (feasibility.message(),)  # one line that names the arms

    def __reduce__(self) -> Any:
        return type(self), (self.value, self.feasibility)


@dataclass(frozen=True, slots=True)
class StationaryPolicy:
    """Stationary policy: it draws its super arm at random, depending on the available arms alone.

    Attributes
    ----------
    cost_s : float
        Its mean time of a round, under the cost that was minimised [s].
    fraction : (num_arms,) float64, in [0, 1]
        Fraction of rounds in which each arm is selected.
    standard_error_s : float
        Standard error of `cost_s` from sampling availability sets [s], prices of the floors taken
        as known; 0 where all sets were looked at.
    available : (num_plays, num_arms) bool
        Availability set e of each play.
    super_arm : (num_plays, num_arms) bool
        Its super arm S, a subset of e; empty only where e is.
    probability : (num_plays,) float64, > 0
        Probability that a round is this play, P(e) q_S(e); they sum to 1.
    """

    cost_s: float
    fraction: FloatArray
    standard_error_s: float
    available: BoolArray
    super_arm: BoolArray
    probability: FloatArray

    def mean_cost_s(self, cost: SetCost) -> float:
        """Return the mean time of a round under another cost.

        Parameters
        ----------
        cost : SetCost
            For instance E max, for a policy that minimises max of means.

        Returns
        -------
        float
            Mean time [s]; a round without available arms takes 0.
        """
        return float(self.probability @ _costs_of_masks(cost, self.super_arm))


def best_stationary_policy(
    cost: SetCost | ArrayLike,
    *,
    min_participation: ArrayLike,
    num_selected: int,
    availability: ArrayLike = 1.0,
    num_samples: int | None = None,
    rng: np.random.Generator | None = None,
) -> StationaryPolicy:
    """Solve the paper's linear program: the best policy that knows the laws of all times.

    Its eq. (linear problem), as a minimum over q of time instead of a maximum of reward:

        min  sum_e P(e) sum_S q_S(e) cost(S)
        s.t. sum_e P(e) sum_{S: k in S} q_S(e) >= c_k  for every arm k,
             sum_S q_S(e) = 1, q >= 0                  for every availability set e,

    where S runs over the subsets of e with min(N, abs(e)) arms (the paper's eq. availability
    constraint3). No policy, stationary or not, meets the floors in less time per round. An empty
    e costs 0.

    The objective is that of `cost`. Given means it is the paper's, max over k in S of E tau_k;
    the result is then below what rounds really take, for which use
    :meth:`StationaryPolicy.mean_cost_s`. Given :func:`mean_slowest_of_law` or
    :func:`mean_slowest` it is E max over k in S of tau_k, what rounds really take.

    Up to :data:`MAX_EXACT_ARMS` arms the program is solved as it stands. Beyond, availability sets
    are sampled and super arms are added as they are needed (column generation; in the dual these
    are cutting planes) until no other could save 1e-7 of the cost. With general costs that is
    limited to 200000 super arms. On average the optimum of a sample is a little too high: the
    prices of the floors are fitted to it. K=20, N=5 takes 1 to 3 s, K=100, N=10 a minute or two.

    Parameters
    ----------
    cost : (num_arms,) array-like of float, >= 0, or SetCost
        Means E tau_k [s], or any mean time of a round by set.
    min_participation : (num_arms,) array-like of float, in [0, 1)
        Least fraction of rounds of each arm, c.
    num_selected : int, >= 1
        Most arms per round, N.
    availability : scalar or (num_arms,) array-like of float, in [0, 1]
        Probability alpha_k that arm k is available in a round, independent of the others.
    num_samples : int, >= 1, optional
        Availability sets to sample; by default none up to 10 arms, else 1000.
    rng : numpy.random.Generator, optional
        Source of the sample; ``default_rng(0)`` by default.

    Returns
    -------
    StationaryPolicy

    Raises
    ------
    InfeasibleFloorsError
        If no policy can meet the floors; it names the arms that ask for too much.
    ConfigError
        If an argument is out of range, or the floors are feasible but not on the sample.
    """
    num_arms = np.size(min_participation)
    floors = check_min_participation(min_participation, num_arms)
    if not num_arms:
        raise ConfigError(
            "min_participation", min_participation, "must be one number per arm, not none"
        )
    num_selected = check_count("num_selected", num_selected, minimum=1)
    feasibility = check_feasibility(floors, num_selected, availability)
    if not feasibility.feasible:
        raise InfeasibleFloorsError(floors, feasibility)
    alpha = np.array(np.broadcast_to(availability, (num_arms,)), dtype=np.float64)

    pricing: _Pricing
    if callable(cost):
        set_cost = cost
        pricing = _PriceEverySet(cost, num_arms, num_selected)
    else:
        means = check_times("cost", cost, ndim=1)
        if means.shape != floors.shape:
            raise ConfigError("cost", cost, f"must be {num_arms} numbers, one per arm")
        set_cost = slowest_mean(means)
        pricing = _PriceByMeans(means, num_selected)

    if num_samples is None and num_arms > MAX_EXACT_ARMS:
        num_samples = _NUM_SAMPLES
    if num_samples is None:
        available, chance = _every_availability(alpha)
    else:
        available, chance = _sampled_availability(alpha, num_samples, rng)

    # With at most N arms available there is nothing to choose.
    free = available.sum(axis=1) > num_selected
    settled, settled_chance = available[~free], chance[~free]
    settled_s = _costs_of_masks(set_cost, settled)
    program = _Program(
        available[free], chance[free], np.maximum(floors - settled_chance @ settled, 0.0)
    )
    if num_samples is None:
        for sets in _sets_of(num_arms, num_selected) if free.any() else ():
            program.add_all(sets, set_cost(sets))
        if free.any():
            program.solve(elastic=False)
    else:
        unmet = _generate_columns(program, pricing)
        if unmet is not None:
            raise _infeasible_on_sample(unmet, floors, num_selected, alpha, num_samples)
    plays = program.plays()
    standard_error_s = 0.0
    if num_samples is not None:
        # By duality cost = E[value of e] + sum of prices times floors, prices being fixed.
        value = np.concatenate([program.value, settled_s - settled @ program.prices])
        weight = np.concatenate([program.chance, settled_chance])
        standard_error_s = math.sqrt(weight @ (value - weight @ value) ** 2 / num_samples)
    super_arm = np.concatenate([plays.super_arm, settled])
    probability = np.concatenate([plays.probability, settled_chance])
    return StationaryPolicy(
        cost_s=float(plays.probability @ plays.cost_s + settled_chance @ settled_s),
        fraction=probability @ super_arm,
        standard_error_s=standard_error_s,
        available=np.concatenate([plays.available, settled]),
        super_arm=super_arm,
        probability=probability,
    )


def _every_availability(alpha: FloatArray) -> tuple[BoolArray, FloatArray]:
    """Return all availability sets of positive probability, and their probabilities."""
    available = np.array(list(itertools.product([False, True], repeat=alpha.size)))
    chance = np.where(available, alpha, 1.0 - alpha).prod(axis=1)
    possible = chance > 0
    return available[possible], chance[possible]


def _sampled_availability(
    alpha: FloatArray, num_samples: int, rng: np.random.Generator | None
) -> tuple[BoolArray, FloatArray]:
    """Return the different availability sets of a sample, and how often they came."""
    num_samples = check_count("num_samples", num_samples, minimum=1)
    rng = np.random.default_rng(0) if rng is None else rng
    if not isinstance(rng, np.random.Generator):
        raise ConfigError("rng", rng, "must be a numpy.random.Generator")
    drawn = rng.random((num_samples, alpha.size)) < alpha
    available, counts = np.unique(drawn, axis=0, return_counts=True)
    return available, counts / num_samples


@dataclass(slots=True)
class _Plays:
    available: BoolArray
    super_arm: BoolArray
    probability: FloatArray
    cost_s: FloatArray


class _Program:
    """The linear program over the plays (e, S) that were added so far."""

    def __init__(self, available: BoolArray, chance: FloatArray, floors: FloatArray) -> None:
        self.available = available  # (num_availability, num_arms)
        self.chance = chance
        self.floors = floors
        self.prices: FloatArray = np.zeros(floors.size)  # duals of the floors, >= 0
        self.value: FloatArray = np.zeros(chance.size)  # duals of sum_S q_S(e) = 1
        self.shortfall = _TOLERANCE  # by how much floors may be missed, to allow for rounding
        self._row: IntArray = np.empty(0, dtype=np.int64)
        self._super_arm: BoolArray = np.empty((0, floors.size), dtype=np.bool_)
        self._cost_s: FloatArray = np.empty(0)
        self._q: FloatArray = np.empty(0)

    def add(self, row: IntArray, super_arm: BoolArray, cost_s: FloatArray) -> None:
        self._row = np.concatenate([self._row, row])
        self._super_arm = np.concatenate([self._super_arm, super_arm])
        self._cost_s = np.concatenate([self._cost_s, cost_s])

    def add_all(self, sets: IntArray, cost_s: FloatArray) -> None:
        """Add every availability set with every one of the super arms inside it."""
        mask = _masks(sets, self.floors.size)
        outside = mask[np.newaxis] & ~self.available[:, np.newaxis]  # (availability, set, arm)
        row, which = np.nonzero(~outside.any(axis=2))
        self.add(row, mask[which], cost_s[which])

    def solve(self, *, elastic: bool) -> None:
        """Minimise the cost; if `elastic`, the amount by which the floors are missed instead."""
        # Here, because policies are loaded where scipy's half second counts.
        from scipy import sparse
        from scipy.optimize import linprog

        num_plays, num_arms = self._super_arm.shape
        weight = self.chance[self._row]
        share = sparse.csr_array((self._super_arm * weight[:, np.newaxis]).T)
        one = sparse.csr_array(
            (np.ones(num_plays), (self._row, np.arange(num_plays))),
            shape=(self.chance.size, num_plays),
        )
        # The solver's tolerances are absolute.
        unit_s = 1.0 if elastic else float(self._cost_s.max()) or 1.0
        objective = weight * self._cost_s / unit_s
        slack = _TOLERANCE if elastic else self.shortfall
        if elastic:
            objective = np.concatenate([np.zeros(num_plays), np.ones(num_arms)])
            share = sparse.hstack([share, sparse.csr_array(np.eye(num_arms))], format="csr")
            one = sparse.hstack([one, sparse.csr_array((self.chance.size, num_arms))], format="csr")
        result = linprog(
            objective,
            A_ub=-share,
            b_ub=slack - self.floors,
            A_eq=one,
            b_eq=np.ones(self.chance.size),
            method="highs",
        )
        if result.status != 0:
            raise RuntimeError(f"the linear program was not solved: {result.message}")
        self._q = np.clip(result.x[:num_plays], 0.0, None)
        self.prices = np.clip(-unit_s * result.ineqlin.marginals, 0.0, None)
        self.value = unit_s * result.eqlin.marginals / self.chance
        if elastic:
            self.shortfall = float(result.fun) + _TOLERANCE

    def plays(self) -> _Plays:
        """Return the plays that the solution uses."""
        size = self._q.size  # plays added since are not part of it
        row = self._row[:size]
        # The solver keeps its equations to 1e-7; here they are made to hold.
        total = np.bincount(row, self._q, minlength=self.chance.size)
        probability = self._q / total[row] * self.chance[row]
        used = probability > 0
        return _Plays(
            self.available[row[used]],
            self._super_arm[:size][used],
            probability[used],
            self._cost_s[:size][used],
        )


class _Pricing(Protocol):
    """Finds the best super arm of every availability set when arms are paid for."""

    def __call__(
        self, available: BoolArray, prices: FloatArray, *, elastic: bool
    ) -> tuple[BoolArray, FloatArray]:
        """Return argmin over S in e of cost(S) - prices(S), and cost(S).

        If `elastic`, costs are left out of the minimum.
        """


class _PriceByMeans:
    """Pricing for max of means: with the slowest arm fixed, take the best paid of the faster."""

    def __init__(self, means: FloatArray, num_selected: int) -> None:
        self._order = np.argsort(means, kind="stable")
        self._means = means
        self._num_selected = num_selected

    def __call__(
        self, available: BoolArray, prices: FloatArray, *, elastic: bool
    ) -> tuple[BoolArray, FloatArray]:
        num_rows, num_others = available.shape[0], self._num_selected - 1
        if elastic:
            masks = _best_paid(np.where(available, prices, -np.inf), self._num_selected)
        else:
            paid = np.full((num_rows, num_others), -np.inf)  # largest prices so far
            least, slowest = np.full(num_rows, np.inf), np.zeros(num_rows, dtype=np.int64)
            for rank, arm in enumerate(self._order):
                here = available[:, arm]
                value = self._means[arm] - prices[arm] - paid.sum(axis=1)
                better = here & (value < least)
                least[better], slowest[better] = value[better], rank
                if num_others:
                    rows, cheapest = np.arange(num_rows), paid.argmin(axis=1)
                    smallest = paid[rows, cheapest]
                    paid[rows, cheapest] = np.where(
                        here, np.maximum(smallest, prices[arm]), smallest
                    )
            rank_of = np.empty_like(self._order)
            rank_of[self._order] = np.arange(self._order.size)
            faster = available & (rank_of < slowest[:, np.newaxis])
            masks = _best_paid(np.where(faster, prices, -np.inf), num_others)
            masks[np.arange(num_rows), self._order[slowest]] = True
        return masks, np.where(masks, self._means, 0.0).max(axis=1)


class _PriceEverySet:
    """Pricing for any cost: go through all super arms in order of cost less prices."""

    def __init__(self, cost: SetCost, num_arms: int, num_selected: int) -> None:
        self._cost, self._num_arms, self._num_selected = cost, num_arms, num_selected
        self._masks: BoolArray | None = None
        self._cost_s: FloatArray = np.empty(0)

    def __call__(
        self, available: BoolArray, prices: FloatArray, *, elastic: bool
    ) -> tuple[BoolArray, FloatArray]:
        if self._masks is None:
            self._enumerate()
        assert self._masks is not None
        reduced = -(self._masks @ prices) + (0.0 if elastic else self._cost_s)
        order = np.argsort(reduced, kind="stable")
        chosen = np.full(available.shape[0], -1, dtype=np.int64)
        open_rows = np.arange(available.shape[0])
        missing = (~available).astype(np.float32)
        step = 64
        start = 0
        while open_rows.size:
            block = order[start : start + step]
            # How many arms of each set are not available, by a matrix product.
            outside = missing[open_rows] @ self._masks[block].T.astype(np.float32)
            inside = outside == 0
            found = inside.any(axis=1)
            chosen[open_rows[found]] = block[inside[found].argmax(axis=1)]
            open_rows = open_rows[~found]
            start, step = start + step, min(2 * step, 4096)
        return self._masks[chosen], self._cost_s[chosen]

    def _enumerate(self) -> None:
        count = math.comb(self._num_arms, self._num_selected)
        if count > _MAX_PRICED_SETS:
            raise ConfigError(
                "num_selected",
                self._num_selected,
                f"gives {self._num_arms} arms {count} super arms, beyond {_MAX_PRICED_SETS}, "
                "unless the cost is given by means",
            )
        blocks = list(_sets_of(self._num_arms, self._num_selected))
        self._masks = np.concatenate([_masks(sets, self._num_arms) for sets in blocks])
        self._cost_s = np.concatenate([self._cost(sets) for sets in blocks])


def _generate_columns(program: _Program, pricing: _Pricing) -> FloatArray | None:
    """Solve the program by adding plays; return prices that prove it infeasible, or ``None``."""
    rows = np.arange(program.chance.size)
    if not rows.size:
        return program.floors if (program.floors > 1e-7).any() else None

    def add(prices: FloatArray, *, elastic: bool) -> float:
        """Add the best plays at these prices and return by how much they could help."""
        masks, cost_s = pricing(program.available, prices, elastic=elastic)
        reduced = (0.0 if elastic else cost_s) - masks @ prices
        gain = np.maximum(program.value - reduced, 0.0)
        useful = gain > 0
        program.add(rows[useful], masks[useful], cost_s[useful])
        return float(program.chance @ gain)

    program.value = np.full(rows.size, np.inf)
    add(np.zeros_like(program.floors), elastic=False)
    add(program.floors, elastic=True)
    # First meet the floors, whatever it costs; then make it cheap.
    while True:
        program.solve(elastic=True)
        if program.shortfall <= 1e-7:
            break
        prices = program.prices
        # More plays can lower the shortfall by the gain at most.
        if add(prices, elastic=True) < 0.5 * program.shortfall:
            return prices
    while True:
        program.solve(elastic=False)
        largest_s = float(np.abs(program.value).max())
        if add(program.prices, elastic=False) <= 1e-7 * largest_s:
            return None


def _infeasible_on_sample(
    prices: FloatArray, floors: FloatArray, num_selected: int, alpha: FloatArray, num_samples: int
) -> ConfigError:
    """Return the error: floors infeasible, or infeasible on the sampled availability sets only.

    Prices that prove infeasibility are a mixture of level sets {k: price_k >= x}, because the
    best that can be served at prices, E max over S of prices(S), is the Lovász extension of
    S -> E min(N, number of available arms in S). So one of the level sets asks for too much.
    """
    for level in np.unique(prices[prices > 0]):
        asked = np.where(prices >= level, floors, 0.0)
        feasibility = check_feasibility(asked, num_selected, alpha)
        if not feasibility.feasible:
            return InfeasibleFloorsError(floors, feasibility)
    return ConfigError(
        "num_samples",
        num_samples,
        "must be larger: the sampled availability sets cannot serve floors so close to the limit",
    )


def _best_paid(prices: FloatArray, count: int) -> BoolArray:
    """Mark the `count` largest finite prices of each row."""
    masks = np.zeros(prices.shape, dtype=np.bool_)
    if count:
        best = np.argpartition(-prices, count - 1, axis=1)[:, :count]
        np.put_along_axis(masks, best, True, axis=1)
    return masks


# --- sets -----------------------------------------------------------------------------------------


def _sets_of(num_arms: int, size: int) -> Iterator[IntArray]:
    """Yield all sets of `size` arms in lexicographic order, some thousands at a time."""
    combinations = itertools.combinations(range(num_arms), size)
    while block := list(itertools.islice(combinations, 2**14)):
        yield np.array(block, dtype=np.int64)


def _masks(sets: IntArray, num_arms: int) -> BoolArray:
    masks = np.zeros((sets.shape[0], num_arms), dtype=np.bool_)
    np.put_along_axis(masks, sets, True, axis=1)
    return masks


def _costs_of_masks(cost: SetCost, masks: BoolArray) -> FloatArray:
    """Return the cost of each super arm, of whatever size; 0 for an empty one."""
    different, which = np.unique(masks, axis=0, return_inverse=True)
    sizes = different.sum(axis=1)
    costs_s = np.zeros(sizes.size)
    for size in np.unique(sizes[sizes > 0]):
        rows = sizes == size
        costs_s[rows] = cost(different[rows].nonzero()[1].reshape(-1, size))
    return np.asarray(costs_s[which.reshape(-1)])


def _in_blocks(cost: SetCost, values_each: int) -> SetCost:
    """Evaluate a cost on some sets at a time, so that its temporary arrays stay small."""
    step = max(_VALUES_PER_BLOCK // max(values_each, 1), 1)

    def in_blocks(sets: IntArray) -> FloatArray:
        parts = [cost(sets[start : start + step]) for start in range(0, len(sets), step)]
        return np.concatenate(parts) if parts else np.empty(0)

    return in_blocks
