"""How long a client's round takes: the paper's radio link and compute model.

The one copy of this model. The client's link emulation draws from it a value at a time, the
Monte-Carlo studies hundreds of millions at a time; both get the same law. Equations are those of
the latency model of Xia et al., "Multi-Armed Bandit Based Client Scheduling for Federated
Learning", IEEE TWC 2020, with the values of its numerical results as defaults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["ComputeModel", "LinkModel", "RoundTimeLaw"]

FloatArray: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = int | tuple[int, ...] | None

_LN2: Final = math.log(2.0)
_LARGEST_FADING: Final = 40.0
"""|h|^2 is larger with probability e^-40 = 4e-18, below the rounding of a probability."""
_VALUES_PER_BLOCK: Final = 2**20


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
        # 1 - u lies in (0, 1], so that nobody sits on the antenna, where the model breaks down.
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
        return self.draw_link_at_snr_s(rng, self.mean_snr(distance_m), size)

    def draw_link_at_snr_s(
        self, rng: np.random.Generator, mean_snr: FloatArray, size: Shape = None
    ) -> FloatArray:
        """Draw link times as :meth:`draw_link_s`, from a mean SNR computed before.

        Parameters
        ----------
        rng, mean_snr, size
            As for :meth:`draw_transfer_at_snr_s`.

        Returns
        -------
        size float64, > 0
            Independent times tau_D + tau_U [s].
        """
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
        return _survival(_LN2 * bits / self.bandwidth_hz, y_s, self.mean_snr(distance_m))

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
        return self._draw(rng, low, high, shape)

    def draw_arm_compute_s(
        self, rng: np.random.Generator, arm: int, size: Shape = None
    ) -> FloatArray:
        """Draw local update times of one client.

        Parameters
        ----------
        rng : numpy.random.Generator
            Source of the rates.
        arm : int, >= 0
            Index of the client, k - 1 in the paper's count.
        size : int or tuple of int, optional
            Shape of the result; a single value by default.

        Returns
        -------
        size float64, > 0
            Independent times tau_LU [s].
        """
        low, high = self.rate_bounds(arm + 1)
        return self._draw(rng, low[arm], high[arm], () if size is None else size)

    def mean_compute_s(self, num_arms: int) -> FloatArray:
        """Return the mean local update time, rho ln(high / low) / (high - low).

        Not rho over the mean rate: the mean of a reciprocal is larger.

        Parameters
        ----------
        num_arms : int, >= 1
            Number of clients K.

        Returns
        -------
        (num_arms,) float64, > 0
            E tau_LU [s].
        """
        low, high = self.rate_bounds(num_arms)
        if self.high_offset == self.low_offset:
            return self.samples_per_round / low
        return self.samples_per_round * np.log(high / low) / (high - low)

    def _draw(
        self,
        rng: np.random.Generator,
        low: FloatArray | float,
        high: FloatArray | float,
        shape: int | tuple[int, ...],
    ) -> FloatArray:
        rate = np.asarray(rng.random(shape))
        rate *= high - low
        rate += low
        return np.divide(self.samples_per_round, rate, out=rate)


class RoundTimeLaw:
    """Exact law of tau = tau_D + tau_LU + tau_U for clients at fixed distances.

    The paper's round time before it is capped at tau_max (its eq. round_time_client), by
    quadrature instead of draws: means and maxima of a heavy-tailed time are then free of noise.
    At the paper's settings and beyond 5 m from the access point means are right to 1e-5 of their
    value, and so are integrals of the survival function over the slowest of several clients;
    over a single close client, whose time is nearly fixed, to 2e-4. Single probabilities are right
    to 1e-7 as a rule and to 2e-3 at worst, again for close clients.

    Parameters
    ----------
    link : LinkModel
        Law of download and upload, which fade independently.
    compute : ComputeModel
        Law of the local update time.
    distance_m : (..., num_arms) float, > 0
        Distances from the server [m].

    Raises
    ------
    ValueError
        If a distance is not finite and positive.
    """

    def __init__(self, link: LinkModel, compute: ComputeModel, distance_m: ArrayLike) -> None:
        snr = link.mean_snr(distance_m)
        self.shape = snr.shape
        self._snr = snr.reshape(-1)
        low, high = compute.rate_bounds(self.shape[-1])
        # A band of no width would need formulas of its own; 1e-9 of it changes nothing.
        high = np.maximum(high, low * (1.0 + 1e-9))
        self._samples = compute.samples_per_round
        self._low, self._high = (np.broadcast_to(x, self.shape).reshape(-1) for x in (low, high))
        # Nats x seconds: a transfer at R nats/s/Hz takes scale / R.
        download, upload = (
            _LN2 * bits / link.bandwidth_hz for bits in (link.download_bits, link.upload_bits)
        )
        self._download_scale, self._upload_scale = download, upload
        most_nats = np.log1p(_LARGEST_FADING * self._snr)
        self._quickest_link_s = (download + upload) / most_nats  # (size,)
        self._quickest_transfer_s = min(download, upload) / most_nats

    def truncated_mean_s(self, tau_max_s: float) -> FloatArray:
        """Return E min(tau, tau_max); without the cap the mean is infinite.

        With W = tau_D + tau_U and w = tau_max - tau_LU it is E[tau_LU + E min(W, w)], and

            E min(W, w) = integral over y in (0, w) of P(tau_D > y) + P(tau_U > y)
                          - P(tau_D > y) P(tau_U > w - y).

        Parameters
        ----------
        tau_max_s : float, > 0
            The cap tau_max [s].

        Returns
        -------
        (..., num_arms) float64, in (0, tau_max]
            Means [s].

        Raises
        ------
        ValueError
            If `tau_max_s` is not finite and positive.
        """
        _require_positive("tau_max_s", tau_max_s)
        spare_s, weight, late = self._spare_time(tau_max_s)  # (size, num_spare), ..., (size,)
        half = spare_s / 2.0
        first = np.minimum(self._quickest_transfer_s[:, np.newaxis], half)
        octaves = np.log2(half / first)
        unit, unit_weight = _unit_nodes(16, octaves)
        mean = np.empty_like(late)
        for rows in _blocks(late.size, spare_s.shape[1] * unit.size):
            snr = self._snr[rows, np.newaxis, np.newaxis]
            w = spare_s[rows, :, np.newaxis]
            y = first[rows, :, np.newaxis] * np.exp2(octaves[rows, :, np.newaxis] * unit)
            integrand: FloatArray = np.zeros(())
            # Folded at w / 2: the integrand has its structure at both ends of (0, w).
            for one, other in self._orders():
                early, rest = _survival(one, y, snr), _survival(other, w - y, snr)
                integrand = integrand + (early + rest - early * rest)
            integrand *= y
            # Up to `first` both transfers are certain to take longer: the integrand is 2.
            link_s = self._both(integrand @ unit_weight) * octaves[rows] * _LN2
            link_s += 2.0 * first[rows]
            total_s = tau_max_s - spare_s[rows] + link_s
            mean[rows] = late[rows] * tau_max_s + (weight[rows] * total_s).sum(axis=1)
        return mean.reshape(self.shape)

    def survival(self, y_s: ArrayLike) -> FloatArray:
        """Return P(tau > y).

        Parameters
        ----------
        y_s : (num_points,) float, > 0
            Times [s].

        Returns
        -------
        (num_points, ..., num_arms) float64, in [0, 1]
            Probabilities of taking longer.

        Raises
        ------
        ValueError
            If a time is not finite and positive.
        """
        y_s = np.atleast_1d(np.asarray(y_s, dtype=np.float64))
        for y in y_s:
            _require_positive("y_s", float(y))
        result = np.stack([self._survival(float(y)) for y in y_s])
        return result.reshape(y_s.size, *self.shape)

    def nodes_s(self, tau_max_s: float) -> tuple[FloatArray, FloatArray]:
        """Return times and weights that integrate functions of :meth:`survival`.

        For a set of clients that are independent of each other,

            E max over k of min(tau_k, tau_max)
                = integral over y in (0, tau_max) of 1 - product over k of P(tau_k <= y).

        Parameters
        ----------
        tau_max_s : float, > 0
            Upper end tau_max [s].

        Returns
        -------
        y_s, weight_s : (num_points,) float64, > 0
            Times and weights [s]; the weights sum to tau_max.

        Raises
        ------
        ValueError
            If `tau_max_s` is not finite and positive.
        """
        _require_positive("tau_max_s", tau_max_s)
        quickest_s = self._quickest_link_s + self._samples / self._high
        first = min(float(quickest_s.min()), tau_max_s)  # up to here nobody is back
        octaves = math.log2(tau_max_s / first)
        unit, weight = _unit_nodes(16, octaves)
        y_s = first * np.exp2(octaves * unit)
        weight_s = weight * octaves * _LN2 * y_s
        return np.concatenate([[first / 2.0], y_s]), np.concatenate([[first], weight_s])

    def _survival(self, y: float) -> FloatArray:
        """P(tau > y) of every client, (size,).

        P(W > w) = P(tau_D > w/2) P(tau_U > w/2)
                   + integral over tau_D <= w/2 of P(tau_U > w - tau_D), and with both exchanged.
        """
        spare_s, weight, late = self._spare_time(y)
        snr = self._snr[:, np.newaxis]
        half = spare_s / 2.0
        with np.errstate(over="ignore"):
            least = {  # the fading with which a transfer takes half the time
                scale: np.minimum(np.expm1(scale / half) / snr, _LARGEST_FADING)
                for scale in (self._download_scale, self._upload_scale)
            }
        ranges = {scale: np.log(_LARGEST_FADING / fading) for scale, fading in least.items()}
        # The density e^-x of the fading is smoother on a logarithmic scale than a transfer time.
        widest = max(float(value.max(initial=0.0)) for value in ranges.values())
        unit, unit_weight = _unit_nodes(24, widest / 20.0)
        result = np.empty_like(late)
        for rows in _blocks(late.size, spare_s.shape[1] * unit.size):
            of_snr = snr[rows, :, np.newaxis]
            inner: FloatArray = np.zeros(())
            for one, other in self._orders():
                span = ranges[one][rows]
                x = least[one][rows, :, np.newaxis] * np.exp(span[..., np.newaxis] * unit)
                first_s = one / np.log1p(x * of_snr)
                density = x * np.exp(-x)
                density *= _survival(other, spare_s[rows, :, np.newaxis] - first_s, of_snr)
                inner = inner + (density @ unit_weight) * span
            longer = np.expm1(-least[self._download_scale][rows])
            longer = longer * np.expm1(-least[self._upload_scale][rows]) + self._both(inner)
            result[rows] = late[rows] + (weight[rows] * longer).sum(axis=1)
        return np.minimum(result, 1.0)

    def _orders(self) -> list[tuple[float, float]]:
        """Scales of the two transfers in either order, or once if they have the same law."""
        pair = (self._download_scale, self._upload_scale)
        return [pair] if pair[0] == pair[1] else [pair, pair[::-1]]

    def _both(self, value: FloatArray) -> FloatArray:
        return value * 2.0 if self._download_scale == self._upload_scale else value

    def _spare_time(self, y: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Nodes for the time w = y - tau_LU that the local update leaves to the link.

        Returns
        -------
        spare_s : (size, num_spare) float64, > 0
            Times w [s], geometric: P(W > w) varies with the logarithm of w.
        weight : (size, num_spare) float64, >= 0
            Their probabilities.
        late : (size,) float64
            Probability that the link cannot make it in w; with `weight` it sums to 1.
        """
        least_compute_s = self._samples / self._high
        longest = y - least_compute_s
        shortest = np.maximum(y - self._samples / self._low, self._quickest_link_s)
        possible = longest > shortest
        longest = np.where(possible, longest, shortest)
        slowest_rate = self._samples / np.maximum(y - shortest, least_compute_s)
        late = (slowest_rate - self._low) / (self._high - self._low)
        late = np.where(possible, np.clip(late, 0.0, 1.0), 1.0)

        octaves = np.log2(longest / shortest)
        unit, unit_weight = _unit_nodes(8 if octaves.max(initial=0.0) > 0.3 else 4, octaves)
        spare_s = shortest[:, np.newaxis] * np.exp2(octaves[:, np.newaxis] * unit)
        compute_s = np.maximum(y - spare_s, least_compute_s[:, np.newaxis])
        # The density of w times dw; constant factors go with the sum being 1 - late.
        weight = unit_weight * spare_s / compute_s**2
        weight *= ((1.0 - late) / weight.sum(axis=1))[:, np.newaxis]
        return spare_s, weight, late


def _survival(scale: float, y_s: FloatArray, snr: FloatArray) -> FloatArray:
    """P(scale / ln(1 + snr |h|^2) > y) with |h|^2 ~ Exp(1), for y >= 0."""
    with np.errstate(divide="ignore", over="ignore"):
        fading_needed = np.expm1(scale / y_s)
    fading_needed /= snr
    return np.asarray(-np.expm1(-fading_needed))


def _unit_nodes(num_nodes: int, panels: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Gauss-Legendre nodes and weights on (0, 1), `num_nodes` on each of equal panels.

    The largest of `panels`, rounded up, is their number.
    """
    count = max(math.ceil(np.max(panels, initial=0.0)), 1)
    node, weight = np.polynomial.legendre.leggauss(num_nodes)
    nodes = (np.arange(count)[:, np.newaxis] + (node + 1.0) / 2.0) / count
    return nodes.reshape(-1), np.tile(weight / (2.0 * count), count)


def _blocks(size: int, values_each: int) -> Iterator[slice]:
    """Cut `size` rows so that the arrays of a block stay small."""
    step = max(_VALUES_PER_BLOCK // values_each, 1)
    return (slice(start, start + step) for start in range(0, size, step))


def _require(holds: bool, name: str, value: float, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} = {value!r}: must be {allowed}")


def _require_positive(name: str, value: float) -> None:
    _require(math.isfinite(value) and value > 0.0, name, value, "a finite number above 0")
