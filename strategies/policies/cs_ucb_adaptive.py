"""CS-UCB with a bonus on the scale of what is observed, for a world that may change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from ..base import (
    BoolArray,
    Explanation,
    FloatArray,
    IntArray,
    RoundContext,
    RoundOutcome,
    SchedulingPolicy,
    Selection,
)
from ..policy_spec import PolicySpec
from ..selection import top_arms

_EXPLORATION: Final = 0.8
"""Bonus of a success's logarithm in standard errors per sqrt(ln t), a."""
_FAILURE_EXPLORATION: Final = 0.5
"""The same of the probability of failing, b."""
_PRIOR_PLAYS: Final = 5.0
"""The variance of all arms counts for as much as so many plays of an arm, c."""
_LARGEST_VARIANCE: Final = 2.0
"""Of logarithms: a mean time is at most e times the geometric mean."""
_HORIZON: Final = 1000
"""Rounds still to come, as long as fewer have been: what trying another arm must pay off in."""
_LENGTH_PER_TIME: Final = 4.0
"""How much more a round's length falls than the N-th smallest mean time, when more arms are tried:
slower arms scatter more, and the slowest of N is what a round waits for."""
_SECOND_TRIALS: Final = 0.15
_SECOND_TRIAL_TIME: Final = 2.0
"""Share of the arms that are tried a second time together, and what such an arm takes at most, in
units of the N-th smallest mean time."""
_CHANGE_SLACK: Final = 0.5
_CHANGE_CLIP: Final = 3.0
_CHANGE_PLAYS: Final = 8
"""Of the change detector: standard deviations that are let pass in each play and that one play
counts at most, and plays before it is trusted."""
_RETRIAL_SHARE: Final = 0.05
"""Share of the time since the last one that another trial of all arms may cost."""
_COLD_EXCESS: Final = math.log(2.0)
_COLD_ERRORS: Final = 3.0
_COLD_PRIOR: Final = 2.0
"""Of first times: how much longer than second ones they are before that counts, in logarithms and
in standard errors, and for how many arms the assumed variance of 1 counts."""
_LEAST_TIME: Final = 1e-9
"""Shortest time whose logarithm is taken, in units of tau_max."""
_FORGOTTEN: Final = (
    *("success_count", "failure_count", "mean_log_time", "log_square"),
    *("slower", "faster"),
)
"""What is learned of an arm and lost when it has changed."""
_COLD: Final = ("first_excess", "cold_count", "cold_sum", "cold_square")
_LARGEST: Final = np.finfo(np.float64).max


class CsUcbAdaptive(SchedulingPolicy):
    """CS-UCB-Adaptive: no parameter to set, close to the best fixed set.

    CS-UCB's bonus is scaled to tau_max, the longest time there can be, and so it explores for tens
    of thousands of rounds. Here every arm has an optimistic estimate of what it costs, in seconds,
    and the N available arms with the smallest are selected:

        cost_k = (1 - p_k) m_k exp(-a s_k sqrt(ln t / n_k)) + p_k tau_max,
        m_k    = exp(l_k + s_k^2 / 2),    s_k^2 = (S_k + c s^2) / (n_k - 1 + c),
        p_k    = max(q_k - b sqrt(q_k (1 - q_k) L / z_k), 0),    q_k = (f_k + q) / (z_k + 1),
        L      = max(ln(t m / tau_max), 0),

    with n successes, f failures, z = n + f, q the share of failures of all arms, m the mean time of
    all successes, a = 0.8, b = 0.5, c = 5.

    - l_k is the mean of the logarithms of the times of its successes and S_k the sum of their
      squared deviations, so that m_k is the mean of a lognormal law (Finney, "On the distribution
      of a variate whose logarithm is normally distributed", 1941). A fading link takes a hundred
      times as long now and then. One such time must not condemn a good arm, and in the mean of the
      times it would; but an arm that has them often must be told from one that has not.
    - s_k is on what scale the bonus has to be. After few plays it comes from the squared deviations
      of all arms, s^2: their mean per play, as c plays of the arm's own. Arms near to the access
      point scatter little, and a bonus on the scale of those that fade would have them tried for
      ever.
    - Failures are counted apart. In a mean each would be one time among others, and would blow up
      every bonus. Another one costs as much as tau_max / m rounds, and by that number t is divided:
      what can be lost is weighed against what the rounds can gain (Lai, "Adaptive treatment
      allocation and the multi-armed bandit problem", 1987). So an arm that failed is soon tried
      again where that costs little, since one fade must not condemn it, and late where it costs a
      minute.
    - Untried arms are tried together, N in a round, since a round costs as much as its slowest:
      as long as one more such round would pay off in the rounds to come, of which as many are
      expected as there have been, and at least 1000. With m arms tried, the saving per round is
      estimated by four times what the N-th best of them costs more than the (N m / (m + N))-th
      best, and the price by what such rounds have taken on average, less the N-th best.
    - Second trials are made together as well: one by one, each would prolong another round. After
      the trials the arms that were played once are selected before all others, the cheapest first,
      N in a round, up to 15 % of the arms, and as long as there are N that took at most twice the
      N-th smallest mean time. With fewer than 13 N arms that is none beyond the N cheapest.
    - The very first time of a client may be many times as long as those that follow: its app loads
      libraries and data. Arms that were played twice would then look faster than all that were
      played once, and go on being played. So e_k = ln(first / second time) is noted of each arm.
      Where the mean e of m arms is at least ln 2, and three standard errors sqrt(v / m), with
      v = (2 + sum of (e_k - e)^2) / (m + 1), every first time counts as exp(e) times shorter.
    - Two CUSUM detectors per arm (Page, "Continuous inspection schemes", 1954), on the logarithm
      of the time in pooled standard deviations, tell that it has become slower or faster; the
      threshold 2 ln(plays) bounds false alarms. Such an arm is forgotten and tried again, and so
      is every arm that was not played in that round, if all of it costs at most 5 % of the time
      since that was last done.

    For channels, :meth:`ask` selects one arm, the cheapest of those that are idle, and untried arms
    are tried one by one: the saving by another one is that of one channel in N.

    Parameters
    ----------
    channels : bool
        Whether it selects for one free channel at a time, of N = ``num_selected`` (see
        :class:`.SchedulingPolicy`).
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Attributes
    ----------
    success_count, failure_count : (*batch, num_arms) int64
        n and f, since the arm was last forgotten.
    mean_log_time, log_square : (*batch, num_arms) float64
        l, of times in seconds, and S.
    first_log_time : (*batch, num_arms) float64
        Logarithm of the very first time, as it was measured [s]; infinite where l does not have it.
    first_excess : (*batch,) float64
        e, by which that counts less; 0: none was found.
    """

    name: ClassVar[str] = "cs-ucb-adaptive"
    in_seconds: ClassVar[bool] = True
    _per_arm: ClassVar[Mapping[str, float]] = {
        **SchedulingPolicy._per_arm,
        **dict.fromkeys(_FORGOTTEN, 0.0),
        "first_log_time": math.inf,
    }
    _per_row: ClassVar[tuple[str, ...]] = (
        *("log_square_sum", "log_square_count"),
        *_COLD,
        *("trial_time_s", "num_trials", "since_retrial_s", "num_retrials"),
    )

    def __init__(self, *, channels: bool = False, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.channels = channels
        self._num_asked = 1 if channels else self.num_selected  # arms that are selected together
        shape, rows = self.shape, self.batch_shape
        self.success_count: IntArray = np.zeros(shape, dtype=np.int64)
        self.failure_count: IntArray = np.zeros(shape, dtype=np.int64)
        self.mean_log_time: FloatArray = np.zeros(shape)
        self.log_square: FloatArray = np.zeros(shape)
        self.slower: FloatArray = np.zeros(shape)  # the detectors
        self.faster: FloatArray = np.zeros(shape)
        self.first_log_time: FloatArray = np.full(shape, math.inf)
        self.first_excess: FloatArray = np.zeros(rows)
        # By how much first times are longer than second ones, of how many arms: sums.
        self.cold_count: FloatArray = np.zeros(rows)
        self.cold_sum: FloatArray = np.zeros(rows)
        self.cold_square: FloatArray = np.zeros(rows)
        # Squares of deviations of logarithms from an arm's own mean, of all arms.
        self.log_square_sum: FloatArray = np.zeros(rows)
        self.log_square_count: FloatArray = np.zeros(rows)
        # What rounds of untried arms have taken, and how many there were.
        self.trial_time_s: FloatArray = np.zeros(rows)
        self.num_trials: FloatArray = np.zeros(rows)
        self.since_retrial_s: FloatArray = np.zeros(rows)
        self.num_retrials: FloatArray = np.zeros(rows)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` left off.

        Version 0.1.0 kept no squares of each arm: S is taken from those of all arms. Nor did it
        know first times.
        """
        if "first_log_time" not in state:
            known = {name: np.zeros(self.batch_shape) for name in _COLD}
            state = {"first_log_time": np.full(self.shape, math.inf), **known, **state}
        if "log_square" not in state and {"log_square_sum", "success_count"} <= state.keys():
            squares, count = (np.asarray(state[f"log_square_{key}"]) for key in ("sum", "count"))
            degrees = np.maximum(np.asarray(state["success_count"]) - 1, 0)
            usual = _ratio(squares, count)[..., np.newaxis]
            state = {**state, "log_square": degrees * usual}
        super().load_state_dict(state)

    def _select(self, context: RoundContext) -> BoolArray:
        key = -self.cost_s(context.round)
        again = self._tried_again(context)
        if again.any():
            key -= np.where(again, key.min(axis=-1, keepdims=True), 0.0)
        untried = self._untried()
        if untried.any():
            tried = self._worth_trying(context.round)[..., np.newaxis]
            key[untried] = np.where(np.broadcast_to(tried, key.shape), np.inf, -_LARGEST)[untried]
        return top_arms((key,), context.available, self._num_asked, self._rng)

    def _explain(self, selection: Selection) -> Explanation:
        mean, expected, cost = self._costs_s(selection.round)
        parts = {"mean": mean, "failures": expected - mean, "bonus": cost - expected}
        again = self._tried_again(selection.context)
        if again.any():
            parts["bonus"] -= np.where(again, cost.max(axis=-1, keepdims=True), 0.0)
        untried = self._untried()
        if untried.any():
            parts["mean"][untried] = parts["failures"][untried] = 0.0
            first = self._worth_trying(selection.round)[..., np.newaxis]
            parts["bonus"] = np.where(untried, np.where(first, -np.inf, np.inf), parts["bonus"])
        return Explanation("smallest", "s", parts)

    def cost_s(self, round: int) -> FloatArray:
        """Compute the optimistic cost of every arm that was tried.

        Parameters
        ----------
        round : int, >= 1
            Round number t.

        Returns
        -------
        (*batch, num_arms) float64
            Seconds, in [0, tau_max]; of an arm that was not tried, that of an average one. Where
            tau_max has come down since, an arm may take longer, and counts with what it takes.
        """
        return self._costs_s(round)[2]

    def mean_time_s(self) -> FloatArray:
        """Compute the mean time of a success of every arm.

        Returns
        -------
        (*batch, num_arms) float64
            m, or for an arm without a success the mean of the others, weighed by theirs [s].
        """
        return self._mean_times_s(self._variance())[0]

    def _costs_s(self, round: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the mean time of every arm, that with its failures, and its cost [s]."""
        tries, variance = self._tries(), self._variance()
        mean, overall = self._mean_times_s(variance)
        share = self._failure_share(tries)
        failed = np.maximum(mean, self.tau_max_s)  # a deadline that is found comes down
        expected = mean + share * (failed - mean)
        log_round = math.log(round)
        error = np.sqrt(variance * (log_round / np.maximum(self.success_count, 1)))
        cost = mean * np.exp(-_EXPLORATION * error)
        log_gain = np.log(np.maximum(round * overall / self.tau_max_s, 1.0))
        failing = share - (
            _FAILURE_EXPLORATION
            * np.sqrt(share * (1.0 - share) * (log_gain / np.maximum(tries, 1)))
        )
        np.maximum(failing, 0.0, out=failing)
        cost += failing * (failed - cost)
        return mean, expected, cost

    def _variance(self) -> FloatArray:
        """Return the variance of the logarithm of a success's time, s^2."""
        pooled = _ratio(self.log_square_sum, self.log_square_count)[..., np.newaxis]
        plays = np.maximum(self.success_count - 1, 0) + _PRIOR_PLAYS
        return np.asarray((self.log_square + _PRIOR_PLAYS * pooled) / plays)

    def _failure_share(self, tries: IntArray) -> FloatArray:
        """Return the estimated probability of failing, q."""
        overall = self.failure_count.sum(axis=-1) + 0.5
        overall /= tries.sum(axis=-1) + 1.0
        return np.asarray((self.failure_count + overall[..., np.newaxis]) / (tries + 1.0))

    def _mean_times_s(self, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return m_k, or m for an arm that has no success; and m, (*batch, 1)."""
        count = self.success_count
        typical = np.exp(self.mean_log_time)
        mean = typical * np.exp(0.5 * np.minimum(variance, _LARGEST_VARIANCE))
        mean = np.minimum(mean, np.maximum(typical, self.tau_max_s))
        overall = _ratio((mean * count).sum(axis=-1), count.sum(axis=-1))[..., np.newaxis]
        return np.where(count > 0, mean, overall), overall

    def _tries(self) -> IntArray:
        return self.success_count + self.failure_count

    def _untried(self) -> BoolArray:
        return np.asarray(self._tries() == 0)

    def _worth_trying(self, round: int) -> BoolArray:
        """Tell for each row whether it would pay off to try as many arms as are selected together.

        Returns
        -------
        (*batch,) bool
        """
        tries = self._tries()
        tried = tries > 0
        count = np.count_nonzero(tried, axis=-1)
        few = count < 2 * self.num_selected
        if few.all():
            return np.asarray(few)
        share = self.failure_count / np.maximum(tries, 1)
        mean = self.mean_time_s()
        failed = np.maximum(mean, self.tau_max_s)
        cost = mean * (1.0 - share) + share * failed
        last = np.maximum(cost.max(axis=-1, keepdims=True), self.tau_max_s)
        cost = np.sort(np.where(tried, cost, last), axis=-1)
        now = _at_rank(cost, np.minimum(self.num_selected, count) - 1.0)
        then = _at_rank(cost, self.num_selected * count / (count + self._num_asked) - 1.0)
        price = _ratio(self.trial_time_s, self.num_trials) - now
        rounds = max(_HORIZON, round * self._num_asked / self.num_selected)
        # Not above: where no tried arm is any good, another trial costs nothing (but rounding).
        price -= _LEAST_TIME * self.tau_max_s
        return np.asarray(few | (_LENGTH_PER_TIME * (now - then) * rounds >= price))

    def _tried_again(self, context: RoundContext) -> BoolArray:
        """Return the arms that go before all others since they were played once.

        Returns
        -------
        (*batch, num_arms) bool
        """
        nothing = np.zeros(self.shape, dtype=np.bool_)
        tries, n = self._tries(), self.num_selected
        tried = np.count_nonzero(tries, axis=-1)
        few = np.count_nonzero(tries > 1, axis=-1) + n <= _SECOND_TRIALS * tried
        if self.channels or not few.any():
            return nothing
        once = (tries == 1) & (self.success_count == 1) & context.available
        if not (few & (np.count_nonzero(once, axis=-1) >= n)).any():
            return nothing
        mean = self.mean_time_s()
        now = np.partition(np.where(tries > 0, mean, np.inf), n - 1, axis=-1)[..., n - 1 : n]
        once &= mean <= _SECOND_TRIAL_TIME * now
        trial = (self._untried() & context.available).any(axis=-1)
        trial &= self._worth_trying(context.round)
        few &= (np.count_nonzero(once, axis=-1) >= n) & ~trial
        return np.asarray(once & few[..., np.newaxis])

    def _learn(self, selection: Selection, outcome: RoundOutcome) -> None:
        arms = selection.positions
        if not arms.size:
            return
        completed = outcome.completed.take(arms)
        # Not limited: what was in time for its own deadline may be beyond that of today.
        time_s = np.where(completed, outcome.round_trip_time_s.take(arms), self.tau_max_s)
        rows = arms // self.num_arms
        self._note_lengths(arms, rows, time_s)
        alarmed = self._detect(arms, rows, time_s, completed)
        self._update_means(arms, rows, time_s, completed)
        if alarmed.size:
            self._forget(selection, alarmed)

    def _note_lengths(self, arms: IntArray, rows: IntArray, time_s: FloatArray) -> None:
        """Learn what rounds cost, and those of untried arms in particular."""
        played, first = np.unique(rows, return_index=True)  # a row's arms are neighbours
        length_s = np.maximum.reduceat(time_s, first)
        untried = self._untried().take(arms)
        trial = 2 * np.add.reduceat(untried.astype(np.int64), first) >= self._num_asked
        _flat(self.since_retrial_s)[played] += length_s
        _flat(self.trial_time_s)[played] += np.where(trial, length_s, 0.0)
        _flat(self.num_trials)[played] += trial

    def _detect(
        self, arms: IntArray, rows: IntArray, time_s: FloatArray, completed: BoolArray
    ) -> IntArray:
        """Return the arms, as positions, that have become slower or faster."""
        count = self.success_count.take(arms)
        known = count >= _CHANGE_PLAYS
        arms, rows, completed, count = arms[known], rows[known], completed[known], count[known]
        if not arms.size:
            return arms
        deviation = np.sqrt(_ratio(_flat(self.log_square_sum), _flat(self.log_square_count)))[rows]
        deviation *= np.sqrt(1.0 + 1.0 / count)
        change = self._log(time_s[known]) - self.mean_log_time.take(arms)
        change = np.where(completed, change / np.maximum(deviation, _LEAST_TIME), np.inf)
        change = np.clip(change, -_CHANGE_CLIP, _CHANGE_CLIP)
        threshold = 2.0 * np.log1p(self.play_count.sum(axis=-1).reshape(-1)[rows])
        alarm = np.zeros(arms.size, dtype=np.bool_)
        for sums, excess in ((self.slower, change), (self.faster, -change)):
            value = np.maximum(sums.take(arms) + excess - _CHANGE_SLACK, 0.0)
            _flat(sums)[arms] = value
            alarm |= value > threshold
        return arms[alarm]

    def _update_means(
        self, arms: IntArray, rows: IntArray, time_s: FloatArray, completed: BoolArray
    ) -> None:
        _flat(self.failure_count)[arms[~completed]] += 1
        arms, rows, time_s = arms[completed], rows[completed], time_s[completed]
        before = self.success_count.take(arms)
        log_time, mean_log = self._log(time_s), self.mean_log_time.take(arms)
        if (first := self.play_count.take(arms) == 1).any():  # tell() has counted this one
            _flat(self.first_log_time)[arms[first]] = log_time[first]
            log_time[first] -= _flat(self.first_excess)[rows[first]]
        new_mean_log = mean_log + (log_time - mean_log) / (before + 1)
        again = before > 0  # the first has no deviation
        square = np.where(again, (log_time - mean_log) * (log_time - new_mean_log), 0.0)
        num_rows = _flat(self.log_square_sum).size
        _flat(self.log_square_sum)[...] += np.bincount(rows, square, num_rows)
        _flat(self.log_square_count)[...] += np.bincount(rows[again], minlength=num_rows)
        _flat(self.log_square)[arms] += square
        _flat(self.mean_log_time)[arms] = new_mean_log
        _flat(self.success_count)[arms] = before + 1
        second = (before == 1) & np.isfinite(self.first_log_time.take(arms))
        if second.any():
            self._compare_first(arms[second], rows[second], log_time[second])

    def _compare_first(self, arms: IntArray, rows: IntArray, log_time: FloatArray) -> None:
        """Learn from second times by how much the first ones are longer."""
        excess = self.first_log_time.take(arms) - log_time
        count, total, square = (_flat(getattr(self, name)) for name in _COLD[1:])
        for sums, values in ((count, np.ones_like(excess)), (total, excess), (square, excess**2)):
            sums += np.bincount(rows, values, sums.size)
        for row in np.unique(rows).tolist():
            mean = total[row] / count[row]
            squares = _COLD_PRIOR + max(square[row] - count[row] * mean**2, 0.0)
            error = math.sqrt(squares / (_COLD_PRIOR + count[row] - 1.0) / count[row])
            if mean >= max(_COLD_EXCESS, _COLD_ERRORS * error):
                self._count_first_less(row, mean)

    def _count_first_less(self, row: int, excess: float) -> None:
        """Let the first times in a row of the batch count for less by so much, as a logarithm."""
        arms = slice(row * self.num_arms, (row + 1) * self.num_arms)
        first, plays = _flat(self.first_log_time)[arms], _flat(self.success_count)[arms]
        mean_log, log_square = _flat(self.mean_log_time)[arms], _flat(self.log_square)[arms]
        before = _flat(self.first_excess)[row]
        _flat(self.first_excess)[row] = excess
        known = np.isfinite(first) & (plays > 0)
        first, plays = first[known] - before, plays[known]
        others = (plays * mean_log[known] - first) / np.maximum(plays - 1, 1)  # their mean
        deviation = first - others
        less = excess - before
        change = ((deviation - less) ** 2 - deviation**2) * (plays - 1) / plays
        log_square[known] = np.maximum(log_square[known] + change, 0.0)
        _flat(self.log_square_sum)[row] = max(
            _flat(self.log_square_sum)[row] + float(change.sum()), 0.0
        )
        mean_log[known] -= less / plays

    def _forget(self, selection: Selection, alarmed: IntArray) -> None:
        """Forget the arms that have changed, and where it is cheap those that were not watched."""
        forgotten = np.zeros(self.shape, dtype=np.bool_)
        _flat(forgotten)[alarmed] = True
        price = _ratio(self.trial_time_s, self.num_retrials + 1.0)  # of one trial of all arms
        retried = forgotten.any(axis=-1) & (price <= _RETRIAL_SHARE * self.since_retrial_s)
        self.num_retrials += retried
        self.since_retrial_s[...] = np.where(retried, 0.0, self.since_retrial_s)
        forgotten |= retried[..., np.newaxis] & ~selection.mask
        for name in _FORGOTTEN:
            getattr(self, name)[forgotten] = 0
        self.first_log_time[forgotten] = math.inf

    def _log(self, time_s: FloatArray) -> FloatArray:
        return np.log(np.maximum(time_s, _LEAST_TIME * self.tau_max_s))


def _ratio(part: FloatArray, whole: FloatArray | IntArray) -> FloatArray:
    """Return ``part / whole``, 0 where there is nothing."""
    return np.where(whole > 0, part / np.maximum(whole, _LEAST_TIME), 0.0)


def _flat(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view with one axis."""
    return array.reshape(-1)


def _at_rank(sorted_values: FloatArray, rank: FloatArray) -> FloatArray:
    """Return the value at a rank from 0 for each row, on the line through its neighbours.

    The best of a few is no limit: below rank 0 the line goes on, down to a value of 0.
    """
    rank = np.minimum(rank, sorted_values.shape[-1] - 1.0)
    low = np.maximum(np.floor(rank), 0.0).astype(np.int64)[..., np.newaxis]
    high = np.minimum(low + 1, sorted_values.shape[-1] - 1)
    below = np.take_along_axis(sorted_values, low, axis=-1)[..., 0]
    above = np.take_along_axis(sorted_values, high, axis=-1)[..., 0]
    return np.asarray(np.maximum(below + (rank - low[..., 0]) * (above - below), 0.0))


SPEC: Final = PolicySpec.of(
    CsUcbAdaptive,
    summary="learns which clients are fast within few rounds, and again when that changes",
)
