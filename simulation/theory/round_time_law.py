"""Exact law of a client's round time under the paper's link and compute model, by quadrature."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from flower_scheduling.client.link.model import ComputeModel, LinkModel, transfer_survival
from flower_scheduling.strategies.base import FloatArray, check_real

_LN2: Final = math.log(2.0)
# |h|^2 is larger with probability e^-40 = 4e-18, below the rounding of a probability.
_LARGEST_FADING: Final = 40.0
_VALUES_PER_BLOCK: Final = 2**20


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
        check_real("tau_max_s", tau_max_s, above=0.0)
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
                early, rest = transfer_survival(one, y, snr), transfer_survival(other, w - y, snr)
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
            check_real("y_s", float(y), above=0.0)
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
        check_real("tau_max_s", tau_max_s, above=0.0)
        quickest_s = self._quickest_link_s + self._samples / self._high
        first = min(float(quickest_s.min()), tau_max_s)  # before that no client can be back
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
                density *= transfer_survival(other, spare_s[rows, :, np.newaxis] - first_s, of_snr)
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
