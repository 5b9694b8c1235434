"""The paper's environment: availability and times of all arms, the same for every policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import numpy as np
from numpy.typing import ArrayLike

from flower_scheduling.client.link.model import ComputeModel, LinkModel
from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.base import BoolArray, FloatArray, check_count, check_real

from ..theory.round_time_law import RoundTimeLaw

# Independent streams of random numbers: setting an availability does not move the latencies.
_PLACEMENT: Final = 0
_DOWNLOAD: Final = 1
_COMPUTE: Final = 2
_UPLOAD: Final = 3
_AVAILABLE: Final = 4
_FAILED: Final = 5

_VALUES_PER_BLOCK: Final = 2**16  # the arrays of a block fit the cache
_MAX_ROUNDS_PER_BLOCK: Final = 256


@dataclass(frozen=True, slots=True)
class RoundDraw:
    """Draw of one round: availability, times and failures of all arms, selected or not.

    Attributes
    ----------
    available : (*batch, num_arms) bool
        Arms that may be selected.
    download_s, compute_s, upload_s : (*batch, num_arms) float64, > 0
        Parts of the round-trip time of each arm, not limited by any deadline [s].
    failed : (*batch, num_arms) bool
        Arms that would deliver nothing in this round.
    member : (*batch, num_arms) bool, optional
        Arms that have joined; ``None``: all.
    failure_s : (*batch, num_arms) float64, optional
        After what time it is known that an arm has failed, read only where it has: its error comes,
        or the deadline has passed. ``None``: at the deadline, all of them [s].
    """

    available: BoolArray
    download_s: FloatArray
    compute_s: FloatArray
    upload_s: FloatArray
    failed: BoolArray
    member: BoolArray | None = None
    failure_s: FloatArray | None = None

    @property
    def round_trip_time_s(self) -> FloatArray:
        """Download + compute + upload [s], a new array; ``inf`` for arms that failed."""
        total = self.download_s + self.compute_s
        total += self.upload_s
        total[self.failed] = np.inf
        return total


class StudyEnvironment(Protocol):
    """Interface that a study needs of an environment."""

    num_arms: int
    batch_shape: tuple[int, ...]

    def round(self, t: int) -> RoundDraw:
        """Return the draw of a round."""

    def expected_time_s(self, tau_max_s: float, t: int = 1) -> FloatArray:
        """Return the means that policies have to learn, E min(tau_k(t), tau_max) [s]."""


class Environment:
    """Environment of random latencies, availability and failures in the paper's cell.

    The draw of round t depends on the parameters, the seed and t alone: not on what was asked
    before, and so not on the policy. Rows of the batch are independent.

    Parameters
    ----------
    num_arms : int, >= 1
        Number of arms, K.
    batch_shape : tuple of int
        Leading axes of every array, for instance one row per seed.
    seed : int or numpy.random.SeedSequence
        Where all draws come from.
    link : LinkModel, optional
        Law of download and upload times; the paper's by default.
    compute : ComputeModel, optional
        Law of the local update times; the paper's by default.
    availability : scalar or (num_arms,) array-like of float, in [0, 1]
        Probability that an arm is available in a round, independent of everything else.
    failure_probability : scalar or (num_arms,) array-like of float, in [0, 1]
        Probability that an arm does not answer in a round.
    joins_at_round : scalar or (num_arms,) array-like of int, >= 1
        First round in which an arm belongs to the fleet.
    slow_from_round : scalar or (num_arms,) array-like of int, >= 1, optional
        First round in which an arm takes ``slow_factor`` times as long; never if left out.
    slow_factor : scalar or (num_arms,) array-like of float, in [1e-6, 1e6]
        Multiplies all three parts of the round-trip time from then on.
    distance_m : (num_arms,) or (*batch, num_arms) array-like of float, > 0, optional
        Distances from the access point [m]; drawn uniformly in area for each row if left out.

    Attributes
    ----------
    distance_m : (*batch, num_arms) float64
        Distances from the access point [m], fixed over all rounds.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type, shape or range.
    """

    def __init__(
        self,
        *,
        num_arms: int,
        batch_shape: tuple[int, ...] = (),
        seed: int | np.random.SeedSequence = 0,
        link: LinkModel | None = None,
        compute: ComputeModel | None = None,
        availability: ArrayLike = 1.0,
        failure_probability: ArrayLike = 0.0,
        joins_at_round: ArrayLike = 1,
        slow_from_round: ArrayLike | None = None,
        slow_factor: ArrayLike = 1.0,
        distance_m: ArrayLike | None = None,
    ) -> None:
        self.num_arms = check_count("num_arms", num_arms, minimum=1)
        self.batch_shape = tuple(check_count("batch_shape", n, minimum=1) for n in batch_shape)
        self.shape = (*self.batch_shape, self.num_arms)
        if not isinstance(seed, np.random.SeedSequence):
            seed = np.random.SeedSequence(check_count("seed", seed, minimum=0))
        self._seed = seed
        self._link = LinkModel() if link is None else link
        self._compute = ComputeModel() if compute is None else compute
        self._availability = self._per_arm("availability", availability, 0.0, 1.0)
        self._failure = self._per_arm("failure_probability", failure_probability, 0.0, 1.0)
        self._joins = self._per_arm("joins_at_round", joins_at_round, 1, math.inf)
        self._slow_from = self._per_arm(
            "slow_from_round", math.inf if slow_from_round is None else slow_from_round, 1, math.inf
        )
        self._slow_factor = self._per_arm("slow_factor", slow_factor, 1e-6, 1e6)
        self.distance_m = self._distances(distance_m)
        self._snr = self._link.mean_snr(self.distance_m)

        self._rounds_per_block = min(
            max(_VALUES_PER_BLOCK // math.prod(self.shape), 1), _MAX_ROUNDS_PER_BLOCK
        )
        self._block_index = -1
        self._block: RoundDraw
        self._means: tuple[tuple[float, bytes], FloatArray] | None = None

    def round(self, t: int) -> RoundDraw:
        """Return the draw of a round; any order of rounds will do.

        Parameters
        ----------
        t : int, >= 1
            Round number.

        Returns
        -------
        RoundDraw
            Read-only arrays.

        Raises
        ------
        ConfigError
            If `t` is not an integer >= 1.
        """
        index, offset = divmod(check_count("t", t, minimum=1) - 1, self._rounds_per_block)
        if index != self._block_index:
            self._block = self._draw_block(index)
            self._block_index = index
        block = self._block
        return RoundDraw(
            available=block.available[offset],
            download_s=block.download_s[offset],
            compute_s=block.compute_s[offset],
            upload_s=block.upload_s[offset],
            failed=block.failed[offset],
            member=None if block.member is None else block.member[offset],
        )

    @property
    def regimes(self) -> list[int]:
        """Rounds from which the means differ from those before, the first being 1."""
        changing = self._slow_from[np.isfinite(self._slow_from) & (self._slow_factor != 1.0)]
        return sorted({1, *changing.astype(int).tolist()})

    def expected_time_s(self, tau_max_s: float, t: int = 1) -> FloatArray:
        """Return the true means that policies have to learn, E min(tau_k(t), tau_max).

        Exact, not from draws; see :class:`.RoundTimeLaw`. An arm that does not
        answer counts as tau_max.

        Parameters
        ----------
        tau_max_s : float, > 0
            Deadline tau_max [s].
        t : int, >= 1
            Round; it matters only with `slow_from_round`.

        Returns
        -------
        (*batch, num_arms) float64, in (0, tau_max]
            Means [s]; read-only.

        Raises
        ------
        ConfigError
            If an argument is out of range.
        """
        tau_max_s = check_real("tau_max_s", tau_max_s, above=0.0)
        factor = self.slowdown(t)
        key = (tau_max_s, factor.tobytes())
        if self._means is None or self._means[0] != key:
            law = RoundTimeLaw(self._link, self._compute, self.distance_m)
            means = np.empty(self.shape)
            for value in np.unique(factor):  # E min(f X, c) = f E min(X, c / f)
                arms = factor == value
                means[..., arms] = value * law.truncated_mean_s(tau_max_s / value)[..., arms]
            means += self._failure * (tau_max_s - means)
            means.setflags(write=False)
            self._means = (key, means)
        return self._means[1]

    def time_law(self, tau_max_s: float, t: int = 1) -> tuple[FloatArray, FloatArray]:
        """Return the law of min(tau_k(t), tau_max) on points between 0 and tau_max.

        What :func:`.mean_slowest_of_law` takes, a row of the batch at a time.
        Some ten times the work of :meth:`expected_time_s`.

        Parameters
        ----------
        tau_max_s : float, > 0
            Deadline tau_max [s].
        t : int, >= 1
            Round; it matters only with `slow_from_round`.

        Returns
        -------
        survival : (num_points, *batch, num_arms) float64, in [0, 1]
            P(min(tau_k, tau_max) > y) at each point y.
        weight_s : (num_points,) float64, > 0
            Weights of the points [s], so that ``weight_s @ survival`` is the mean.

        Raises
        ------
        ConfigError
            If an argument is out of range.
        """
        tau_max_s = check_real("tau_max_s", tau_max_s, above=0.0)
        factor = self.slowdown(t)
        law = RoundTimeLaw(self._link, self._compute, self.distance_m)
        least = factor.min()  # the quickest arms decide where the points begin
        y_s, weight_s = (least * values for values in law.nodes_s(tau_max_s / least))
        survival = np.empty((y_s.size, *self.shape))
        for value in np.unique(factor):
            arms = factor == value
            survival[..., arms] = law.survival(y_s / value)[..., arms]
        survival += self._failure * (1.0 - survival)
        return survival, weight_s

    def slowdown(self, t: int) -> FloatArray:
        """Return the factor of each arm's time in round `t`, (num_arms,)."""
        return np.where(check_count("t", t, minimum=1) >= self._slow_from, self._slow_factor, 1.0)

    @property
    def failure_probability(self) -> FloatArray:
        """Probability that an arm does not answer in a round, (num_arms,)."""
        return self._failure

    def _draw_block(self, index: int) -> RoundDraw:
        """Draw `_rounds_per_block` rounds at once, as a first axis: far fewer calls."""
        shape = (self._rounds_per_block, *self.shape)
        link = self._link

        def rng(stream: int) -> np.random.Generator:
            return np.random.default_rng(self._spawn(stream, index))

        download_s = link.draw_transfer_at_snr_s(
            rng(_DOWNLOAD), link.download_bits, self._snr, shape
        )
        compute_s = self._compute.draw_compute_s(rng(_COMPUTE), self.num_arms, shape)
        upload_s = link.draw_transfer_at_snr_s(rng(_UPLOAD), link.upload_bits, self._snr, shape)
        available = _bernoulli(partial(rng, _AVAILABLE), self._availability, shape)
        failed = _bernoulli(partial(rng, _FAILED), self._failure, shape)

        first = index * self._rounds_per_block + 1
        rounds = np.arange(first, first + self._rounds_per_block)
        rounds = rounds.reshape(-1, *(1 for _ in self.shape))  # (rounds, 1, ..., 1)
        slow = rounds >= self._slow_from
        if slow.any():
            factor = np.where(slow, self._slow_factor, 1.0)
            for part in (download_s, compute_s, upload_s):
                part *= factor
        member: BoolArray | None = None
        if (rounds < self._joins).any():
            member = np.array(np.broadcast_to(rounds >= self._joins, shape))
            available = available & member
        for array in (available, download_s, compute_s, upload_s, failed, member):
            if array is not None:
                array.setflags(write=False)
        return RoundDraw(available, download_s, compute_s, upload_s, failed, member)

    def _spawn(self, *key: int) -> np.random.SeedSequence:
        # Not seed.spawn, which counts its calls and so depends on what was asked before.
        return np.random.SeedSequence(self._seed.entropy, spawn_key=(*self._seed.spawn_key, *key))

    def _distances(self, value: ArrayLike | None) -> FloatArray:
        if value is None:
            rng = np.random.default_rng(self._spawn(_PLACEMENT))
            return self._link.draw_distances_m(rng, self.shape)
        array = _numbers("distance_m", value)
        if (
            array.shape not in ((self.num_arms,), self.shape)
            or not ((array > 0) & np.isfinite(array)).all()
        ):
            raise ConfigError(
                "distance_m", value, f"must be {self.num_arms} finite numbers > 0 per row"
            )
        return np.array(np.broadcast_to(array, self.shape))

    def _per_arm(self, key: str, value: ArrayLike, low: float, high: float) -> FloatArray:
        array = _numbers(key, value)
        if array.shape not in ((), (self.num_arms,)):
            raise ConfigError(key, value, f"must be one number, or {self.num_arms} of them")
        if not ((array >= low) & (array <= high)).all():
            raise ConfigError(key, value, f"must be in [{low:g}, {high:g}]")
        return np.array(np.broadcast_to(array, (self.num_arms,)))


def _numbers(key: str, value: ArrayLike) -> FloatArray:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise ConfigError(key, value, "must be numbers")
    return array.astype(np.float64)


def _bernoulli(
    make_rng: Callable[[], np.random.Generator], probability: FloatArray, shape: tuple[int, ...]
) -> BoolArray:
    if (probability == probability[0]).all() and probability[0] in (0.0, 1.0):
        return np.full(shape, probability[0] == 1.0)  # the usual case, without a draw
    return np.asarray(make_rng().random(shape) < probability)
