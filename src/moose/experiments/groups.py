"""What judging and tuning share: a run's log, groups of its episodes, models fitted to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from moose.config import Settings, build_settings, digest
from moose.data.dataset import Dataset
from moose.data.split import cut_episodes, fold_episodes, split_episodes
from moose.envs import catalog
from moose.errors import RunError, UserError
from moose.experiments.journal import SharedFits
from moose.experiments.run_folder import Manifest
from moose.models.ensembles import (
    AnyEnsemble,
    DynamicsSettings,
    fit_digest,
    fit_ensemble,
    init_ensemble,
)
from moose.progress import SILENT, Progress
from moose.tasks.task import Task
from moose.types import Key


class GroupSettings(Settings):
    """Which episodes the models of a judgement are fitted to."""

    seed: int = Field(default=1_000_003, ge=0, lt=2**31)
    """Seed of folds, fits and start states: not one that runs are trained with."""
    folds: int = Field(default=3, ge=2)
    """Groups of episodes; each group of models is fitted without one and measured on it."""
    enough_held_out: int = Field(default=50_000, ge=1)
    """With so many transitions held out of the training, the models are fitted to these alone."""


class Partition(NamedTuple):
    """Which episodes models are fitted to, and which they are measured on."""

    dataset: Dataset
    pairs: tuple[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], ...]
    """For each group of models: episodes fitted to, episodes held out."""
    manner: str
    """In words."""


def divide(dataset: Dataset, manifest: Manifest, settings: GroupSettings) -> Partition:
    """Decide which episodes the models of the judgement are fitted to.

    Args:
        dataset: The log.
        manifest: Of the run, which tells what its training has held out.
        settings: How to judge.

    Returns:
        The training's own held-out episodes where they are enough; folds of episodes, or of blocks
        of time where there are too few episodes, otherwise.
    """
    config = manifest.request.config
    if "held_out" in config and dataset.num_episodes > 1:
        train, held_out = split_episodes(
            dataset.num_episodes, float(config["held_out"]), int(config["split_seed"])
        )
        if int(dataset.lengths[held_out].sum()) >= settings.enough_held_out:
            manner = (
                f"fitted to the {len(held_out)} episodes that training has held out, measured on "
                f"the {len(train)} others"
            )
            return Partition(dataset, ((held_out, train),), manner)
    cut = cut_episodes(dataset, settings.folds)
    folds = fold_episodes(cut.num_episodes, settings.folds, settings.seed)
    pairs = tuple(
        (np.sort(np.concatenate([other for other in folds if other is not fold])), fold)
        for fold in folds
    )
    kind = "episodes" if cut is dataset else "blocks of time"
    manner = (
        f"{settings.folds} groups, each fitted without one of {settings.folds} folds of {kind} and "
        "measured on it; other seeds than in training, but not only other data"
    )
    return Partition(cut, pairs, manner)


def fit_models(
    part: Dataset,
    task: Task,
    settings: DynamicsSettings,
    key: Key,
    fits: SharedFits,
    progress: Progress = SILENT,
) -> AnyEnsemble:
    """Fit models to a part of a log, or find them in the cache."""
    return fits.once(
        "models",
        fit_digest(part, task, settings, key),
        init_ensemble(part, task, settings, key),
        lambda: fit_ensemble(part, task, settings, key, progress=progress),
    )


class Numbered:
    """Progress whose stages say what they belong to."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name

    def stage(self, name: str, total: int, done: int = 0) -> Any:
        """A stage whose name says what it belongs to."""
        return self._progress.stage(f"{name}, {self._name}", total, done)


def find_log(folder: Path, manifest: Manifest, cache: Path | None, progress: Progress) -> Dataset:
    """The log that a run was trained on, or why it cannot be had."""
    source = manifest.request.data
    dataset = catalog.find_dataset(source, cache=cache, progress=progress)
    if dataset.fingerprint != manifest.data.fingerprint:
        raise RunError(
            "The data set is not the one that this run began with: its fingerprint differs.",
            where=f"{source}, for the run {folder}",
            advice="restore it; a run is judged by the log it was trained on",
        )
    return dataset


def is_of_run(
    content: Mapping[str, Any],
    schema: type[Settings],
    manifest: Manifest,
    settings: Settings | None,
) -> bool:
    """Whether what was left in a run's folder is of this run, and of these settings if any."""
    if settings is None:
        try:
            settings = build_settings(schema, content.get("settings", {}))
        except UserError:  # of another version
            return False
    return bool(content.get("digest") == digest(manifest.digest, settings))
