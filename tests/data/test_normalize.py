"""Scaling against NumPy in float64, and the columns that do not move."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moose.data.normalize import Statistics, clip_to_range, measure, restore, standardise
from moose.errors import ConfigError, DataError

NUMBERS = st.floats(-(2.0**40), 2.0**40, width=32)
TABLES = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=20), elements=NUMBERS
)
# One shape where JAX is involved, which compiles anew for each.
SMALL_TABLES = hnp.arrays(np.float32, (6, 3), elements=NUMBERS)


@given(values=TABLES, floor=st.sampled_from([0.0, 0.5]))
def test_statistics_are_those_of_numpy(values: npt.NDArray[np.float32], floor: float) -> None:
    statistics = measure(values, floor)
    exact = values.astype(np.float64)
    is_constant = exact.min(0) == exact.max(0)
    deviation = np.maximum(exact.std(0), floor)
    deviation[is_constant | (deviation < np.finfo(np.float32).tiny)] = 1.0
    np.testing.assert_allclose(statistics.mean, exact.mean(0), rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(statistics.deviation, deviation, rtol=1e-6)
    np.testing.assert_array_equal(statistics.minimum, values.min(0))
    np.testing.assert_array_equal(statistics.maximum, values.max(0))
    for part in jax.tree.leaves(statistics):
        assert part.dtype == np.float32
        assert part.shape == values.shape[1:]


@settings(deadline=None)
@given(values=SMALL_TABLES)
def test_standardised_and_restored(values: npt.NDArray[np.float32]) -> None:
    statistics = measure(values)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        scaled = standardise(jnp.asarray(values), statistics)
        restored = restore(scaled, statistics)
    assert np.isfinite(scaled).all()
    largest = np.abs(values).max(0, keepdims=True)
    assert (np.abs(restored - values) <= 1e-5 * largest + 1e-30).all()


@pytest.mark.parametrize("value", [0.1, 1e7 + 1, -0.0, 1e-42, 3e38])
def test_a_constant_column_has_deviation_one(value: float) -> None:
    values = np.full((100_003, 2), value, np.float32)
    values[:, 1] = np.arange(len(values))
    for floor in (0.0, 5.0):
        statistics = measure(values, floor)
        assert np.asarray(statistics.deviation)[0] == 1.0
        assert np.asarray(statistics.mean)[0] == np.float32(value)


def test_a_deviation_too_small_for_float32_counts_as_none() -> None:
    statistics = measure(np.array([[0.0], [1e-45]], np.float32))
    assert np.asarray(statistics.deviation)[0] == 1.0


def test_float64_is_needed_and_used() -> None:
    # In float32 a million values around 10 000 lose their small deviation.
    values = (1e4 + np.random.default_rng(0).normal(size=(1_000_000, 1)) * 0.1).astype(np.float32)
    exact = values.astype(np.float64)
    statistics = measure(values)
    np.testing.assert_allclose(statistics.deviation, exact.std(0), rtol=1e-6)
    np.testing.assert_allclose(statistics.mean, exact.mean(0), rtol=1e-7)


def test_statistics_travel_through_compiled_code() -> None:
    values = np.array([[0.0, 5.0], [2.0, 5.0]], np.float32)
    statistics = measure(values)
    assert len(jax.tree.leaves(statistics)) == 4
    compiled = jax.jit(standardise)(jnp.asarray(values), statistics)
    np.testing.assert_allclose(compiled, [[-1.0, 0.0], [1.0, 0.0]])
    moved = jax.tree.map(lambda part: part + 1.0, statistics)
    assert isinstance(moved, Statistics)


def test_clipped_to_what_was_seen() -> None:
    statistics = measure(np.array([[0.0, -1.0], [2.0, 1.0]], np.float32))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        clipped = clip_to_range(jnp.array([[-1.0, 0.5], [9.0, -9.0]]), statistics)
    np.testing.assert_array_equal(clipped, [[0.0, 0.5], [2.0, -1.0]])


def test_a_single_column_has_scalar_statistics() -> None:
    statistics = measure(np.array([1.0, 3.0]))
    assert np.shape(statistics.mean) == ()
    np.testing.assert_allclose(standardise(jnp.array([1.0, 3.0]), statistics), [-1.0, 1.0])


@pytest.mark.parametrize(
    "values", [np.zeros((0, 2)), 1.0, np.zeros((1, 1, 1)), [[np.nan]], [[0.0], [np.inf]], [[1e39]]]
)
def test_what_cannot_be_measured(values: Any) -> None:
    with pytest.raises(DataError):
        measure(values)


@pytest.mark.parametrize("floor", [-1.0, float("nan"), float("inf")])
def test_impossible_floors(floor: float) -> None:
    with pytest.raises(ConfigError, match="floor"):
        measure(np.zeros((2, 2)), floor)
