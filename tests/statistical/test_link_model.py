"""The latency model draws what the paper's formulas say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from flower_scheduling.client.link.model import ComputeModel, LinkModel
from flower_scheduling.simulation.theory.round_time_law import RoundTimeLaw

pytestmark = pytest.mark.statistical

LINK = LinkModel()
TAU_MAX_S = 5.0


def truncated_mean_s(distance_m: float, bits: float = 5000.0) -> float:
    """E min(T, tau_max) = integral of P(T > y) up to tau_max."""
    value, _ = integrate.quad(
        lambda y: float(LINK.transfer_time_survival(y, bits, distance_m)),
        0.0,
        TAU_MAX_S,
        points=[0.05, 0.2, 1.0],
        limit=200,
    )
    return value


def assert_mean(samples: np.ndarray, expected: float) -> None:
    """5 standard errors, a false alarm in about 6e-7 of seeds."""
    standard_error = samples.std() / np.sqrt(samples.size)
    assert abs(samples.mean() - expected) < 5 * standard_error


@pytest.mark.parametrize("distance_m", [10.0, 150.0, 500.0])
def test_transfer_times_follow_the_exact_law(distance_m):
    """Kolmogorov-Smirnov at p = 1e-6, which is its false-alarm rate."""
    drawn = LINK.draw_transfer_s(np.random.default_rng(0), 5000, distance_m, 200_000)
    uniform = LINK.transfer_time_survival(drawn, 5000, distance_m)
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6


def test_the_law_is_that_of_an_exponential_power():
    """Fading recovered from the times is Exp(1) (not a squared Rayleigh(1), whose mean is 2).

    Kolmogorov-Smirnov at p = 1e-6.
    """
    drawn = LINK.draw_transfer_s(np.random.default_rng(1), 5000, 300.0, 200_000)
    snr = np.exp2(5000 / (15e3 * drawn)) - 1.0
    assert stats.kstest(snr / LINK.mean_snr(300.0), "expon").pvalue > 1e-6


@pytest.mark.parametrize("distance_m", [150.0, 300.0, 500.0])
def test_truncated_mean_of_one_transfer(distance_m):
    drawn = LINK.draw_transfer_s(np.random.default_rng(2), 5000, distance_m, 400_000)
    assert_mean(np.minimum(drawn, TAU_MAX_S), truncated_mean_s(distance_m))


@pytest.mark.parametrize("distance_m", [150.0, 500.0])
def test_truncated_mean_of_download_plus_upload(distance_m):
    """Against E min(D + U, tau_max), the upload integrated for each quantile of the download."""
    grid = np.linspace(0.0, TAU_MAX_S, 200_001)
    survival = LINK.transfer_time_survival(grid, 5000, distance_m)
    truncated_mean_to = integrate.cumulative_trapezoid(survival, grid, initial=0.0)
    fading = -np.log((np.arange(200_000) + 0.5) / 200_000)
    download = np.minimum(LINK.transfer_time_s(5000, fading * LINK.mean_snr(distance_m)), TAU_MAX_S)
    expected = np.mean(download + np.interp(TAU_MAX_S - download, grid, truncated_mean_to))

    drawn = LINK.draw_link_s(np.random.default_rng(3), distance_m, 400_000)
    assert_mean(np.minimum(drawn, TAU_MAX_S), float(expected))


def test_download_and_upload_fade_independently():
    """Correlation of logarithms against 5 / sqrt(n), a false alarm in about 6e-7 of seeds."""
    rng, size = np.random.default_rng(4), 200_000
    total = LINK.draw_link_s(rng, 300.0, size)
    single = LINK.draw_transfer_s(np.random.default_rng(4), 5000, 300.0, size)  # its download
    correlation = np.corrcoef(np.log(single), np.log(total - single))[0, 1]
    assert abs(correlation) < 5 / np.sqrt(size)


def test_distances_are_uniform_in_area():
    """(d / radius)^2 is uniform: Kolmogorov-Smirnov at p = 1e-6."""
    distance_m = LINK.draw_distances_m(np.random.default_rng(5), 200_000)
    assert stats.kstest((distance_m / 500.0) ** 2, "uniform").pvalue > 1e-6
    assert distance_m.max() <= 500.0


def test_compute_rates_are_uniform():
    """Kolmogorov-Smirnov at p = 1e-6 for each of three clients."""
    model = ComputeModel()
    drawn = model.draw_compute_s(np.random.default_rng(6), 3, (100_000, 3))
    low, high = model.rate_bounds(3)
    for uniform in ((2.0 / drawn - low) / (high - low)).T:
        assert stats.kstest(uniform, "uniform").pvalue > 1e-6


def test_the_papers_cell_as_a_whole():
    """Averaged over placements, a round fails with P = 0.0016; 6 sigma, about 2e-9."""
    rng, shape = np.random.default_rng(8), (50_000, 20)
    time_s = LINK.draw_link_s(rng, LINK.draw_distances_m(rng, shape))
    time_s += ComputeModel().draw_compute_s(rng, 20, shape)
    failures = int((time_s > TAU_MAX_S).sum())
    # Only the fades of either link matter here: twice the single survival, area average.
    radius_m = 500.0 * np.sqrt((np.arange(10_000) + 0.5) / 10_000)
    lower = 2 * float(LINK.transfer_time_survival(TAU_MAX_S, 5000, radius_m).mean())
    upper = 2 * float(LINK.transfer_time_survival(TAU_MAX_S - 0.5, 5000, radius_m).mean())
    assert 0.0014 < lower < upper < 0.0019
    slack = 6 * np.sqrt(upper * time_s.size)
    assert lower * time_s.size - slack < failures < upper * time_s.size + slack


@pytest.mark.parametrize("tau_max_s", [TAU_MAX_S, 0.3])
def test_exact_law_of_a_round(tau_max_s):
    """Means of single clients, and of the slowest of five, against draws."""
    distance_m = np.array([30.0, 100.0, 200.0, 350.0, 500.0])
    rng, shape = np.random.default_rng(9), (400_000, 5)
    drawn = LINK.draw_link_s(rng, distance_m, shape) + ComputeModel().draw_compute_s(rng, 5, shape)
    law = RoundTimeLaw(LINK, ComputeModel(), distance_m)
    capped = np.minimum(drawn, tau_max_s)
    for samples, expected in zip(capped.T, law.truncated_mean_s(tau_max_s), strict=True):
        assert_mean(samples, float(expected))
    y_s, weight_s = law.nodes_s(tau_max_s)
    slowest_s = weight_s @ (1.0 - np.prod(1.0 - law.survival(y_s), axis=1))
    assert_mean(capped.max(axis=1), float(slowest_s))
    # And the law itself: 6 sigma of a binomial, about 1e-9.
    for y, survival in zip([0.1, 0.2, 0.5], law.survival([0.1, 0.2, 0.5]), strict=True):
        limit = 6 * np.sqrt(survival * (1 - survival) / shape[0]) + 1e-6
        assert (abs((drawn > y).mean(axis=0) - survival) < limit).all()
