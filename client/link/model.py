"""Time of a client's round: the paper's radio link and compute model.

The one copy of this model. The client's link emulation draws from it a value at a time, the
Monte-Carlo studies hundreds of millions at a time; both get the same law. Equations are those of
the latency model of Xia et al., "Multi-Armed Bandit Based Client Scheduling for Federated
Learning", IEEE TWC 2020, with the values of its numerical results as defaults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["ComputeModel", "LinkModel", "transfer_survival"]

FloatArray: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = int | tuple[int, ...] | None

_LN2: Final = math.log(2.0)


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Rayleigh-fading link between the server and a client at a fixed distance.

    The rate is B log2(1 + p g |h|^2 / sigma^2) with path gain g and |h|^2 ~ Exp(1), drawn afresh
    for every transfer: download and upload of one round fade independently.

    Parameters
    ----------
    cell_radius_m : float
        Radius of the disc on which clients are placed [m].
    path_loss_intercept_db : float
        Path loss at 1 km [dB].
    path_loss_slope_db : float
        Path loss per decade of distance [dB].
    tx_power_dbm : float
        Transmit power p, the same in both directions [dBm].
    noise_dbm : float
        Noise power sigma^2 [dBm].
    bandwidth_hz : float
        Bandwidth B of one client [Hz].
    download_bits, upload_bits : float
        Size m of the model on its way to and from the client [bit].

    Raises
    ------
    ValueError
        If a number is not finite, or one other than a dB or dBm value is not positive.
    """

    cell_radius_m: float = 500.0
    path_loss_intercept_db: float = 128.1
    path_loss_slope_db: float = 37.6
    tx_power_dbm: float = 23.0
    noise_dbm: float = -107.0
    bandwidth_hz: float = 15e3
    download_bits: float = 5000.0
    upload_bits: float = 5000.0

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.name.endswith(("_db", "_dbm")):
                _require(math.isfinite(value), spec.name, value, "a finite number")
            else:
                _require_positive(spec.name, value)

    def draw_distances_m(self, rng: np.random.Generator, shape: Shape = None) -> FloatArray:
        """Place clients uniformly in area on the disc: d = radius sqrt(u).

        Parameters
        ----------
        rng : numpy.random.Generator
            Source of the placement.
        shape : int or tuple of int, optional
            Shape of the result, e.g. ``(num_seeds, num_arms)``.

        Returns
        -------
        shape float64, in (0, cell_radius_m]
            Distances [m].
        """
        # 1 - u lies in (0, 1], so that no client sits on the antenna, where the model breaks down.
        return np.asarray(self.cell_radius_m * np.sqrt(1.0 - rng.random(shape)))

    def path_loss_db(self, distance_m: ArrayLike) -> FloatArray:
        """Path loss: intercept + slope log10(d in km).

        Parameters
        ----------
        distance_m : (...) float, > 0
            Distance from the server [m].

        Returns
        -------
        (...) float64
            Path loss [dB].

        Raises
        ------
        ValueError
            If a distance is not finite and positive.
        """
        distance_m = np.asarray(distance_m, dtype=np.float64)
        if not np.all((distance_m > 0.0) & (distance_m < np.inf)):
            raise ValueError("distance_m: every distance must be finite and above 0 m")
        loss_db = self.path_loss_intercept_db + self.path_loss_slope_db * np.log10(
            distance_m / 1000.0
        )
        return np.asarray(loss_db)

    def mean_snr(self, distance_m: ArrayLike) -> FloatArray:
        """Signal-to-noise ratio averaged over fading, as a linear ratio.

        Parameters
        ----------
        distance_m : (...) float, > 0
            Distance from the server [m].

        Returns
        -------
        (...) float64, > 0
            Mean SNR, linear.

        Raises
        ------
        ValueError
            If a distance is not finite and positive.
        """
        snr_db = self.tx_power_dbm - self.noise_dbm - self.path_loss_db(distance_m)
        return np.asarray(10.0 ** (snr_db / 10.0))

    def transfer_time_s(self, bits: float, snr: ArrayLike) -> FloatArray:
        """Time to move a message at a given SNR: m / (B log2(1 + snr)).

        Parameters
        ----------
        bits : float, > 0
            Size m of the message [bit].
        snr : (...) float, >= 0
            Instantaneous SNR, linear.

        Returns
        -------
        (...) float64, > 0
            Time [s]; infinite at an SNR of 0.
        """
        rate = np.log1p(np.asarray(snr, dtype=np.float64))
        return self._time_from_nats(bits, np.asarray(rate))

    def draw_transfer_s(
        self, rng: np.random.Generator, bits: float, distance_m: ArrayLike, size: Shape = None
    ) -> FloatArray:
        """Draw transfer times over the fading link.

        Parameters
        ----------
        rng : numpy.random.Generator
            Source of the fading.
        bits : float, > 0
            Size m of the message [bit].
        distance_m : (...) float, > 0
            Distance from the server [m].
        size : int or tuple of int, optional
            Shape of the result, against which ``distance_m`` broadcasts; by default its shape.

        Returns
        -------
        size float64, > 0
            Independent times [s].

        Raises
        ------
        ValueError
            If ``bits`` or a distance is not finite and positive.
        """
        return self.draw_transfer_at_snr_s(rng, bits, self.mean_snr(distance_m), size)

    def draw_transfer_at_snr_s(
        self, rng: np.random.Generator, bits: float, mean_snr: FloatArray, size: Shape = None
    ) -> FloatArray:
        """Draw transfer times as :meth:`draw_transfer_s`, from a mean SNR computed before.

        For loops over rounds: placements do not change within a run, and the path loss costs more
        than the draw.

        Parameters
        ----------
        rng : numpy.random.Generator
            Source of the fading.
        bits : float, > 0
            Size m of the message [bit].
        mean_snr : (...) float64, > 0
            Result of :meth:`mean_snr`; trusted.
        size : int or tuple of int, optional
            Shape of the result, against which ``mean_snr`` broadcasts; by default its shape.

        Returns
        -------
        size float64, > 0
            Independent times [s].
        """
        fading = np.asarray(rng.standard_exponential(np.shape(mean_snr) if size is None else size))
        fading *= mean_snr
        # log1p is a third faster than adding 1 and taking log2, and exact in deep fades.
        return self._time_from_nats(bits, np.log1p(fading, out=fading))

    def draw_link_s(
        self, rng: np.random.Generator, distance_m: ArrayLike, size: Shape = None
    ) -> FloatArray:
        """Draw the link time of a round: download plus upload, fading independently.

        Parameters
        ----------
        rng, distance_m, size
            As for :meth:`draw_transfer_s`.

        Returns
        -------
        size float64, > 0
            Independent times tau_D + tau_U [s].

        Raises
        ------
        ValueError
            If a distance is not finite and positive.
        """
        mean_snr = self.mean_snr(distance_m)
        time_s = self.draw_transfer_at_snr_s(rng, self.download_bits, mean_snr, size)
        time_s += self.draw_transfer_at_snr_s(rng, self.upload_bits, mean_snr, size)
        return time_s

    def transfer_time_survival(
        self, y_s: ArrayLike, bits: float, distance_m: ArrayLike
    ) -> FloatArray:
        """Exact law of :meth:`draw_transfer_s`: P(m / (B R) > y).

        A transfer takes longer than y when |h|^2 < (2^(m / (B y)) - 1) / snr. For large y this
        falls like 1/y: the mean of the untruncated time is infinite.

        Parameters
        ----------
        y_s : (...) float
            Times [s].
        bits : float, > 0
            Size m of the message [bit].
        distance_m : (...) float, > 0
            Distance from the server [m]; broadcasts against ``y_s``.

        Returns
        -------
        (...) float64, in [0, 1]
            Probability of taking longer; 1 for y <= 0.

        Raises
        ------
        ValueError
            If ``bits`` or a distance is not finite and positive.
        """
        _require_positive("bits", bits)
        y_s = np.maximum(np.asarray(y_s, dtype=np.float64), 0.0)
        return transfer_survival(_LN2 * bits / self.bandwidth_hz, y_s, self.mean_snr(distance_m))

    def _time_from_nats(self, bits: float, nats: FloatArray) -> FloatArray:
        """Turn ln(1 + snr) into seconds, in place."""
        _require_positive("bits", bits)
        # A fade of exactly 0 has a chance of 2^-53 per draw; its time is rightly infinite.
        with np.errstate(divide="ignore"):
            return np.divide(_LN2 * bits / self.bandwidth_hz, nats, out=nats)


@dataclass(frozen=True, slots=True)
class ComputeModel:
    """Local update time rho / phi_k with a compute rate phi_k uniform in a band per client.

    Client k, counted from 1 (arm k - 1), has its rate in
    ``[(rate_step k + low_offset) base_rate, (rate_step k + high_offset) base_rate]`` samples/s:
    later clients are faster.

    Parameters
    ----------
    samples_per_round : float
        Samples rho that a client processes in a round.
    base_rate : float
        Unit of the rates [samples/s].
    rate_step : float
        How much faster each client is than the one before, in units of ``base_rate``.
    low_offset, high_offset : float
        Ends of the band, in units of ``base_rate``.

    Raises
    ------
    ValueError
        If a number is not finite, a size not positive, or a rate could be 0.
    """

    samples_per_round: float = 2.0
    base_rate: float = 20.0
    rate_step: float = 0.5
    low_offset: float = 0.5
    high_offset: float = 1.5

    def __post_init__(self) -> None:
        _require_positive("samples_per_round", self.samples_per_round)
        _require_positive("base_rate", self.base_rate)
        _require(
            math.isfinite(self.rate_step) and self.rate_step >= 0.0,
            "rate_step",
            self.rate_step,
            "a finite number of at least 0",
        )
        _require(
            math.isfinite(self.low_offset) and self.rate_step + self.low_offset > 0.0,
            "low_offset",
            self.low_offset,
            "a finite number above -rate_step, so that no rate is 0",
        )
        _require(
            math.isfinite(self.high_offset) and self.high_offset >= self.low_offset,
            "high_offset",
            self.high_offset,
            "a finite number of at least low_offset",
        )

    def rate_bounds(self, num_arms: int) -> tuple[FloatArray, FloatArray]:
        """Return the lowest and highest rate of every client.

        Parameters
        ----------
        num_arms : int, >= 1
            Number of clients K.

        Returns
        -------
        low, high : (num_arms,) float64, > 0
            Ends of the band of client k = arm + 1 [samples/s].
        """
        step = self.rate_step * np.arange(1, num_arms + 1, dtype=np.float64)
        return (step + self.low_offset) * self.base_rate, (step + self.high_offset) * self.base_rate

    def draw_compute_s(
        self, rng: np.random.Generator, num_arms: int, size: Shape = None
    ) -> FloatArray:
        """Draw local update times of all clients.

        Parameters
        ----------
        rng : numpy.random.Generator
            Source of the rates.
        num_arms : int, >= 1
            Number of clients K.
        size : tuple of int, optional
            Shape of the result, with ``num_arms`` as last axis; ``(num_arms,)`` by default.

        Returns
        -------
        size float64, > 0
            Independent times tau_LU [s].

        Raises
        ------
        ValueError
            If the last axis of ``size`` is not ``num_arms``.
        """
        shape = (num_arms,) if size is None else size
        if isinstance(shape, int) or shape[-1:] != (num_arms,):
            raise ValueError(f"size = {size!r}: its last axis must be num_arms = {num_arms}")
        low, high = self.rate_bounds(num_arms)
        rate = np.asarray(rng.random(shape))
        rate *= high - low
        rate += low
        return np.divide(self.samples_per_round, rate, out=rate)


def transfer_survival(scale: float, y_s: FloatArray, snr: FloatArray) -> FloatArray:
    """P(scale / ln(1 + snr |h|^2) > y) with |h|^2 ~ Exp(1), for y >= 0."""
    with np.errstate(divide="ignore", over="ignore"):
        fading_needed = np.expm1(scale / y_s)
    fading_needed /= snr
    return np.asarray(-np.expm1(-fading_needed))


def _require(holds: bool, name: str, value: float, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} = {value!r}: must be {allowed}")


def _require_positive(name: str, value: float) -> None:
    _require(math.isfinite(value) and value > 0.0, name, value, "a finite number above 0")
