"""Means and their errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from moose.evaluation.statistics import mean_with_error, tail_values, tenth_percentile


def test_mean_and_standard_error():
    mean, error = mean_with_error([1.0, 2.0, 3.0, 6.0])
    assert mean == 3.0
    assert error == pytest.approx(math.sqrt(14 / 3 / 4))


def test_sums_are_made_in_double_precision():
    values = np.full(1_000_000, 0.1, np.float32)
    mean, error = mean_with_error(values)
    assert mean == pytest.approx(float(np.float32(0.1)), rel=1e-12)
    assert error < 1e-9


def test_the_tenth_percentile_is_interpolated_linearly():
    assert tenth_percentile(np.arange(11.0)[::-1]).value == pytest.approx(1.0)
    assert tenth_percentile([0.0, 1.0]).value == pytest.approx(0.1)


def test_its_error_is_1_7_deviations_over_the_root_of_their_number():
    values = [1.0, 2.0, 3.0, 6.0]
    assert tenth_percentile(values).error == pytest.approx(1.7 * np.std(values, ddof=1) / 2)


def test_a_single_value_has_no_error():
    assert tenth_percentile([3.0]) == (3.0, None)


def test_the_error_is_about_right_for_normal_values():
    """1.7 is 1.709 rounded, and holds for the 100 values of ten seeds' tails."""
    values = np.random.default_rng(0).normal(-70.0, 3.0, (20_000, 100))
    percentiles = np.percentile(values, 10.0, axis=1)
    errors = [tenth_percentile(row).error for row in values[:500]]
    assert np.mean(errors) == pytest.approx(percentiles.std(), rel=0.05)
    density = math.exp(-(1.2815515655446004**2) / 2) / math.sqrt(2 * math.pi)
    assert math.sqrt(0.1 * 0.9) / density == pytest.approx(1.7, abs=0.01)


def test_the_tail_of_a_thousand_updates_are_the_last_ten_of_a_hundred_checks():
    steps = list(range(0, 1001, 10))  # the untrained policy is evaluated too
    assert tail_values(steps, [float(step) for step in steps]) == list(range(910, 1001, 10))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], []),
        ([0], []),
        ([0, 1], [1]),
        ([0, 4, 8, 9, 10], [10]),
        ([0, 100, 181, 200], [181, 200]),
    ],
)
def test_the_tail_of_other_runs(steps, expected):
    assert tail_values(steps, steps) == expected
