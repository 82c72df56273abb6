"""What can be said of a fitted run's models from the log alone: held-out errors and novelty."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moose.algorithms import lion, moose
from moose.algorithms.registry import find_algorithm
from moose.config import build_settings
from moose.data.dataset import Dataset
from moose.data.split import split_episodes
from moose.envs import catalog
from moose.envs.recipes import cache_folder
from moose.errors import RunError
from moose.experiments.journal import RunJournal
from moose.experiments.run_folder import find_finished_run, read_run
from moose.experiments.runner import key_of
from moose.models.accuracy import measure_model_errors, reached_horizon
from moose.models.ensembles import make_model, ready
from moose.models.support import measure_novelty
from moose.progress import SILENT, Progress
from moose.tasks.registry import task_of
from moose.tasks.task import Task

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_NUM_STARTS = 1000
_STEPS_SHOWN = (1, 2, 5, 10, 20, 50, 100)


class FittedRun(NamedTuple):
    """A finished run of LION or MOOSE, with everything it learned."""

    fitted: lion.Fitted | moose.Fitted
    dataset: Dataset
    task: Task
    config: lion.Config | moose.Config


def diagnose_run(
    folder: Path, *, cache: Path | None = None, progress: Progress = SILENT
) -> dict[str, Any]:
    """Measure the models and the support behind a finished run of LION or MOOSE with one seed.

    Args:
        folder: The run's folder.
        cache: Cache of data sets and fitted models; the user's own by default.
        progress: Whom to tell.

    Returns:
        What :func:`diagnose` gives.
    """
    return diagnose(*load_fitted(folder, cache=cache, progress=progress))


def load_fitted(
    folder: Path, *, cache: Path | None = None, progress: Progress = SILENT
) -> FittedRun:
    """Read a finished run of LION or MOOSE with one seed; what the cache lost is fitted again.

    Args:
        folder: The run's folder.
        cache: Cache of data sets and fitted models; the user's own by default.
        progress: Whom to tell.

    Returns:
        Policy, models and support, and what they were fitted to.
    """
    folder = find_finished_run(folder)
    request = read_run(folder).request
    algorithm = find_algorithm(request.algorithm)
    if algorithm.familiarity is None:  # which only those have that learn models
        raise RunError(
            "Only a run of LION or MOOSE has models to look at.",
            where=f"{folder}, algorithm {request.algorithm}",
            advice="give the folder of such a run",
        )
    config: Any = build_settings(algorithm.config, request.config)
    dataset = catalog.find_dataset(request.data, cache=cache, progress=progress)
    task = task_of(dataset.provenance)
    # Everything is finished: the models come from the cache, the policy from its last checkpoint.
    journal = RunJournal(folder, cache or cache_folder())
    key = key_of(request.seed)
    fitted = algorithm.fit(dataset, task, config, key, progress=progress, journal=journal)
    return FittedRun(fitted, dataset, task, config)


def diagnose(
    fitted: lion.Fitted | moose.Fitted,
    dataset: Dataset,
    task: Task,
    config: lion.Config | moose.Config,
) -> dict[str, Any]:
    """Measure the models and the support of one seed on the episodes held out of training.

    Args:
        fitted: What the fit left behind.
        dataset: The whole log.
        task: What is known about the plant.
        config: The settings of the fit.

    Returns:
        Plain numbers: per signal, the error after 1 … H free-running steps in units of the
        signal's deviation, beside that of predicting no change; and quantiles of the
        reconstruction error on training and held-out pairs.
    """
    train, held_out = split_episodes(dataset.num_episodes, config.held_out, config.split_seed)
    training, held_out_episodes = dataset.select_episodes(train), dataset.select_episodes(held_out)
    horizon = reached_horizon(held_out_episodes, task.horizon)
    errors = measure_model_errors(
        make_model(task, fitted.ensemble.scales),
        ready(fitted.ensemble.members),
        held_out_episodes,
        task,
        horizon=horizon,
        num_starts=_NUM_STARTS,
        key=jax.random.key(config.split_seed),
    )

    def by_signal(values: np.ndarray) -> dict[str, list[float]]:
        return {
            name: [round(float(value), 5) for value in values[:, column]]
            for column, name in enumerate(task.predicted_names)
        }

    def novelty(episodes: Dataset) -> list[float]:
        values = measure_novelty(fitted.support, episodes, task, config.support, QUANTILES)
        return [float(value) for value in values]

    return {
        "model_errors": {
            "unit": "deviations of the signal",
            "steps": horizon,
            "episodes": int(np.sum(held_out_episodes.lengths >= horizon)),
            "held_out_episodes": held_out_episodes.num_episodes,
            "error": by_signal(errors.by_step),
            "no_change": by_signal(errors.baseline),
        },
        "novelty": {
            "quantiles": list(QUANTILES),
            "training": novelty(training),
            "held_out": novelty(held_out_episodes),
        },
    }


def render(result: dict[str, Any]) -> RenderableType:
    """A diagnosis as a page of text.

    Args:
        result: What :func:`diagnose` gave.

    Returns:
        Something to print on a rich console.
    """
    errors, novelty = result["model_errors"], result["novelty"]
    steps = [step for step in _STEPS_SHOWN if step <= errors["steps"]]
    table = Table(box=None, header_style="bold")
    table.add_column("error after … steps")
    for step in steps:
        table.add_column(str(step), justify="right")
    for name in errors["error"]:
        for label, values in (("models", errors["error"]), ("no change", errors["no_change"])):
            table.add_row(f"{name}, {label}", *(f"{values[name][step - 1]:.3f}" for step in steps))
    quantiles = Table(box=None, header_style="bold")
    quantiles.add_column("reconstruction error, quantile")
    for quantile in novelty["quantiles"]:
        quantiles.add_column(f"{quantile:g}", justify="right")
    for name in ("training", "held_out"):
        quantiles.add_row(name.replace("_", " "), *(f"{value:.4f}" for value in novelty[name]))
    return Group(
        Text(
            f"Models run freely along the logged actions of {errors['episodes']:,} of "
            f"{errors['held_out_episodes']:,} held-out episodes, those of {errors['steps']} steps;"
        ),
        Text("errors in deviations of the signal:"),
        Text(),
        table,
        Text(),
        quantiles,
    )
