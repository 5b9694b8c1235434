from __future__ import annotations

import math

import numpy as np
import pytest

from flower_scheduling.client.link.model import ComputeModel, LinkModel
from flower_scheduling.simulation.theory.round_time_law import RoundTimeLaw

LINK = LinkModel()


def test_path_loss_by_hand():
    assert LINK.path_loss_db(1000.0) == pytest.approx(128.1)
    assert LINK.path_loss_db(100.0) == pytest.approx(128.1 - 37.6)
    assert LINK.path_loss_db([1000.0, 500.0]) == pytest.approx([128.1, 128.1 - 11.31873])


def test_snr_at_the_cell_edge_is_the_papers():
    # 23 dBm - (-107 dBm) - 116.78 dB = 13.2 dB
    snr = LINK.mean_snr(500.0)
    assert 10 * math.log10(snr) == pytest.approx(13.2187, abs=1e-4)


def test_transfer_time_by_hand():
    assert LINK.transfer_time_s(5000, 1.0) == pytest.approx(5000 / 15e3)  # log2(1 + 1) = 1
    assert LINK.transfer_time_s(5000, [3.0, 7.0]) == pytest.approx([1 / 6, 1 / 9])
    assert LINK.transfer_time_s(5000, 0.0) == np.inf


def test_transfer_time_leaves_its_argument_alone():
    snr = np.array([1.0, 3.0])
    LINK.transfer_time_s(5000, snr)
    assert snr.tolist() == [1.0, 3.0]


def test_draws_equal_transfer_time_at_the_faded_snr():
    distance_m = np.array([100.0, 300.0, 500.0])
    drawn = LINK.draw_transfer_s(np.random.default_rng(1), 4000, distance_m, (4, 3))
    fading = np.random.default_rng(1).standard_exponential((4, 3))
    expected = LINK.transfer_time_s(4000, fading * LINK.mean_snr(distance_m))
    np.testing.assert_allclose(drawn, expected, rtol=1e-14)


def test_a_rounds_link_time_is_download_plus_upload():
    link = LinkModel(download_bits=1000, upload_bits=9000)
    drawn = link.draw_link_s(np.random.default_rng(2), [200.0, 400.0])
    rng = np.random.default_rng(2)
    down = link.draw_transfer_s(rng, 1000, [200.0, 400.0])
    up = link.draw_transfer_s(rng, 9000, [200.0, 400.0])
    np.testing.assert_allclose(drawn, down + up, rtol=1e-15)


def test_shapes():
    rng = np.random.default_rng(0)
    assert LINK.draw_transfer_s(rng, 5000, 300.0).shape == ()
    assert LINK.draw_transfer_s(rng, 5000, 300.0, 7).shape == (7,)
    assert LINK.draw_link_s(rng, np.full((4, 3), 300.0)).shape == (4, 3)
    assert LINK.draw_link_s(rng, np.full(3, 300.0), (5, 4, 3)).shape == (5, 4, 3)
    assert LINK.draw_distances_m(rng, (2, 5)).shape == (2, 5)


def test_survival_inverts_transfer_time():
    # The time at fading f is exceeded exactly when the fading is below f.
    fading = np.array([0.01, 0.5, 2.0])
    time_s = LINK.transfer_time_s(5000, fading * LINK.mean_snr(400.0))
    expected = 1.0 - np.exp(-fading)
    np.testing.assert_allclose(LINK.transfer_time_survival(time_s, 5000, 400.0), expected)


def test_survival_at_its_ends():
    survival = LINK.transfer_time_survival([-1.0, 0.0, 1e-6, np.inf], 5000, 400.0)
    assert survival.tolist() == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("distance_m", [0.0, -1.0, np.nan, np.inf, [100.0, 0.0]])
def test_bad_distances(distance_m):
    with pytest.raises(ValueError, match="every distance must be finite and above 0 m"):
        LINK.mean_snr(distance_m)


@pytest.mark.parametrize("bits", [0, -1, np.nan, np.inf])
def test_bad_bits(bits):
    with pytest.raises(ValueError, match=r"bits = .*: must be a finite number above 0"):
        LINK.draw_transfer_s(np.random.default_rng(0), bits, 100.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("bandwidth_hz", 0.0), ("cell_radius_m", -5.0), ("tx_power_dbm", np.nan), ("upload_bits", 0)],
)
def test_bad_link_parameters(name, value):
    with pytest.raises(ValueError, match=f"{name} = .*: must be a finite number"):
        LinkModel(**{name: value})


def test_rates_of_the_paper():
    low, high = ComputeModel().rate_bounds(3)
    assert low.tolist() == [20.0, 30.0, 40.0]
    assert high.tolist() == [40.0, 50.0, 60.0]


def test_mean_compute_time_by_hand():
    mean = ComputeModel().mean_compute_s(2)
    assert mean == pytest.approx([2 * math.log(2) / 20, 2 * math.log(5 / 3) / 20])


def test_mean_compute_time_of_a_constant_rate():
    assert ComputeModel(low_offset=0.5, high_offset=0.5).mean_compute_s(1) == pytest.approx([0.1])


def test_compute_draws_stay_in_their_band():
    model = ComputeModel(samples_per_round=6)
    drawn = model.draw_compute_s(np.random.default_rng(0), 4, (1000, 4))
    low, high = model.rate_bounds(4)
    assert (drawn <= 6 / low).all()
    assert (drawn >= 6 / high).all()
    assert model.draw_compute_s(np.random.default_rng(0), 4).shape == (4,)


def test_one_arms_draw():
    drawn = ComputeModel().draw_arm_compute_s(np.random.default_rng(0), 2, 1000)
    assert drawn.shape == (1000,)
    assert ((drawn >= 2 / 60) & (drawn <= 2 / 40)).all()
    assert ComputeModel().draw_arm_compute_s(np.random.default_rng(0), 2).shape == ()


@pytest.mark.parametrize("size", [3, (3,), (4, 3)])
def test_compute_size_must_end_in_num_arms(size):
    with pytest.raises(ValueError, match="its last axis must be num_arms = 4"):
        ComputeModel().draw_compute_s(np.random.default_rng(0), 4, size)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples_per_round", 0),
        ("base_rate", np.inf),
        ("rate_step", -0.1),
        ("low_offset", -0.5),
        ("high_offset", 0.4),
    ],
)
def test_bad_compute_parameters(name, value):
    with pytest.raises(ValueError, match=f"{name} = .*: must be a finite number"):
        ComputeModel(**{name: value})


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
