"""Exact law of round times: against plain integration, and its two formulas against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_scheduling.client.link.model import ComputeModel, LinkModel
from flower_scheduling.simulation.theory.round_time_law import RoundTimeLaw

LINK = LinkModel()


def nested_quadrature_s(link, compute, distance_m, arm, tau_max_s):
    """E min(tau_D + tau_LU + tau_U, tau_max) in a plain way: one integral inside another."""
    snr = float(link.mean_snr(distance_m))
    low, high = (float(bounds[arm]) for bounds in compute.rate_bounds(arm + 1))
    mean_compute_s = np.mean(
        compute.samples_per_round / (low + (high - low) * (np.arange(400) + 0.5) / 400)
    )
    x = np.exp(np.linspace(np.log(1e-7), np.log(45.0), 3001))  # fading, on a logarithmic scale
    weight = np.exp(-x) * x * np.log(x[1] / x[0])
    down, up = (link.transfer_time_s(b, x * snr) for b in (link.download_bits, link.upload_bits))
    total = np.minimum(down[:, np.newaxis] + up + mean_compute_s, tau_max_s)
    late = 2e-7 * tau_max_s  # either fading below the first node
    return float(weight @ total @ weight) + late


@pytest.mark.parametrize(
    ("link", "distance_m", "tau_max_s"),
    [
        (LINK, 20.0, 5.0),
        (LINK, 500.0, 5.0),
        (LINK, 300.0, 0.4),
        (LinkModel(upload_bits=20_000.0), 400.0, 5.0),
    ],
)
def test_truncated_mean_of_a_round_by_plain_integration(link, distance_m, tau_max_s):
    # A constant rate: the inner integral over it would be a third one.
    compute = ComputeModel(low_offset=1.0, high_offset=1.0)
    law = RoundTimeLaw(link, compute, [distance_m] * 3)
    expected = nested_quadrature_s(link, compute, distance_m, 2, tau_max_s)
    assert law.truncated_mean_s(tau_max_s)[2] == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("distance_m", [[20.0, 100.0, 500.0], [[300.0] * 3, [450.0] * 3]])
@pytest.mark.parametrize("link", [LINK, LinkModel(download_bits=1000.0)])
def test_mean_and_survival_agree(distance_m, link):
    """Two formulas of their own: the integral of the survival function is the mean."""
    law = RoundTimeLaw(link, ComputeModel(), distance_m)
    y_s, weight_s = law.nodes_s(5.0)
    survival = law.survival(y_s)
    assert survival.shape == (y_s.size, *np.shape(distance_m))
    assert weight_s.sum() == pytest.approx(5.0)
    assert np.tensordot(weight_s, survival, 1) == pytest.approx(law.truncated_mean_s(5.0), rel=2e-4)
    assert ((survival >= 0) & (survival <= 1)).all()
    assert survival[0] == pytest.approx(1.0)
    assert (np.diff(survival, axis=0) <= 1e-4).all()


def test_truncated_means_at_their_ends():
    law = RoundTimeLaw(LINK, ComputeModel(), [10.0, 500.0])
    assert law.truncated_mean_s(1e-3) == pytest.approx(1e-3)
    # Every factor of 10 adds the same: the untruncated mean is infinite.
    means = [law.truncated_mean_s(cap)[1] for cap in (10.0, 100.0, 1000.0)]
    assert means[2] - means[1] == pytest.approx(means[1] - means[0], rel=0.05)
    # 1000 samples: the update alone takes longer than the deadline.
    slow = RoundTimeLaw(LINK, ComputeModel(samples_per_round=1000.0), [100.0])
    assert slow.truncated_mean_s(5.0) == pytest.approx(5.0)
    assert slow.survival([5.0])[0] == pytest.approx(1.0)


def test_means_do_not_depend_on_blocks(monkeypatch):
    distance_m = np.linspace(10, 500, 12).reshape(3, 4)
    law = RoundTimeLaw(LINK, ComputeModel(), distance_m)
    means, survival = law.truncated_mean_s(5.0), law.survival([0.2])
    monkeypatch.setattr("flower_scheduling.simulation.theory.round_time_law._VALUES_PER_BLOCK", 1)
    assert np.array_equal(law.truncated_mean_s(5.0), means)
    assert law.survival([0.2]) == pytest.approx(survival, abs=1e-14)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_bad_times_of_a_law(value):
    law = RoundTimeLaw(LINK, ComputeModel(), [100.0])
    for method in (law.truncated_mean_s, law.nodes_s):
        with pytest.raises(ValueError, match="tau_max_s"):
            method(value)
    with pytest.raises(ValueError, match="y_s"):
        law.survival([1.0, value])
