"""How good models are on episodes they were not trained on: one step ahead, and free-running."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moose.data.dataset import Dataset
from moose.errors import DataError
from moose.models.rollout import Imagined, follow
from moose.models.supervised import Segments, make_table, segments_of
from moose.tasks.task import Task
from moose.types import DynamicsModel, Key, Params

BAND = (0.1, 0.9)
"""Quantiles of the errors between which the band of an error lies."""


class ModelErrors(NamedTuple):
    """Errors of each predicted signal, in units of its own deviation."""

    by_step: np.ndarray
    """[H, m]: root mean square after 1 … H steps along logged actions, mean over members"""
    band: np.ndarray
    """[2, H, m]: quantiles :data:`BAND` of the errors' sizes over segments and members"""
    baseline: np.ndarray
    """[H, m]: root mean square of predicting that nothing changes"""


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
    starts = jnp.asarray(segment_starts(dataset, horizon), dtype=jnp.int32)
    segments = segments_at(dataset, jax.random.choice(key, starts, (num_starts,)), task, horizon)
    imagined = jax.jit(lambda windows, actions: follow(model, members, windows, actions))(
        segments.windows, segments.actions
    )
    return model_errors(imagined, segments, task)


def model_errors(imagined: Imagined, segments: Segments, task: Task) -> ModelErrors:
    """Compare trajectories that follow the segments' actions with the segments.

    Args:
        imagined: What :func:`~moose.models.rollout.follow` gave.
        segments: What was logged.
        task: Which signals are predicted.

    Returns:
        The errors.
    """
    columns = list(task.predicted)
    truth = np.asarray(segments.frames)[..., columns]
    predicted = np.asarray(imagined.frames)[-len(truth) :][..., columns]
    scale = truth.reshape(-1, len(columns)).std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    sizes = np.abs(predicted - truth[:, None]) / scale
    still = (np.asarray(segments.windows)[None, :, 0, columns] - truth) / scale
    return ModelErrors(
        by_step=np.sqrt((sizes**2).mean(axis=2)).mean(axis=1),
        band=np.quantile(sizes, BAND, axis=(1, 2)),
        baseline=np.sqrt((still**2).mean(axis=1)),
    )


def segments_at(dataset: Dataset, chosen: jax.Array, task: Task, horizon: int) -> Segments:
    """The segments that begin at the chosen transitions [N] of :func:`segment_starts`."""
    table = make_table(dataset)
    segments: Segments = jax.jit(lambda chosen: segments_of(table, chosen, task.history, horizon))(
        chosen
    )
    return segments


def reached_horizon(dataset: Dataset, most: int) -> int:
    """How far ahead episodes can be followed, at most ``most`` steps.

    At least half of the log's steps lie in episodes that are as long: where a plant ends most of
    them early, the few longest would not stand for the rest.
    """
    usable = np.sort(dataset.lengths - ~dataset.final_observed)[::-1]
    enough = np.searchsorted(np.cumsum(usable), usable.sum() / 2)
    return max(1, min(most, int(usable[enough])))


def segment_starts(dataset: Dataset, horizon: int) -> np.ndarray:
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
