"""Numbers that say how far to trust other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    error: float


def mean_with_error(values: npt.ArrayLike) -> Estimate:
    """The mean of independent values and its standard error.

    Args:
        values: ``[N]``, at least two.

    Returns:
        Both, computed in double precision.
    """
    numbers = np.asarray(values, np.float64)
    return Estimate(float(numbers.mean()), float(numbers.std(ddof=1) / np.sqrt(numbers.size)))


class Percentile(NamedTuple):
    """A percentile and its standard error; None where a single value cannot tell."""

    value: float
    error: float | None


TAIL_SHARE = 10
"""One in so many of the updates, the last ones, makes the tail that results are reported by."""

_TENTH_PERCENTILE_ERROR = 1.7
"""√(q (1 − q)) / φ(z) at q = 0.1: the error of that percentile of normal values, in units of their
deviation over √N."""


def tenth_percentile(values: npt.ArrayLike) -> Percentile:
    """The 10th percentile (linear interpolation) and its error, 1.7 · deviation / √N.

    Args:
        values: ``[N]``, at least one.

    Returns:
        Both, computed in double precision.
    """
    numbers = np.asarray(values, np.float64)
    value = float(np.percentile(numbers, 10.0))
    if numbers.size < 2:
        return Percentile(value, None)
    return Percentile(value, float(_TENTH_PERCENTILE_ERROR * mean_with_error(numbers).error))


def tail_values(steps: Sequence[int], values: Sequence[float]) -> list[float]:
    """The values from the final tenth of the updates.

    Args:
        steps: After how many updates each value was measured; the greatest is their total number.
        values: The values.

    Returns:
        Those after more than nine tenths of the updates: with 1,000 updates and a value every ten,
        the values after 910, 920, … 1,000.
    """
    total = max(steps, default=0)
    return [
        value
        for step, value in zip(steps, values, strict=True)
        if step * TAIL_SHARE > total * (TAIL_SHARE - 1)
    ]


class Interval(NamedTuple):
    """Bounds that hold the true value with the confidence they were asked for."""

    low: float
    high: float


class Comparison(NamedTuple):
    """How often one side is better than the other."""

    probability: float
    """P(X > Y), ties counted half."""
    interval: Interval


class MeanDeviation(NamedTuple):
    """A mean and the deviation of single values around it; None where there is only one."""

    mean: float
    deviation: float | None


Groups = Sequence[npt.ArrayLike]
"""Values that belong together, such as those of one seed: resampled together or not at all."""

CONFIDENCE = 0.95
_MOST_RESAMPLES = 1000
_FEWEST_RESAMPLES = 200
_ENOUGH_VALUES = 1_000_000
"""Of all resamples together: more would change an interval by less than its last digit."""
_SEED = 0
"""Intervals are the same whenever they are computed from the same values."""


def mean_with_deviation(values: npt.ArrayLike) -> MeanDeviation:
    """The mean of values and their standard deviation (N − 1 in the denominator).

    Args:
        values: ``[N]``, at least one.

    Returns:
        Both, computed in double precision.
    """
    numbers = np.asarray(values, np.float64)
    deviation = float(numbers.std(ddof=1)) if numbers.size > 1 else None
    return MeanDeviation(float(numbers.mean()), deviation)


def percentile_interval(
    groups: Groups,
    percent: float = 10.0,
    *,
    confidence: float = CONFIDENCE,
    resamples: int | None = None,
) -> Interval | None:
    """A bootstrap interval of a percentile of pooled values (linear interpolation).

    Whole groups are drawn with replacement, since the values of one seed are not independent; a
    single group is resampled value by value, and then says nothing about other seeds. With few
    groups the interval is too narrow: nothing is known of values beyond those that were seen.

    Args:
        groups: The values of each group.
        percent: Which percentile.
        confidence: Share of all such intervals that hold the true value.
        resamples: How often to draw; by default 1,000 times, less often from many values.

    Returns:
        The interval between the percentiles of the resampled figures; None for a single value.
    """
    parts = [np.asarray(group, np.float64).reshape(-1) for group in groups]
    if len(parts) == 1:
        parts = list(parts[0][:, None])
    if len(parts) < 2:
        return None
    if resamples is None:
        resamples = _affordable(10 * sum(part.size for part in parts))  # sorting takes longer
    drawn = _draws(len(parts), resamples)
    if len({part.size for part in parts}) == 1:
        pooled = np.stack(parts)[drawn].reshape(resamples, -1)
        figures = np.percentile(pooled, percent, axis=1)
    else:
        pools = (np.concatenate([parts[i] for i in row]) for row in drawn)
        figures = np.array([np.percentile(pool, percent) for pool in pools])
    return _between(figures, confidence)


def probability_of_improvement(
    tasks: Sequence[tuple[Groups, Groups]],
    *,
    confidence: float = CONFIDENCE,
    resamples: int | None = None,
) -> Comparison:
    """P(X > Y): how often a value of X beats one of Y, ties counted half; the mean over tasks.

    With one value in each group, such as the score of a run, this is the probability of
    improvement of Agarwal et al. (2021), and the interval is their stratified bootstrap: in every
    task the groups of X and those of Y are drawn with replacement.

    Args:
        tasks: For each task the groups of X and those of Y.
        confidence: Share of all such intervals that hold the true value.
        resamples: How often to draw; by default 1,000 times, less often from many groups.

    Returns:
        The probability and its interval.
    """
    tables = [_wins(ours, theirs) for ours, theirs in tasks]
    if resamples is None:
        resamples = _affordable(max(wins.size for wins, _, _ in tables))
    total, figures = 0.0, np.zeros(resamples)
    for number, (wins, *sizes) in enumerate(tables):
        total += float(wins.sum() / (sizes[0].sum() * sizes[1].sum()))
        ours, theirs = (
            _counts(_draws(len(size), resamples, number, side), len(size))
            for side, size in enumerate(sizes)
        )
        pairs = (ours @ sizes[0]) * (theirs @ sizes[1])
        figures += (ours @ wins * theirs).sum(axis=1) / pairs
    return Comparison(total / len(tasks), _between(figures / len(tasks), confidence))


def paired_interval(
    gains: npt.NDArray[np.float64],
    clusters: npt.NDArray[np.int64],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = _MOST_RESAMPLES,
) -> Interval:
    """A bootstrap interval of the mean of paired differences over models and start states.

    Start states of one episode are drawn together or not at all, and so are all numbers of one
    model: both the luck of the episodes and the opinion of the models count.

    Args:
        gains: ``[W, K, N]``: differences in K models of each of W groups, whose N start states
            are their own.
        clusters: ``[W, N]`` the episode of each start state, numbered anew in each group.
        confidence: Share of all such intervals that hold the true value.
        resamples: How often to draw.

    Returns:
        The interval between the percentiles of the resampled means.
    """
    groups, models, _ = gains.shape
    sums, counts, owners = [], [], []
    for group in range(groups):
        _, places = np.unique(clusters[group], return_inverse=True)
        sums.append(np.stack([np.bincount(places, weights=row) for row in gains[group]], axis=1))
        counts.append(np.bincount(places))
        owners.append(np.full(len(counts[-1]), group))
    table, sizes, owner = np.concatenate(sums), np.concatenate(counts), np.concatenate(owners)
    drawn = _counts(_draws(len(sizes), resamples), len(sizes))  # [R, episodes]
    weights = np.stack(
        [_counts(_draws(models, resamples, 1, group), models) / models for group in range(groups)],
        axis=1,
    )  # [R, W, K]
    totals = np.einsum("re,rek,ek->r", drawn, weights[:, owner], table)
    return _between(totals / (drawn @ sizes), confidence)


def _wins(
    ours: Groups, theirs: Groups
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """For each pair of groups, how many pairs of values the first wins; the sizes of the groups."""
    mine = [np.asarray(group, np.float64).reshape(-1) for group in ours]
    yours = [np.asarray(group, np.float64).reshape(-1) for group in theirs]
    signs = np.concatenate(mine)[:, None] - np.concatenate(yours)[None, :]
    np.sign(signs, out=signs)
    sizes = [np.array([part.size for part in parts], np.float64) for parts in (mine, yours)]
    for axis, size in enumerate(sizes):
        firsts = np.concatenate([[0.0], np.cumsum(size)[:-1]]).astype(np.int64)
        signs = np.add.reduceat(signs, firsts, axis=axis)
    # A win is worth 1, a tie a half, a defeat nothing.
    return 0.5 * (signs + np.outer(*sizes)), sizes[0], sizes[1]


def _affordable(values: int) -> int:
    """How often to draw so many values."""
    return min(_MOST_RESAMPLES, max(_FEWEST_RESAMPLES, _ENOUGH_VALUES // values))


def _draws(count: int, resamples: int, *stream: int) -> npt.NDArray[np.int64]:
    """Indices [resamples, count], drawn with replacement."""
    return np.random.default_rng([_SEED, *stream]).integers(0, count, (resamples, count))


def _counts(draws: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.float64]:
    """How often each index was drawn: [resamples, count]."""
    rows = np.arange(len(draws))[:, None] * count
    flat = np.bincount((draws + rows).reshape(-1), minlength=len(draws) * count)
    return flat.reshape(len(draws), count).astype(np.float64)


def _between(figures: npt.NDArray[np.float64], confidence: float) -> Interval:
    outside = 50.0 * (1.0 - confidence)
    low, high = np.percentile(figures, [outside, 100.0 - outside])
    return Interval(float(low), float(high))
