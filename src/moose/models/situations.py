"""How far a situation is from the nearest one in the log.

A situation is what the plant was told in the course of its history: the signals that known physics
gives, at a few ages (all signals, where physics gives none). Models that agree with each other are
still wrong where the log has never been; this distance does not ask them. It is measured beyond
what is usual, the distance of the log's own situations from other ones of the log. Where signals
vary much that is a wide margin, in which a signal that hardly varied could go far; so what a signal
is outside of its own range in the log is added.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from moose.config import Settings
from moose.data.dataset import Dataset
from moose.data.draws import Draw, draw_steps, draw_within
from moose.data.normalize import Statistics, measure, standardise
from moose.models.recurrent_scales import given_columns, physical_scale
from moose.models.rollout import Imagined
from moose.models.supervised import TransitionTable, make_table, windows_of
from moose.tasks.task import Task
from moose.types import Key


class SituationSettings(Settings):
    """What a situation is, and with how many of the log's it is compared."""

    ages: tuple[int, ...] = (0, 5, 10, 20)
    """How many steps ago its signals are looked at; an age beyond the history is its oldest."""
    references: int = Field(default=1000, ge=1)
    """Situations of the log that others are compared with."""
    usual_quantile: float = Field(default=0.9, ge=0, le=1)
    """What share of the log's own situations is not beyond what is usual."""
    outside_weight: float = Field(default=1.0, ge=0)
    """Weight of what signals are outside of the range that the log has of them."""
    early_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the references from early in an episode: every doubling of age as likely."""


class Situations(NamedTuple):
    """Situations of a log."""

    references: jax.Array
    """[M, D]"""
    scale: Statistics
    """Of a frame."""
    usual: jax.Array
    """The distance up to which a situation is as near to the log as the log's own."""
    low: jax.Array
    """[S] the least that the log has of each signal, standardised"""
    high: jax.Array
    """[S] the most"""
    own: np.ndarray
    """[M] distances of situations of the log from others of it, sorted"""


def measure_situations(
    dataset: Dataset,
    task: Task,
    settings: SituationSettings,
    key: Key,
    *,
    other: Dataset | None = None,
    is_whole: bool = False,
) -> Situations:
    """Draw situations of a log, and measure what distance is usual among them.

    Args:
        dataset: The training episodes.
        task: Which signals physics gives.
        settings: What a situation is.
        key: Which situations.
        other: Episodes whose distance from the training episodes is called usual; by default
            these themselves.
        is_whole: Leave out situations from before an episode was as old as their oldest signal,
            where a first frame stands for what nobody has logged. Held still since ever, says such
            a situation, and no log need have held still for longer than a step.

    Returns:
        What :func:`distances` needs.
    """
    reference_key, other_key = jax.random.split(key)
    count = min(settings.references, dataset.num_transitions)
    ages = ages_in(task, settings)

    def draw_windows(dataset: Dataset, key: Key) -> jax.Array:
        table = make_table(dataset)
        draw = draw_within(dataset, _whole_steps(dataset, ages[-1]) if is_whole else None)

        @jax.jit
        def drawn(table: TransitionTable, draw: Draw, key: Key) -> jax.Array:
            steps = draw_steps(draw, count, settings.early_share, key)
            return windows_of(table, steps, task.history)

        windows: jax.Array = drawn(table, draw, key)
        return windows

    windows = draw_windows(dataset, reference_key)
    scale = physical_scale(measure(np.asarray(windows[:, 0])), task)
    columns = jnp.asarray(situation_columns(task))

    def situations_in(windows: jax.Array) -> jax.Array:
        seen = standardise(windows[:, jnp.asarray(ages)], scale)[..., columns]
        return seen.reshape(len(windows), -1)

    references = jax.jit(situations_in)(windows)
    others = jax.jit(situations_in)(draw_windows(dataset if other is None else other, other_key))
    own = np.sort(np.asarray(jax.jit(nearest)(references, others)))
    usual = np.quantile(own, settings.usual_quantile)
    observed = jnp.asarray(dataset.observations[dataset.is_observed])
    seen = standardise(observed, scale)[:, columns]
    return Situations(
        references,
        scale,
        jnp.asarray(usual, references.dtype),
        low=jnp.min(seen, axis=0),
        high=jnp.max(seen, axis=0),
        own=own,
    )


def distances(
    situations: Situations, imagined: Imagined, task: Task, settings: SituationSettings
) -> jax.Array:
    """How far imagined situations after each step are from the log, beyond the usual: [H, K, N]."""
    points = points_of(imagined, situations.scale, task, settings)
    found = nearest_by_step(situations.references, points)
    return beyond_usual(situations, points, found, settings)


def beyond_usual(
    situations: Situations, points: jax.Array, found: jax.Array, settings: SituationSettings
) -> jax.Array:
    """What of distances [...] of situations [..., D] is not usual, and what is outside the range.

    A signal that stays outside is so at every age of a situation; hence the root of their number,
    by which both parts have the same unit.
    """
    signals = len(situations.low)
    newest = points[..., :signals]
    outside = jnp.maximum(newest - situations.high, 0.0) + jnp.maximum(situations.low - newest, 0.0)
    weight = settings.outside_weight * math.sqrt(points.shape[-1] / signals)
    return jnp.maximum(found - situations.usual, 0.0) + weight * jnp.sum(outside, axis=-1)


def points_of(
    imagined: Imagined, scale: Statistics, task: Task, settings: SituationSettings
) -> jax.Array:
    """The imagined situations after each step: [H, K, N, D]."""
    horizon = len(imagined.actions)
    columns = jnp.asarray(situation_columns(task))
    frames = standardise(imagined.frames, scale)[..., columns]
    # By shifted slices rather than by index: their gradient is a sum and not a scatter.
    newest = len(frames) - horizon
    seen = [
        jax.lax.slice_in_dim(frames, newest - age, newest - age + horizon)
        for age in ages_in(task, settings)
    ]
    return jnp.concatenate(seen, axis=-1)


def nearest_by_step(references: jax.Array, points: jax.Array) -> jax.Array:
    """Distances [H, K, N] of points [H, K, N, D] from the nearest reference, a step at a time."""

    def at_step(points: jax.Array) -> jax.Array:
        flat = points.reshape(-1, points.shape[-1])
        return nearest(references, flat).reshape(points.shape[:-1])

    found: jax.Array = jax.lax.map(at_step, points)
    return found


def situation_columns(task: Task) -> tuple[int, ...]:
    """The signals that make a situation: those physics gives, or all if it gives none."""
    return given_columns(task) or tuple(range(len(task.observation_names)))


def ages_in(task: Task, settings: SituationSettings) -> tuple[int, ...]:
    """The ages that a history of this task has."""
    return tuple(sorted({min(age, task.history - 1) for age in settings.ages}))


def _whole_steps(dataset: Dataset, age: int) -> np.ndarray | None:
    """The steps of at least this age, or None if no episode is that old."""
    is_whole = dataset.observation_rows - dataset.first_rows >= age
    return np.flatnonzero(is_whole) if is_whole.any() else None


def nearest(references: jax.Array, points: jax.Array) -> jax.Array:
    """Distances [B] of points [B, D] from the nearest of the references [M, D]."""
    fixed = jax.lax.stop_gradient(points)
    sizes = jnp.sum(references**2, axis=1)
    scores = jnp.broadcast_to(sizes, (len(points), len(sizes))) - 2.0 * fixed @ references.T
    # On a CPU half of the time of an argmin; of those that are equally near it takes the mean.
    is_nearest = (scores == jnp.min(scores, axis=1)[:, None]).astype(points.dtype)
    nearest = is_nearest @ references / jnp.sum(is_nearest, axis=1)[:, None]
    # The slope of a root at 0 is not finite.
    return jnp.sqrt(jnp.sum((points - nearest) ** 2, axis=1) + 1e-12)
