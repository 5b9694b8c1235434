"""Masked top-m: cuts, ties, short supply."""

from __future__ import annotations

import numpy as np
import pytest

from flower_scheduling.strategies.selection import top_arms


class NoDraws:
    """A generator that must not be asked."""

    def random(self, size: object = None) -> None:
        raise AssertionError("random numbers were drawn although nothing is tied")


def select(keys, available=None, num_selected=2, rng=None):
    arrays = [np.asarray(key, dtype=float) for key in keys]
    mask = np.ones(arrays[0].shape, bool) if available is None else np.asarray(available, bool)
    return top_arms(arrays, mask, num_selected, rng or NoDraws())


def test_takes_the_largest_without_drawing():
    assert select([[0.1, 0.9, 0.5, 0.7]]).tolist() == [False, True, False, True]


def test_unavailable_arms_are_never_taken():
    mask = select([[0.1, 0.9, 0.5, 0.7]], available=[1, 0, 1, 1])
    assert mask.tolist() == [False, False, True, True]


@pytest.mark.parametrize("available", [[0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1]])
def test_short_supply_takes_all_available(available):
    assert select([[0.1, 0.9, 0.5, 0.7]], available=available).tolist() == [
        bool(a) for a in available
    ]


def test_fewer_arms_than_places():
    assert select([[0.1, 0.9]], num_selected=5).tolist() == [True, True]
    assert select([np.empty(0)], num_selected=5).shape == (0,)


def test_an_arm_above_the_cut_is_kept_whatever_its_later_keys():
    # Arm 0 is strictly best; arms 1 to 3 are tied for the other place, arm 2 wins it.
    mask = select([[1.0, 0.5, 0.5, 0.5, 0.1], [-9.0, 0.0, 0.2, 0.1, 9.0]])
    assert mask.tolist() == [True, False, True, False, False]


def test_infinite_second_keys_do_not_push_out_who_is_above_the_cut():
    mask = select([[1.0, 0.5, 0.5], [0.0, np.inf, 3.0]])
    assert mask.tolist() == [True, True, False]


def test_infinite_first_keys_are_ordinary_ties():
    mask = select([[np.inf, np.inf, np.inf, 2.0], [3.0, 1.0, 2.0, 9.0]])
    assert mask.tolist() == [True, False, True, False]


def test_rows_are_independent():
    keys = [
        [[0.1, 0.2, 0.3], [1.0, 1.0, 1.0], [0.3, 0.2, 0.1], [9.0, 8.0, 7.0]],
        [[0.0, 0.0, 0.0], [0.1, 0.3, 0.2], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    ]
    available = [[1, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 0]]
    assert select(keys, available).tolist() == [
        [False, True, True],
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]


def test_what_all_keys_leave_tied_is_drawn_uniformly():
    rng = np.random.default_rng(0)
    key = np.tile([1.0, 0.5, 0.5, 0.5, 0.1], (30_000, 1))
    counts = select([key, key], rng=rng).sum(axis=0)
    assert counts[0] == 30_000
    assert counts[4] == 0
    # 6 sigma of a binomial, about 1e-9 for each arm.
    assert np.all(abs(counts[1:4] - 10_000) < 6 * np.sqrt(30_000 * 2 / 9))


def test_inputs_are_left_alone():
    key = np.array([[0.5, 0.5, 0.5, 1.0]])
    available = np.array([[True, True, False, True]])
    before = key.copy(), available.copy()
    scratch = np.empty_like(key)
    top_arms([key], available, 2, np.random.default_rng(0), scratch=scratch)
    top_arms([], available, 2, np.random.default_rng(0), scratch=scratch)
    assert np.array_equal(key, before[0])
    assert np.array_equal(available, before[1])
