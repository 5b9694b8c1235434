"""Non-stationary environment: heavy tails, bursts of absence, drift, load, reversed ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.base import (
    BoolArray,
    FloatArray,
    IntArray,
    check_count,
    check_real,
)

from .paper import Environment, RoundDraw

# Streams of random numbers beside those of Environment.
_NOISE: Final = 16
_PHASE: Final = 17
_BURSTS: Final = 18
_MEANS: Final = 19

# Draws behind a mean that has no closed form: its standard error is 1 % of a time's spread.
_NUM_DRAWS: Final = 4000
# Factors between which means are interpolated.
_NUM_FACTORS: Final = 33

COMPUTE_LAWS: Final = ("uniform", "lognormal", "pareto")


class NonstationaryEnvironment(Environment):
    """Environment in the paper's cell whose laws may have heavy tails and change with the round.

    Like every environment it draws what happens to each arm in a round from the parameters, the
    seed and the round alone. Rounds are cheap in increasing order.

    Parameters
    ----------
    compute_law : str
        The paper's ``uniform``, or a time that is multiplied by an independent factor of mean 1:
        ``lognormal`` or ``pareto``.
    compute_shape : float
        Of that factor: standard deviation of its logarithm, or Pareto's index, above 1.
    reversed_from_round : int, optional
        From this round on the fastest arm by expected time is as slow as the slowest was, and so
        on: ranks are reversed.
    reference_tau_max_s : float
        Deadline of the expected times by which ranks are reversed [s].
    drift : float, >= 0
        Speeds swing: all times of arm k in round t are multiplied by
        exp(drift sin(2 pi (t / period + phase_k))), phases drawn.
    daily : float, in [0, 1)
        Load: all times are multiplied by 1 + daily sin(2 pi (t / period + k / K)).
    period : int, >= 1
        Rounds after which drift and load repeat.
    leave_probability, return_probability : float, in [0, 1]
        Availability in bursts: an arm that is there goes away with the one probability per round,
        one that is away comes back with the other. Both 0: no absences.
    **parameters
        Those of :class:`.Environment`, slowdowns apart.

    Raises
    ------
    ConfigError
        If a parameter is out of range.
    """

    def __init__(
        self,
        *,
        compute_law: str = "uniform",
        compute_shape: float = 1.0,
        reversed_from_round: int | None = None,
        reference_tau_max_s: float = 5.0,
        drift: float = 0.0,
        daily: float = 0.0,
        period: int = 1000,
        leave_probability: float = 0.0,
        return_probability: float = 0.0,
        **parameters: Any,
    ) -> None:
        for name in ("slow_from_round", "slow_factor"):
            if name in parameters:
                raise ConfigError(
                    name, parameters[name], "does not apply here: use drift, or reversed ranks"
                )
        super().__init__(**parameters)
        self._parameters = parameters
        if compute_law not in COMPUTE_LAWS:
            raise ConfigError(
                "compute_law", compute_law, "must be one of " + ", ".join(COMPUTE_LAWS)
            )
        self._law = compute_law
        least = 1.0 if compute_law == "pareto" else 0.0
        self._shape_of_law = check_real("compute_shape", compute_shape, above=least)
        self._reversed_from = (
            math.inf
            if reversed_from_round is None
            else check_count("reversed_from_round", reversed_from_round, minimum=1)
        )
        self._reference_s = check_real("reference_tau_max_s", reference_tau_max_s, above=0.0)
        self._drift = check_real("drift", drift, at_least=0.0, at_most=10.0)
        self._daily = check_real("daily", daily, at_least=0.0, at_most=0.99)
        self._period = check_count("period", period, minimum=1)
        self._leave = check_real("leave_probability", leave_probability, at_least=0.0, at_most=1.0)
        self._return = check_real(
            "return_probability", return_probability, at_least=0.0, at_most=1.0
        )
        if self._leave and not self._return:
            raise ConfigError(
                "return_probability", return_probability, "must be above 0: arms come back"
            )
        self._phase = np.random.default_rng(self._spawn(_PHASE)).random(self.shape)
        self._burst_round = 0
        self._present: BoolArray = np.ones(self.shape, dtype=np.bool_)
        self._tables: dict[float, FloatArray] = {}

    def round(self, t: int) -> RoundDraw:
        """Return the draw of a round; see :meth:`Environment.round`."""
        draw = super().round(t)
        parts = [draw.download_s, draw.compute_s, draw.upload_s]
        failed = draw.failed
        if self._law != "uniform":
            parts[1] = parts[1] * self._noise(np.random.default_rng(self._spawn(_NOISE, t)))
        if t >= self._reversed_from:
            parts = [np.take_along_axis(part, self._reversal, axis=-1) for part in parts]
            failed = np.take_along_axis(failed, self._reversal, axis=-1)
        if self._drift or self._daily:
            factor = self._factors(t)
            parts = [part * factor for part in parts]
        available = draw.available & self._there(t) if self._leave else draw.available
        return replace(
            draw,
            available=available,
            download_s=parts[0],
            compute_s=parts[1],
            upload_s=parts[2],
            failed=failed,
        )

    def expected_time_s(self, tau_max_s: float, t: int = 1) -> FloatArray:
        """Return the true means E min(tau_k(t), tau_max) [s]; see the base class.

        Exact where there is a closed form, else from draws of their own, the same for all rounds.
        """
        if self._law == "uniform" and not (self._drift or self._daily):
            means = super().expected_time_s(tau_max_s)
        else:
            means = self._interpolated_means_s(tau_max_s, t)
        if t >= self._reversed_from:
            means = np.take_along_axis(means, self._reversal, axis=-1)
        return means

    def time_law(self, tau_max_s: float, t: int = 1) -> tuple[FloatArray, FloatArray]:
        """Return the law of the times, where it is the paper's in all rounds.

        Raises
        ------
        ConfigError
            In any other.
        """
        if self._law != "uniform" or self._drift or self._daily or t >= self._reversed_from:
            raise ConfigError("t", t, "must be a round with the paper's times")
        return super().time_law(tau_max_s, t)

    def _noise(self, rng: np.random.Generator) -> FloatArray:
        """Draw factors of mean 1 for the times of computing."""
        if self._law == "lognormal":
            spread = self._shape_of_law
            return rng.lognormal(-(spread**2) / 2, spread, self.shape)
        index = self._shape_of_law
        return np.asarray((rng.pareto(index, self.shape) + 1.0) * ((index - 1.0) / index))

    @cached_property
    def _reversal(self) -> IntArray:
        """For each arm the one whose times it has once ranks are reversed."""
        order = np.argsort(super().expected_time_s(self._reference_s), axis=-1, kind="stable")
        reversal = np.empty_like(order)
        np.put_along_axis(reversal, order, order[..., ::-1], axis=-1)
        return reversal

    def _factors(self, t: int) -> FloatArray:
        """Return how many times as long everything takes in a round, (*batch, num_arms)."""
        turns = t / self._period
        factor: FloatArray = np.exp(self._drift * np.sin(2 * np.pi * (turns + self._phase)))
        if self._daily:
            place = np.arange(self.num_arms) / self.num_arms
            factor = factor * (1.0 + self._daily * np.sin(2 * np.pi * (turns + place)))
        return factor

    def _there(self, t: int) -> BoolArray:
        """Return the arms that are present; each round follows from the one before."""
        if t < self._burst_round:
            self._burst_round = 0
        if self._burst_round == 0:  # as after a long time
            rng = np.random.default_rng(self._spawn(_BURSTS, 0))
            share = self._return / (self._return + self._leave)
            self._present = rng.random(self.shape) < share
        for each in range(self._burst_round + 1, t + 1):
            chance = np.random.default_rng(self._spawn(_BURSTS, each)).random(self.shape)
            self._present = np.where(self._present, chance >= self._leave, chance < self._return)
        self._burst_round = t
        return self._present

    def _interpolated_means_s(self, tau_max_s: float, t: int) -> FloatArray:
        """Return E min(f X, tau_max) for the factors f of a round, X the times without them."""
        tau_max_s = check_real("tau_max_s", tau_max_s, above=0.0)
        widest = self._drift + (0.0 if not self._daily else -math.log1p(-self._daily))
        logs = np.linspace(-widest, widest, _NUM_FACTORS) if widest else np.zeros(1)
        if tau_max_s not in self._tables:
            self._tables[tau_max_s] = self._mean_table_s(tau_max_s, np.exp(logs))
        table = self._tables[tau_max_s]  # (num_factors, *batch, num_arms)
        if not widest:
            return np.asarray(table[0])
        place = (np.log(self._factors(t)) + widest) / (2 * widest) * (_NUM_FACTORS - 1)
        below = np.clip(np.floor(place).astype(np.int64), 0, _NUM_FACTORS - 2)[np.newaxis]
        low = np.take_along_axis(table, below, axis=0)[0]
        high = np.take_along_axis(table, below + 1, axis=0)[0]
        return np.asarray(low + (place - below[0]) * (high - low))

    def _mean_table_s(self, tau_max_s: float, factors: FloatArray) -> FloatArray:
        twin = Environment(
            **{
                **self._parameters,
                "seed": self._spawn(_MEANS),
                "distance_m": self.distance_m,
                "availability": 1.0,
                "failure_probability": 0.0,
                "joins_at_round": 1,
            }
        )
        table = np.zeros((factors.size, *self.shape))
        rng = np.random.default_rng(self._spawn(_MEANS, 1))
        for number in range(1, _NUM_DRAWS + 1):
            draw = twin.round(number)
            compute_s = draw.compute_s
            if self._law != "uniform":
                compute_s = compute_s * self._noise(rng)
            time_s = draw.download_s + draw.upload_s + compute_s
            for row, factor in zip(table, factors, strict=True):
                row += np.minimum(factor * time_s, tau_max_s)
        table /= _NUM_DRAWS
        table += self._failure * (tau_max_s - table)
        return table
