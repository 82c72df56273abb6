"""What every row of a table is to be compared with: the log's own return, and never acting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moose.envs import catalog
from moose.evaluation.statistics import mean_with_error
from moose.experiments.evaluate import evaluation_key, make_hold, make_measure
from moose.progress import SILENT, Progress
from moose.tasks.registry import task_of

EVALUATIONS = 100
"""How often never acting is evaluated: as often as the policy of a run."""


def describe_data(
    source: str, episodes: int, *, cache: Path | None = None, progress: Progress = SILENT
) -> dict[str, Any]:
    """Find or make a data set and measure its references.

    Args:
        source: The data set's name or folder.
        episodes: Episodes of an evaluation; 0 for grids without any.
        cache: The cache folder; the user's own by default.
        progress: Whom to tell how far the data set is.

    Returns:
        Plain values: ``fingerprint``, ``generator_version`` (None unless a recipe made it),
        ``transitions``, ``episodes``; ``behaviour``, the log's
        discounted returns averaged over as many episodes as an evaluation has; ``hold``, such
        averages of never acting (the mean action where no action means that) from fresh resets;
        and ``batch``, the mean return of the log and its standard error.
    """
    dataset = catalog.find_dataset(source, cache=cache, progress=progress)
    task = task_of(dataset.provenance)
    returns = dataset.discounted_returns(task.discount, task.horizon)
    hold: list[float] = []
    if episodes:
        action = task.hold_action or [float(value) for value in dataset.actions.mean(axis=0)]
        measure = make_measure(dataset.provenance, make_hold(action), task, episodes, task.horizon)
        hold = [
            float(np.mean(np.asarray(measure(None, evaluation_key(number)), np.float64)))
            for number in range(EVALUATIONS)
        ]
    batch = mean_with_error(returns) if len(returns) > 1 else None
    return {
        "fingerprint": dataset.fingerprint,
        "generator_version": dataset.provenance.get("generator_version"),
        "transitions": dataset.num_transitions,
        "episodes": dataset.num_episodes,
        "discount": task.discount,
        "steps": task.horizon,
        "batch": {
            "mean": float(returns.mean()),
            "standard_error": batch.error if batch else None,
        },
        "behaviour": group_means(returns.tolist(), max(1, episodes)),
        "hold": hold,
        "evaluation_episodes": episodes,
    }


def group_means(values: Sequence[float], size: int) -> list[float]:
    """Means of ``size`` values each, in order; a last group that is not full is left out.

    Fewer values than ``size`` are one group.
    """
    if len(values) < size:
        return [float(np.mean(values))]
    whole = np.asarray(values[: len(values) // size * size], np.float64)
    return [float(mean) for mean in whole.reshape(-1, size).mean(axis=1)]
