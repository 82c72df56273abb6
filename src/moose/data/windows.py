"""History windows, gathered by index inside compiled code and never stored."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def gather_windows(
    observations: jax.Array, rows: jax.Array, first_rows: jax.Array, history: int
) -> jax.Array:
    """The last ``history`` frames at each of ``rows``, newest first.

    Frames from before the start of an episode repeat its first frame.

    Args:
        observations: ``[N+E, n]``, the data set's frames end to end.
        rows: ``[B]`` int32, the row of each window's newest frame. Any shape will do, a single
            number under ``vmap`` too.
        first_rows: int32 of the same shape, the row of the first frame of each one's episode.
        history: F, the number of frames in a window; static.

    Returns:
        ``[B, F, n]``, that is, the shape of ``rows`` followed by ``[F, n]``.
    """
    if history < 1:
        raise ValueError(f"a window needs at least one frame, not {history}")
    rows, first_rows = jnp.asarray(rows), jnp.asarray(first_rows)
    if rows.dtype != jnp.int32 or first_rows.dtype != jnp.int32:
        raise TypeError(f"rows have to be int32, not {rows.dtype} and {first_rows.dtype}")
    if rows.shape != first_rows.shape:
        raise ValueError(f"rows {rows.shape} and first_rows {first_rows.shape} differ in shape")
    ages = jnp.arange(history, dtype=jnp.int32).reshape((1,) * rows.ndim + (history,))
    indices = jnp.maximum(rows[..., None] - ages, first_rows[..., None])
    # "clip" is as fast as no check; the default, NaN for rows out of bounds, takes 4 times as long.
    return jnp.asarray(observations).at[indices].get(mode="clip", wrap_negative_indices=False)


def gather_next_windows(
    observations: jax.Array, rows: jax.Array, first_rows: jax.Array, history: int
) -> jax.Array:
    """The windows one step on: as :func:`gather_windows` at ``rows + 1``.

    Means something only for transitions that have a successor (``Dataset.has_successor``).
    """
    return gather_windows(observations, jnp.asarray(rows) + 1, first_rows, history)
