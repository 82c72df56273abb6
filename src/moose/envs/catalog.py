"""Benchmark data sets made from their recipes and kept in the user's cache.

The same recipe always gives the same bits, so a cached data set is one that need not be made
again and nothing else. Every episode has its own random stream: the first episodes of a large
data set are the episodes of a small one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from moose.config import settings_tree
from moose.data.dataset import Dataset, Episode
from moose.data.files import load_dataset, save_dataset
from moose.envs import behaviour
from moose.envs.collect import episode_keys, make_player
from moose.envs.plants import make_industrial_benchmark
from moose.envs.recipes import GENERATOR_VERSION, Recipe, cached_path, dataset_names, recipe_of
from moose.errors import ConfigError, UserError, nearest
from moose.progress import SILENT, Progress
from moose.storage import remove_stale_temporaries

_TRANSITIONS_PER_CHUNK = 100_000


def find_dataset(source: str, *, cache: Path | None = None, progress: Progress = SILENT) -> Dataset:
    """The data set in a folder, or the benchmark data set of that name.

    Args:
        source: A folder, or one of :func:`~moose.envs.recipes.dataset_names`. A folder goes first.
        cache: The cache folder; the user's own by default.
        progress: Whom to tell how far it is.

    Returns:
        The data set.
    """
    if Path(source).is_dir():
        return load_dataset(source)
    if source in dataset_names():
        return cached_dataset(recipe_of(source), cache=cache, progress=progress)
    raise ConfigError(
        f"'{source}' is neither a folder nor the name of a benchmark data set.",
        where="data set",
        advice="give the folder a data set was saved to, or a name from 'moose data list'; "
        + nearest(source, dataset_names()),
    )


def cached_dataset(
    recipe: Recipe, *, cache: Path | None = None, progress: Progress = SILENT
) -> Dataset:
    """Load the recipe's data set from the cache, or make it and leave it there.

    Args:
        recipe: What to get.
        cache: The cache folder; the user's own by default.
        progress: Whom to tell how far it is.

    Returns:
        The data set.
    """
    path = cached_path(recipe, cache)
    if path.exists():
        try:
            return load_dataset(path)
        except UserError as error:
            error.advice = f"delete the folder {path}; it will be made again, bit for bit"
            raise
    dataset = make_dataset(recipe, progress=progress)
    remove_stale_temporaries(path.parent)
    # Another process may have made it in the meantime; both have made the same.
    save_dataset(dataset, path, overwrite=True)
    return dataset


def make_dataset(recipe: Recipe, *, progress: Progress = SILENT) -> Dataset:
    """Play the recipe's behaviour in the simulator.

    Args:
        recipe: What to make.
        progress: Whom to tell how far it is.

    Returns:
        The data set; the same bits for the same recipe.
    """
    plant = make_industrial_benchmark(recipe.setpoint)
    return Dataset.from_episodes(
        _play(recipe, progress),
        observation_names=plant.frame_names,
        action_names=plant.action_names,
        provenance={
            "plant": plant.name,
            "recipe": settings_tree(recipe),
            "generator_version": GENERATOR_VERSION,
        },
    )


def _play(recipe: Recipe, progress: Progress) -> Iterator[Episode]:
    # At epsilon 1, as in the global recipe, the policy underneath never acts.
    policy = behaviour.POLICIES.get(recipe.behaviour, behaviour.hold)
    act = behaviour.make_exploring(policy, recipe.epsilon)
    plant = make_industrial_benchmark(recipe.setpoint)
    play = make_player(plant, act, history=behaviour.HISTORY, steps=recipe.steps)
    # The generator is named, so that the bits do not depend on a global setting.
    key = jax.random.key(recipe.seed, impl="threefry2x32")
    chunk = max(1, min(_TRANSITIONS_PER_CHUNK // recipe.steps, recipe.episodes))
    with progress.stage("episodes", recipe.episodes) as stage:
        for first in range(0, recipe.episodes, chunk):
            # Every chunk has the same size, so that it is compiled once; the surplus is dropped.
            batch = play(None, episode_keys(key, first, chunk))
            frames, actions, rewards = (np.asarray(values) for values in batch)
            kept = min(chunk, recipe.episodes - first)
            for e in range(kept):
                yield Episode(frames[e], actions[e], rewards[e], terminated=False, truncated=True)
            stage.advance(kept)
