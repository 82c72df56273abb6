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
