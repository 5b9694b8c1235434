from __future__ import annotations

import math

import numpy as np
import pytest

from flower_scheduling.client.link.model import ComputeModel, LinkModel

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


def test_compute_draws_stay_in_their_band():
    model = ComputeModel(samples_per_round=6)
    drawn = model.draw_compute_s(np.random.default_rng(0), 4, (1000, 4))
    low, high = model.rate_bounds(4)
    assert (drawn <= 6 / low).all()
    assert (drawn >= 6 / high).all()
    assert model.draw_compute_s(np.random.default_rng(0), 4).shape == (4,)


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
