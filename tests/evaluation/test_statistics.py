"""Means and their errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from moose.evaluation.statistics import (
    mean_with_deviation,
    mean_with_error,
    paired_interval,
    percentile_interval,
    probability_of_improvement,
    tail_values,
    tenth_percentile,
)


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


# Deviations and intervals


def test_a_mean_comes_with_the_deviation_of_single_values():
    mean, deviation = mean_with_deviation([1.0, 2.0, 3.0, 6.0])
    assert mean == 3.0
    assert deviation == pytest.approx(math.sqrt(14 / 3))
    assert mean_with_deviation([5.0]) == (5.0, None)


def test_the_interval_of_a_percentile_is_as_wide_as_its_error_says():
    """Independent normal values: about 2 · 1.96 · 1.7 deviations over the root of their number."""
    values = np.random.default_rng(3).normal(-70.0, 3.0, (400, 1))
    low, high = percentile_interval(values, resamples=4000)
    assert high - low == pytest.approx(2 * 1.96 * 1.71 * 3.0 / 20, rel=0.25)
    assert low < np.percentile(values, 10.0) < high


def test_intervals_hold_the_true_percentile_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    truth = -1.2815515655446004
    hits = 0
    for _ in range(150):
        low, high = percentile_interval(rng.normal(size=(300, 1)), confidence=0.9, resamples=300)
        hits += low <= truth <= high
    assert 0.8 < hits / 150 < 0.97


def test_seeds_are_resampled_as_a_whole():
    """Ten values of a seed that are all alike tell no more than one."""
    seeds = np.random.default_rng(1).normal(size=(10, 1))
    narrow = percentile_interval(np.random.default_rng(1).normal(size=(100, 1)))
    wide = percentile_interval(np.repeat(seeds, 10, axis=1))
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_intervals_of_unequal_and_of_single_groups():
    assert percentile_interval([[1.0]]) is None
    low, high = percentile_interval([[1.0, 2.0, 3.0]])  # one seed: value by value
    assert 1.0 <= low < high <= 3.0
    low, high = percentile_interval([[1.0, 1.0], [5.0]])
    assert (low, high) == (1.0, 5.0)
    equal = percentile_interval([[1.0, 2.0], [3.0, 4.0]])
    assert equal == percentile_interval([np.array([1.0, 2.0]), np.array([3.0, 4.0])])


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([[2.0], [3.0]], [[1.0], [0.0]], 1.0),
        ([[1.0], [2.0]], [[1.0], [2.0]], 0.5),
        ([[0.0]], [[1.0]], 0.0),
        ([[1.0]], [[1.0]], 0.5),
        ([[1.0], [3.0]], [[2.0], [2.0]], 0.5),
        ([[1.0, 3.0], [3.0]], [[2.0]], 2 / 3),
    ],
)
def test_the_probability_of_improvement_counts_pairs(ours, theirs, expected):
    found = probability_of_improvement([(ours, theirs)])
    assert found.probability == pytest.approx(expected)
    assert found.interval.low <= found.probability <= found.interval.high


def test_the_probability_of_improvement_of_normal_values_is_known():
    rng = np.random.default_rng(2)
    tasks = [(rng.normal(shift, 1.0, (400, 1)), rng.normal(size=(400, 1))) for shift in (0.0, 1.0)]
    phi = 0.5 * (1 + math.erf(1 / math.sqrt(2) / math.sqrt(2)))
    one = probability_of_improvement([tasks[1]])
    assert one.probability == pytest.approx(phi, abs=0.03)
    # The deviation of the Mann-Whitney statistic, from theory for large samples.
    width = one.interval.high - one.interval.low
    assert width == pytest.approx(2 * 1.96 * math.sqrt(2 * 0.0552 / 400), rel=0.3)
    both = probability_of_improvement(tasks)
    assert both.probability == pytest.approx((0.5 + phi) / 2, abs=0.03)
    assert both.interval.low < both.probability < both.interval.high


def test_statistics_repeat_themselves():
    values = np.random.default_rng(0).normal(size=(5, 4))
    assert percentile_interval(values) == percentile_interval(values)
    first, second = (probability_of_improvement([(values, values + 0.1)]) for _ in range(2))
    assert first == second


def paired(rng, *, episodes=20, per_episode=5, models=4, between=1.0, opinion=0.5):
    """Gains of mean 1 whose episodes and models have luck and opinions of their own."""
    luck = between * rng.normal(size=(2, 1, episodes))
    opinions = opinion * rng.normal(size=(2, models, 1))
    gains = 1.0 + luck.repeat(per_episode, axis=2) + opinions
    return gains, np.tile(np.repeat(np.arange(episodes), per_episode), (2, 1))


def test_a_paired_interval_holds_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        low, high = paired_interval(*paired(rng), confidence=0.9, resamples=200)
        hits += low <= 1.0 <= high
    # Few models make it a little too narrow; independent starts would hold it half as often.
    assert 0.75 <= hits / 200 <= 0.97


def test_starts_of_one_episode_count_as_one():
    rng = np.random.default_rng(1)
    gains, clusters = paired(rng, opinion=0.0)
    honest = paired_interval(gains, clusters)
    naive = paired_interval(gains, np.tile(np.arange(100), (2, 1)))
    assert honest.high - honest.low > 1.7 * (naive.high - naive.low)


def test_models_that_disagree_widen_a_paired_interval():
    gains, clusters = paired(np.random.default_rng(2), between=0.0, opinion=1.0)
    interval = paired_interval(gains, clusters)
    assert interval.high - interval.low > 0.3
    assert interval.low < gains.mean() < interval.high
    certain = paired_interval(np.full_like(gains, 0.25), clusters)
    assert tuple(certain) == (0.25, 0.25)
