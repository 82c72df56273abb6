"""Means and their errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from moose.evaluation.statistics import mean_with_error


def test_mean_and_standard_error():
    mean, error = mean_with_error([1.0, 2.0, 3.0, 6.0])
    assert mean == 3.0
    assert error == pytest.approx(math.sqrt(14 / 3 / 4))


def test_sums_are_made_in_double_precision():
    values = np.full(1_000_000, 0.1, np.float32)
    mean, error = mean_with_error(values)
    assert mean == pytest.approx(float(np.float32(0.1)), rel=1e-12)
    assert error < 1e-9
