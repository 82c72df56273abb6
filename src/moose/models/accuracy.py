"""How good models are on episodes they were not trained on: one step ahead, and free-running."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moose.data.dataset import Dataset
from moose.data.windows import gather_windows
from moose.errors import DataError
from moose.models.supervised import make_table
from moose.tasks.task import Task
from moose.types import DynamicsModel, Key, Params


class ModelErrors(NamedTuple):
    """Root mean squared errors of each predicted signal, in units of its own deviation."""

    by_step: np.ndarray
    """[H, m]: after 1 … H steps along logged actions, mean over members"""
    baseline: np.ndarray
    """[H, m]: of predicting that nothing changes"""


def measure_model_errors(
    model: DynamicsModel,
    members: Params,
    dataset: Dataset,
    task: Task,
    *,
    horizon: int,
    num_starts: int,
    key: Key,
) -> ModelErrors:
    """Let every member run freely along logged actions and compare with what was logged.

    Args:
        model: How a member is rolled.
        members: K members, stacked along the first axis.
        dataset: Held-out episodes.
        task: What is known about the plant.
        horizon: Steps H to run; the first row of the result is the one-step error.
        num_starts: Segments drawn from the episodes.
        key: Which segments.

    Returns:
        The errors. 1 means as wrong as always predicting the mean.
    """
    starts = _segment_starts(dataset, horizon)
    table = make_table(dataset)
    columns = jnp.asarray(task.predicted)

    @jax.jit
    def measure(members: Params, starts: jax.Array, key: Key) -> tuple[jax.Array, jax.Array]:
        chosen = jax.random.choice(key, starts, (num_starts,))
        rows = table.rows[chosen]
        windows = gather_windows(table.observations, rows, table.first_rows[chosen], task.history)
        steps = jnp.arange(horizon)
        actions = table.actions[chosen[:, None] + steps[None]]
        truth = table.observations[rows[:, None] + 1 + steps[None]][..., columns]
        predicted = jax.vmap(jax.vmap(run_freely, (None, 0, 0)), (0, None, None))(
            members, windows, actions
        )
        scale = jnp.std(truth.reshape(-1, len(columns)), axis=0)
        scale = jnp.where(scale > 0, scale, 1.0)
        errors = (predicted[..., columns] - truth[None]) / scale
        still = (windows[:, None, 0, columns] - truth) / scale
        by_step = jnp.mean(jnp.sqrt(jnp.mean(errors**2, axis=1)), axis=0)
        return by_step, jnp.sqrt(jnp.mean(still**2, axis=0))

    def run_freely(member: Params, window: jax.Array, actions: jax.Array) -> jax.Array:
        _, frames = jax.lax.scan(
            lambda carry, action: model.step(member, carry, action), model.start(window), actions
        )
        return frames

    by_step, baseline = measure(members, jnp.asarray(starts, dtype=jnp.int32), key)
    return ModelErrors(np.asarray(by_step), np.asarray(baseline))


def _segment_starts(dataset: Dataset, horizon: int) -> np.ndarray:
    """Transitions that are followed by ``horizon`` known successors in their own episode."""
    usable = dataset.lengths - ~dataset.final_observed
    starts = [
        np.arange(offset, offset + count - horizon + 1)
        for offset, count in zip(dataset.offsets[:-1], usable, strict=True)
        if count >= horizon
    ]
    if not starts:
        raise DataError(
            f"No held-out episode has {horizon} steps.",
            where="model errors",
            advice=f"use a shorter horizon; the longest episode has {int(usable.max())} steps",
        )
    return np.concatenate(starts)
