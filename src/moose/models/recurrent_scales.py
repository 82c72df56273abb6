"""What recurrent models know of a plant before they are trained: scales, and what physics gives."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from moose.data.dataset import Dataset
from moose.data.draws import draw_steps, draw_within
from moose.data.normalize import Statistics, measure
from moose.models.networks import on_device
from moose.tasks.task import Task

_SCALE_FRAMES = 20_000
_PROBED_FRAMES = 256
_BOUND_DEVIATIONS = 4.0  # a signal's physical range, in deviations


class RecurrentScales(NamedTuple):
    """Statistics of the training data that recurrent models live in."""

    frame: Statistics
    """Of what is drawn for training, or of a signal's physical range where that is known; minimum
    and maximum are those of the whole log."""
    predicted: Statistics
    """Of the predicted signals in the whole log; predictions are clipped to this range."""
    given: jax.Array
    """[n]: 1 for signals that physics gives whatever is predicted, 0 for the others"""
    unshown: jax.Array
    """[d]: 1 for actions that no given signal responds to, 0 for the others"""
    reward: Statistics


def measure_recurrent_scales(dataset: Dataset, task: Task, early_share: float) -> RecurrentScales:
    """Statistics of what is drawn for training, and physical ranges where the task has them."""
    steps = draw_within(dataset)
    chosen = draw_steps(steps, _SCALE_FRAMES, early_share, jax.random.key(0))
    frames = dataset.observations[dataset.observation_rows[np.asarray(chosen)]]
    observed = dataset.observations[dataset.is_observed]
    drawn, whole = measure(frames), measure(observed)
    given, unshown = probe_physics(frames[:_PROBED_FRAMES], task)
    return RecurrentScales(
        frame=physical_scale(replace(drawn, minimum=whole.minimum, maximum=whole.maximum), task),
        predicted=measure(observed[:, list(task.predicted)]),
        given=on_device(given),
        unshown=on_device(unshown),
        reward=measure(dataset.rewards),
    )


def physical_scale(statistics: Statistics, task: Task) -> Statistics:
    """The statistics, but those of a range of four deviations where the task knows a range."""
    mean, deviation = np.array(statistics.mean), np.array(statistics.deviation)
    for i, (low, high) in enumerate(task.observation_ranges):
        if low is not None and high is not None and low < high and i not in task.predicted:
            mean[i], deviation[i] = (low + high) / 2, (high - low) / _BOUND_DEVIATIONS
    return replace(statistics, mean=mean, deviation=deviation)


def probe_physics(frames: np.ndarray, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """What known physics gives before anything is predicted, and which actions it does not show.

    Physics is a function and nothing else is known of it, so it is tried: with other predictions,
    and with each action at the ends of its range.

    Args:
        frames: ``[M, n]`` frames of a log.
        task: The physics.

    Returns:
        ``[n]``: 1 for signals, not predicted ones, that do not respond to predictions; ``[d]``: 1
        for actions that none of these signals responds to.
    """
    physics = jax.jit(jax.vmap(task.physics))
    values = frames[:, list(task.predicted)]
    low, high = (np.asarray(bound, np.float32) for bound in (task.action_low, task.action_high))
    actions = np.tile((low + high) / 2, (len(frames), 1))
    usual = physics(frames, actions, values)

    def responds(actions: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.asarray(np.any(physics(frames, actions, values) != usual, axis=0))

    others = np.concatenate([values[1:], values[:1] + 1])  # as logged, but with another frame
    is_given = ~responds(actions, others)
    is_given[list(task.predicted)] = False
    is_unshown = np.ones(len(low), np.bool_)
    for i, bound in itertools.product(range(len(low)), (low, high)):
        changed = actions.copy()
        changed[:, i] = bound[i]
        is_unshown[i] &= not (responds(changed, values) & is_given).any()
    return is_given.astype(np.float32), is_unshown.astype(np.float32)


def given_columns(task: Task) -> tuple[int, ...]:
    """Columns of a frame that are not predicted but given by known physics."""
    return tuple(i for i in range(len(task.observation_names)) if i not in task.predicted)
