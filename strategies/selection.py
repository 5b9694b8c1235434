"""Masked top-m selection for a batch: the step that all policies share."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from .base import BoolArray, Explanation, FloatArray, IntArray

_LARGEST: Final = np.finfo(np.float64).max
_FEW_ROWS: Final = 8  # for which a heap is quicker than arrays


def top_arms(
    keys: Sequence[FloatArray],
    available: BoolArray,
    num_selected: int,
    rng: np.random.Generator,
    *,
    scratch: FloatArray | None = None,
) -> BoolArray:
    """Select the available arms with the largest keys.

    An arm whose first key is strictly above the cut is selected; arms tied at the cut are decided
    by the next key, and what the last key leaves tied by `rng`, uniformly. Random numbers are
    drawn for arms that are tied at a cut and for no others. Without keys the choice is uniform.

    Parameters
    ----------
    keys : sequence of (*batch, num_arms) float64
        Most important first; ``+inf`` is allowed, ``-inf`` and NaN are not. Left unchanged.
    available : (*batch, num_arms) bool
        Arms that may be selected.
    num_selected : int, >= 1
        Most arms per row, N.
    rng : numpy.random.Generator
        Decides what is still tied.
    scratch : (*batch, num_arms) float64, contiguous, optional
        Room to work in; saves large batches an allocation per round.

    Returns
    -------
    (*batch, num_arms) bool
        In each row ``min(num_selected, number of available arms)`` arms are true.
    """
    num_arms = available.shape[-1]
    if num_arms <= num_selected:
        return available.copy()
    rows = available.reshape(-1, num_arms)
    flat_keys = [key.reshape(rows.shape) for key in keys]
    first = flat_keys.pop(0) if flat_keys else rng.random(rows.shape)
    if not rows.all():
        first = np.where(rows, first, -np.inf)
    room = None if scratch is None else scratch.reshape(rows.shape)
    return _top(first, flat_keys, num_selected, rng, room).reshape(available.shape)


def _top(
    key: FloatArray,
    ties: list[FloatArray],
    num_selected: int,
    rng: np.random.Generator,
    scratch: FloatArray | None = None,
) -> BoolArray:
    """Return the mask of the largest in each row of `key`, where -inf bars an arm."""
    num_rows, num_arms = key.shape
    kth = num_arms - num_selected
    if scratch is None:
        scratch = key.copy()
    else:
        scratch[...] = key
    scratch.partition(kth, axis=1)
    cut = scratch[:, kth, np.newaxis]  # (num_rows, 1)
    mask = key >= cut
    # Every row holds at least num_selected such arms, so the total tells whether one holds more.
    if np.count_nonzero(mask) == num_rows * num_selected:
        return mask

    short = cut[:, 0] == -np.inf  # fewer candidates than num_selected: take them all
    if short.any():
        mask[short] = key[short] > -np.inf
    tied = np.flatnonzero(np.count_nonzero(mask, axis=1) > num_selected)
    if tied.size:
        key, cut = key[tied], cut[tied]
        at_cut = key == cut
        if ties:
            # +inf is for those above the cut, whom no later key may push out.
            next_key = np.minimum(ties[0][tied], _LARGEST)
            key = np.where(at_cut, next_key, np.where(key > cut, np.inf, -np.inf))
        else:
            key = np.where(key > cut, np.inf, -np.inf)
            key[at_cut] = rng.random(np.count_nonzero(at_cut))
        mask[tied] = _top(key, [other[tied] for other in ties[1:]], num_selected, rng)
    return mask


def cheapest_set(
    cost: FloatArray,
    value: FloatArray,
    available: BoolArray,
    num_selected: int,
    rng: np.random.Generator,
    *,
    sum_weight: float = 0.0,
) -> BoolArray:
    """Select the super arm with the least cost of its slowest arm, less what its arms are worth.

    It minimises max over k in S of cost_k + sum over k in S of (sum_weight cost_k - value_k), over
    all S of ``min(num_selected, number of available arms)`` available arms. For every arm that may
    be the slowest, the best of those that are no slower are compared.

    Parameters
    ----------
    cost, value : (*batch, num_arms) float64, finite
        Left unchanged.
    available : (*batch, num_arms) bool
        Arms that may be selected.
    num_selected : int, >= 1
        Most arms per row, N.
    rng : numpy.random.Generator
        Decides between arms of equal cost.
    sum_weight : float, >= 0
        Weight of the sum of the costs.

    Returns
    -------
    (*batch, num_arms) bool
        In each row ``min(num_selected, number of available arms)`` arms are true.
    """
    num_arms = available.shape[-1]
    if num_arms <= num_selected:
        return available.copy()
    rows = available.reshape(-1, num_arms)
    order = np.lexsort((rng.random(rows.shape), np.where(rows, cost.reshape(rows.shape), np.inf)))
    usable = np.take_along_axis(rows, order, axis=1)
    cost = np.take_along_axis(cost.reshape(rows.shape), order, axis=1)
    worth = np.take_along_axis(value.reshape(rows.shape), order, axis=1) - sum_weight * cost
    worth[~usable] = -np.inf
    short = np.count_nonzero(rows, axis=1) <= num_selected  # nothing to choose
    worth[short] = 0.0

    slowest = (
        _slowest_of_few(cost, worth, usable, num_selected)
        if len(rows) <= _FEW_ROWS
        else _slowest_of_many(cost, worth, usable, num_selected)
    )
    worth[np.arange(num_arms) > slowest[:, np.newaxis]] = -np.inf
    chosen = np.argsort(-worth, axis=1, kind="stable")[:, :num_selected]
    mask = np.zeros_like(rows)
    np.put_along_axis(mask, np.take_along_axis(order, chosen, axis=1), True, axis=1)
    mask[short] = rows[short]
    return mask.reshape(available.shape)


def _slowest_of_few(
    cost: FloatArray, worth: FloatArray, usable: BoolArray, num_selected: int
) -> IntArray:
    """Return, for each of few rows in order of cost, the slowest arm of the cheapest set."""
    slowest = np.full(len(cost), num_selected - 1)
    for row, worths in enumerate(worth):
        total = worth[row : row + 1, :num_selected].copy().sum(axis=1)[0]
        best = worths[:num_selected].tolist()  # those of largest worth among the first arms
        heapq.heapify(best)
        least = math.inf
        if usable[row, num_selected - 1]:
            least = float(cost[row, num_selected - 1] - total)
        # Later arms that are worth no more than the least of these are never among them.
        later = num_selected + np.flatnonzero(worths[num_selected:] > best[0])
        for arm, value, price in zip(
            later.tolist(), worths[later].tolist(), cost[row, later].tolist(), strict=True
        ):
            if value <= best[0]:
                continue
            total += value - heapq.heapreplace(best, value)
            if price - total < least and usable[row, arm]:
                least, slowest[row] = price - total, arm
    return slowest


def _slowest_of_many(
    cost: FloatArray, worth: FloatArray, usable: BoolArray, num_selected: int
) -> IntArray:
    """Do the same for many rows at once."""
    num_rows, num_arms = cost.shape
    best = worth[:, :num_selected].copy()
    total = best.sum(axis=1)
    least, slowest = np.full(num_rows, np.inf), np.full(num_rows, num_selected - 1)
    every_row = np.arange(num_rows)
    for arm in range(num_selected - 1, num_arms):
        if arm >= num_selected:
            place = best.argmin(axis=1)
            gain = worth[:, arm] - best[every_row, place]
            better = gain > 0
            if not better.any():
                continue
            best[every_row[better], place[better]] = worth[better, arm]
            total[better] += gain[better]
        price = np.where(usable[:, arm], cost[:, arm] - total, np.inf)
        cheaper = price < least
        least[cheaper], slowest[cheaper] = price[cheaper], arm
    return slowest


def quantile_of(values: FloatArray, among: BoolArray, part: float) -> FloatArray:
    """Compute a quantile of some of the arms, without interpolation.

    Parameters
    ----------
    values : (*batch, num_arms) float64
        One per arm.
    among : (*batch, num_arms) bool
        The arms that count.
    part : float, in [0, 1]
        Which quantile: the value at rank ``int(part n)`` of n, from 0, or the last.

    Returns
    -------
    (*batch,) float64
        ``inf`` where no arm counts.
    """
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.inf)
    count = np.count_nonzero(among, axis=-1)
    rank = np.clip((count * part).astype(np.int64), 0, np.maximum(count - 1, 0))
    ordered = np.sort(np.where(among, values, np.inf), axis=-1)
    return np.asarray(np.take_along_axis(ordered, rank[..., np.newaxis], axis=-1)[..., 0])


def explain_cheapest_set(
    costs: Mapping[str, FloatArray],
    values: Mapping[str, FloatArray],
    mask: BoolArray,
    *,
    unit: str,
    sum_weight: float = 0.0,
) -> Explanation:
    """Tell why :func:`cheapest_set` selected a super arm, in one score per arm.

    With L the largest cost in the super arm S, the score of arm k is

        max(cost_k - L, 0) + sum_weight cost_k - value_k.

    No available arm outside S has a smaller score than one inside: if k takes the place of j in
    S, the objective grows by at most score_k - score_j, and S has the least. Of arms of equal
    score the cheaper is selected.

    Parameters
    ----------
    costs : mapping of str to (*batch, num_arms) float64, finite
        The parts of the cost, each with those before it added; the last is the cost.
    values : mapping of str to (*batch, num_arms) float64, finite
        The parts of the value, which :func:`cheapest_set` was given the sum of.
    mask : (*batch, num_arms) bool
        The super arm.
    unit : str
        Of the cost.
    sum_weight : float, >= 0
        As :func:`cheapest_set` was given it.

    Returns
    -------
    Explanation
        Its arrays share no memory with the arguments.
    """
    cost = list(costs.values())[-1]
    slowest = np.where(mask, cost, -np.inf).max(axis=-1, initial=-np.inf, keepdims=True)
    slowest[slowest == -np.inf] = np.inf  # no arm was selected, none is slower
    parts: dict[str, FloatArray] = {}
    before: FloatArray | float = 0.0
    for name, up_to in costs.items():
        score = np.maximum(up_to - slowest, 0.0)
        score += sum_weight * up_to
        parts[name] = score - before
        before = score
    parts |= {name: 0.0 - value for name, value in values.items()}
    return Explanation("smallest", unit, parts, tie_break=0.0 - cost)
