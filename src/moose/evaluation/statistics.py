"""Numbers that say how far to trust other numbers."""

from __future__ import annotations

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
