"""Scaling: what is measured once on the data and used wherever raw units meet a network."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from moose.errors import ConfigError, DataError

_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).tiny)  # XLA takes numbers below this for 0

Array = jax.Array | npt.NDArray[np.float32]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Statistics:
    """What is known of each column; a pytree, so that it travels through compiled code.

    Attributes:
        mean: ``[n]`` float32.
        deviation: ``[n]`` float32, always above 0.
        minimum: ``[n]`` float32.
        maximum: ``[n]`` float32.
    """

    mean: Array
    deviation: Array
    minimum: Array
    maximum: Array


def measure(values: npt.ArrayLike, floor: float = 0.0) -> Statistics:
    """Measure the columns of ``values``, in float64.

    Args:
        values: ``[N, n]``, or ``[N]`` for a single column, whose statistics are then scalars.
        floor: The least deviation to use, so that a column that hardly moves is not blown up.
            A column that does not move at all has deviation 1 whatever the floor.

    Returns:
        The statistics, as NumPy float32 arrays.
    """
    array = np.asarray(values)
    if array.ndim not in (1, 2) or array.shape[0] == 0:
        raise DataError(
            f"Cannot measure an array of shape {array.shape}.",
            where="statistics",
            advice="give at least one row, as [rows] or [rows, columns]",
        )
    if not (np.isfinite(floor) and floor >= 0.0):
        raise ConfigError(
            f"A floor of {floor} for deviations is not a finite number of at least 0.",
            where="floor",
            advice="choose a number such as 0 or 0.001",
        )
    # Column by column, so that only one of them is ever held in float64.
    table = np.array(
        [
            _measure_column(column, floor, index)
            for index, column in enumerate(array.reshape(len(array), -1).T)
        ]
    )
    mean, deviation, minimum, maximum = (
        table[:, index].astype(np.float32).reshape(array.shape[1:]) for index in range(4)
    )
    return Statistics(mean, deviation, minimum, maximum)


def standardise(values: jax.Array, statistics: Statistics) -> jax.Array:
    """Raw units to numbers of mean 0 and deviation 1, ``[..., n]``."""
    mean, deviation = _like(values, statistics.mean, statistics.deviation)
    return (values - mean) / deviation


def restore(values: jax.Array, statistics: Statistics) -> jax.Array:
    """The inverse of :func:`standardise`, ``[..., n]``."""
    mean, deviation = _like(values, statistics.mean, statistics.deviation)
    return values * deviation + mean


def clip_to_range(values: jax.Array, statistics: Statistics) -> jax.Array:
    """Raw values, none further out than the data ever were, ``[..., n]``."""
    minimum, maximum = _like(values, statistics.minimum, statistics.maximum)
    return jnp.clip(values, minimum, maximum)


def _like(values: jax.Array, first: Array, second: Array) -> tuple[jax.Array, jax.Array]:
    # Broadcast in so many words: implicit promotion of ranks is an error in our tests.
    return jnp.broadcast_to(first, values.shape), jnp.broadcast_to(second, values.shape)


def _measure_column(
    column: npt.NDArray[np.generic], floor: float, index: int
) -> tuple[float, float, float, float]:
    values = column.astype(np.float64)
    minimum, maximum = float(values.min()), float(values.max())
    if not max(-minimum, maximum) <= _LARGEST:  # written so that NaN fails
        raise DataError(
            f"The column ranges from {minimum} to {maximum}, which float32 cannot hold.",
            where=f"statistics, column {index}",
            advice="check the data first, or use another unit",
        )
    # Not by the deviation: rounding gives a constant column a tiny one, to be divided by later.
    if minimum == maximum:
        return minimum, 1.0, minimum, maximum
    deviation = max(float(values.std()), floor)
    if deviation < _SMALLEST:
        deviation = 1.0
    return float(values.mean()), deviation, minimum, maximum
