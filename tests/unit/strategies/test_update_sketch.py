"""Sketches of updates: distances, parts, what is not finite."""

from __future__ import annotations

import numpy as np
import pytest

from flower_scheduling.strategies.update_sketch import SKETCH_SIZE, sketch_of_change

SIZE = 10_000


def sketch(change):
    return sketch_of_change([(np.asarray(change), np.zeros_like(change))])


def test_squares_of_distances_are_kept_on_average():
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(400):
        # In a few places alone, as where most of a layer is not trained.
        one, other = (np.where(rng.random(SIZE) < 0.01, rng.normal(size=SIZE), 0) for _ in range(2))
        apart = sketch(one) - sketch(other)
        ratios.append(apart @ apart / ((one - other) @ (one - other)))
    # One ratio scatters by sqrt(2 / S) = 0.25; the mean of 400 by 0.0125.
    assert np.std(ratios) == pytest.approx(np.sqrt(2 / SKETCH_SIZE), rel=0.2)
    assert np.mean(ratios) == pytest.approx(1.0, abs=6 * 0.0125)


def test_values_that_repeat_along_the_model_do_not_add_up():
    alike = np.ones(2**17)  # whatever the width in which it is folded
    found = sketch(alike)
    assert found @ found == pytest.approx(alike.size, rel=1.0)


def test_it_is_linear_and_the_same_in_every_call():
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(2, SIZE))
    assert sketch(one) == pytest.approx(sketch(one + other) - sketch(other))
    assert np.array_equal(sketch(one), sketch(one))
    base = rng.normal(size=SIZE)
    assert sketch_of_change([(base + one, base)]) == pytest.approx(sketch(one))


@pytest.mark.parametrize("cuts", [[1], [4096], [4095, 4097], [10, 10, 9000]])
def test_how_a_model_is_cut_into_arrays_makes_no_difference(cuts):
    rng = np.random.default_rng(2)
    trained, sent = rng.normal(size=(2, SIZE)).astype(np.float32)
    parts = list(zip(np.split(trained, cuts), np.split(sent, cuts), strict=True))
    assert np.array_equal(sketch_of_change(parts), sketch_of_change([(trained, sent)]))


def test_what_is_the_same_in_both_is_no_change_even_if_it_is_not_finite():
    sent = np.array([1.0, -np.inf, np.nan, np.finfo(np.float64).max, 5.0])
    trained = sent.copy()
    trained[0] = 3.0
    assert np.array_equal(sketch_of_change([(trained, sent)]), sketch([2.0, 0, 0, 0, 0]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_change_that_is_not_finite_has_no_sketch(value):
    change = np.zeros(5000)
    change[4500] = value
    assert sketch(change) is None
    largest = np.finfo(np.float64).max
    assert sketch_of_change([(np.array([largest]), np.array([-largest]))]) is None
