"""Work by speed: how many local steps a client is asked for, from what its steps take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flower_scheduling.errors import ConfigError

from .base import BoolArray, FloatArray, IntArray, check_count, check_real

EQUAL: Final = "equal"
"""All clients do the work that their app does by itself."""
EQUAL_TIME: Final = "equal-time"
"""Each client is asked for the work that fits into the same time."""

_MEMORY: Final = 20
"""Pieces of work of an arm after which earlier ones fade."""
_PRIOR: Final = 0.25
"""A deviation of the steps, in times of their mean, with which round trips count for as much as the
belief that all of a round trip is work."""

_NUM_MEANS: Final = 4


class WorkBySpeed:
    """Ask every client for as much local work as fits into the time of the N-th fastest.

    A piece of work of n local steps takes the time r_k + c_k n: c_k for a step, r_k for the link
    and whatever else does not depend on n. With n_0 the base work, of the clients that could work
    now

        T = N-th smallest of r_k + c_k n_0,
        n_k = floor((T - r_k) / c_k), at least least n_0, at most most n_0.

    Clients that have not been timed are asked for n_0, and so are all until N of those that could
    work have been.

    Where a client reports how long it has computed, c_k is the mean of that time per step and r_k
    the mean of what is left of its round trips, of its last 20 or so. Where it does not, both come
    from its round trips t alone, by least squares: with the means of n and t, the sums S over its
    pieces of work of squared deviations and of products of deviations from them, and
    v = (mean n / 4)^2,

        c_k = (S_nt + v mean t / mean n) / (S_nn + v),    0 <= c_k <= mean t / mean n.

    So a round trip counts as work until other numbers of steps have shown how much of it is; and
    they do, since n_k follows c_k. What they have shown is not forgotten by pieces with always the
    same number of steps, which show nothing: S shrinks only where S_nn would exceed 20 v. A piece
    with another number of steps takes

        t + c_k (n_0 - n)

    at base work, which is what policies learn from; where the client reports its computing, c_k is
    that of this very piece.

    Updates count by their steps: see :meth:`scale`.

    Parameters
    ----------
    base_steps : int, >= 1
        Base work n_0 [local steps].
    num_selected : int, >= 1
        N.
    least, most : float
        Bounds of the work, in times of the base work: 0 < least <= 1 <= most. No client is asked
        for less than one step.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    def __init__(
        self, base_steps: int, num_selected: int, least: float = 0.25, most: float = 4.0
    ) -> None:
        self.base_steps = check_count("local_steps", base_steps, minimum=1)
        self.num_selected = check_count("num_selected", num_selected, minimum=1)
        check_real("least_work", least, above=0.0, at_most=1.0)
        if check_real("most_work", most, at_least=1.0) * base_steps > 2**53:
            raise ConfigError("most_work", most, "is too much")
        self.least_steps = max(1, math.ceil(least * base_steps))
        self.most_steps = math.floor(most * base_steps)
        self._count: IntArray = np.zeros(0, dtype=np.int64)
        # Of steps, time, computing time and whether that was reported; 0 where it was not.
        self._means: FloatArray = np.zeros((_NUM_MEANS, 0))
        self._sums: FloatArray = np.zeros((2, 0))  # S_nn and S_nt

    def ask(self, arms: Sequence[int] | IntArray, there: BoolArray) -> IntArray:
        """Return how many steps to ask arms for; nothing moves.

        Parameters
        ----------
        arms : sequence of int
            The arms.
        there : (num_arms,) bool
            Arms that could work now, those that do among them.

        Returns
        -------
        (len(arms),) int64
        """
        self._grow(there.size)
        chosen = np.asarray(arms, dtype=np.int64)
        steps: IntArray = np.full(chosen.size, self.base_steps)
        step_s, rest_s = self._estimates()
        timed = self._count > 0
        times_s = (rest_s + step_s * self.base_steps)[timed & there[: timed.size]]
        if times_s.size < self.num_selected:
            return steps
        fits_s = np.partition(times_s, self.num_selected - 1)[self.num_selected - 1]
        known = timed[chosen]
        left_s = fits_s - rest_s[chosen[known]]
        with np.errstate(divide="ignore", invalid="ignore"):
            fitting = np.floor(left_s / step_s[chosen[known]] + 1e-9)
        fitting = np.where(np.isnan(fitting), np.inf, fitting)  # no time left, and none needed
        steps[known] = np.clip(fitting, self.least_steps, self.most_steps).astype(np.int64)
        return steps

    def tell(self, arm: int, steps: int, time_s: float, compute_s: float | None = None) -> None:
        """Learn from a piece of work.

        Parameters
        ----------
        arm : int
            Whose it was.
        steps : int, >= 1
            Local steps that it had.
        time_s : float, >= 0
            Its round-trip time [s].
        compute_s : float, optional
            How much of it the client has computed, as it says [s].
        """
        self._grow(arm + 1)
        reported = compute_s is not None
        compute_s = min(compute_s, time_s) if compute_s is not None else 0.0
        self._count[arm] += 1
        weight = 1.0 / min(int(self._count[arm]), _MEMORY)
        change = np.array([steps, time_s, compute_s, float(reported)]) - self._means[:, arm]
        self._means[:, arm] += weight * change
        sums = self._sums[:, arm]
        sums += (1.0 - weight) * change[0] * change[:2]
        most = _MEMORY * (_PRIOR * self._means[0, arm]) ** 2
        if sums[0] > most:
            sums *= most / sums[0]

    def step_s(self, arm: int) -> float:
        """Return how long a step of an arm takes, c [s]; 0 of one that has not been timed."""
        return float(self._estimates()[0][arm]) if arm < self._count.size else 0.0

    def slowdowns(self, arms: Sequence[int] | IntArray, steps: Sequence[int]) -> FloatArray:
        """Return how many times as long as with the base work each takes with so many steps.

        Parameters
        ----------
        arms : sequence of int
            The arms, of which :meth:`ask` has been asked.
        steps : sequence of int, >= 1
            Of each.

        Returns
        -------
        (len(arms),) float64
            1 of those that have not been timed.
        """
        step_s, rest_s = (values[np.asarray(arms, dtype=np.int64)] for values in self._estimates())
        base_s = rest_s + step_s * self.base_steps
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = (rest_s + step_s * np.asarray(steps)) / base_s
        return np.where(base_s > 0, factor, 1.0)

    def at_base_s(
        self, arm: int, steps: int, time_s: float, compute_s: float | None = None
    ) -> float:
        """Return how long a piece of work would have taken with the base work [s].

        Parameters
        ----------
        arm, steps, time_s, compute_s
            As in :meth:`tell`.
        """
        step_s = self.step_s(arm) if compute_s is None else compute_s / steps
        step_s = min(step_s, time_s / steps)
        return time_s + step_s * (self.base_steps - steps)

    def scale(self, steps: int) -> float:
        """Return the factor b that makes an update of so many steps count as one of the base work.

        Normalised averaging of Wang et al., "Tackling the Objective Inconsistency Problem in
        Heterogeneous Federated Optimization", NeurIPS 2020 (FedNova), for clients that make plain
        SGD steps: with p_i the aggregation weights and n_i the steps of client i,

            w' = w + n_eff sum over i of p_i (w_i - w) / n_i,

        which is the weighted mean of w + b_i (w_i - w), b_i = n_eff / n_i: so any aggregation rule
        may take these for updates.

        Different here: the paper, of whose clients all take part in each round, has n_eff = sum of
        p_i n_i. Where some are selected, that would be small in a round of slow clients and large
        in one of fast ones, and the data of slow clients would count for less after all. Here n_eff
        is the base work n_0.

        Parameters
        ----------
        steps : int, >= 1
            n_i.
        """
        return self.base_steps / steps

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, as copies; plain values and arrays."""
        return {
            "count": self._count.copy(),
            "means": self._means.copy(),
            "sums": self._sums.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` left off."""
        self._count = np.array(state["count"], dtype=np.int64)
        self._means = np.array(state["means"], dtype=np.float64).reshape(_NUM_MEANS, -1)
        self._sums = np.array(state["sums"], dtype=np.float64).reshape(2, -1)

    def _estimates(self) -> tuple[FloatArray, FloatArray]:
        """Return c and r of every arm [s]; of no meaning where nothing is known."""
        steps, time_s, compute_s, reported = self._means
        squares, products = self._sums
        with np.errstate(divide="ignore", invalid="ignore"):
            prior = (_PRIOR * steps) ** 2
            all_work = time_s / steps
            fitted = (products + prior * all_work) / (squares + prior)
            told = compute_s / (reported * steps)  # where most pieces of work were reported
        step_s: NDArray[Any] = np.where(reported > 0.5, told, fitted)
        step_s = np.where(self._count > 0, np.clip(step_s, 0.0, all_work), 0.0)
        return step_s, time_s - step_s * steps

    def _grow(self, num_arms: int) -> None:
        if (missing := num_arms - self._count.size) > 0:
            self._count = np.pad(self._count, (0, missing))
            self._means = np.pad(self._means, ((0, 0), (0, missing)))
            self._sums = np.pad(self._sums, ((0, 0), (0, missing)))
