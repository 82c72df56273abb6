"""Benchmark data sets made from their recipes and kept in the user's cache.

The same recipe always gives the same bits, so a cached data set is one that need not be made
again and nothing else. Every episode has its own random stream: the first episodes of a large
data set are the episodes of a small one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from moose.config import settings_tree
from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.data.files import load_dataset, save_dataset
from moose.envs import behaviour
from moose.envs.collect import Player, episode_keys, make_player
from moose.envs.gymnasium_plants import make_gymnasium_dataset
from moose.envs.gymnasium_recipes import GymnasiumRecipe, is_gymnasium
from moose.envs.plants import make_industrial_benchmark
from moose.envs.recipes import (
    GENERATOR_VERSION,
    AnyRecipe,
    Recipe,
    advice_on_name,
    any_recipe_of,
    cached_path,
    dataset_names,
)
from moose.errors import ConfigError, UserError
from moose.progress import SILENT, Progress
from moose.storage import remove_stale_temporaries
from moose.types import Key, Params

# Episodes are played side by side, always so many, whatever the recipe asks for: a compiler may
# round otherwise in an odd lane that fills no vector. 16 is a multiple of every vector's length.
_LANES = 128
_LANES_OF_LONG_EPISODES = 16
_LONG_EPISODE = 10_000
_BEHAVIOURS = (*behaviour.POLICIES, "global")


def find_dataset(source: str, *, cache: Path | None = None, progress: Progress = SILENT) -> Dataset:
    """The data set in a folder, or the benchmark data set of that name.

    Args:
        source: A folder, one of :func:`~moose.envs.recipes.dataset_names`, or ``gym/`` and the
            name of a Gymnasium environment. A folder goes first.
        cache: The cache folder; the user's own by default.
        progress: Whom to tell how far it is.

    Returns:
        The data set.
    """
    if Path(source).is_dir():
        return load_dataset(source)
    if source in dataset_names() or is_gymnasium(source):
        return cached_dataset(any_recipe_of(source), cache=cache, progress=progress)
    raise ConfigError(
        f"'{source}' is neither a folder nor the name of a benchmark data set.",
        where="data set",
        advice="give the folder a data set was saved to, or a name from 'moose data list'; "
        + advice_on_name(source),
    )


def cached_dataset(
    recipe: AnyRecipe, *, cache: Path | None = None, progress: Progress = SILENT
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


def make_dataset(
    recipe: AnyRecipe, *, expert: Path | None = None, progress: Progress = SILENT
) -> Dataset:
    """Play the recipe's behaviour in its simulator.

    Args:
        recipe: What to make.
        expert: For a Gymnasium environment, the file of an expert to play instead of the one that
            comes with the program.
        progress: Whom to tell how far it is.

    Returns:
        The data set; the same bits for the same recipe.
    """
    if isinstance(recipe, GymnasiumRecipe):
        return make_gymnasium_dataset(recipe, expert=expert, progress=progress)
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
    play = _player(recipe.setpoint, recipe.steps)
    params = (_BEHAVIOURS.index(recipe.behaviour), np.float32(recipe.epsilon))
    # The generator is named, so that the bits do not depend on a global setting.
    key = jax.random.key(recipe.seed, impl="threefry2x32")
    lanes = _LANES if recipe.steps < _LONG_EPISODE else _LANES_OF_LONG_EPISODES
    with progress.stage("episodes", recipe.episodes) as stage:
        for first in range(0, recipe.episodes, lanes):
            batch = play(params, episode_keys(key, first, lanes))
            frames, actions, rewards = (np.asarray(values) for values in batch)
            kept = min(lanes, recipe.episodes - first)  # the surplus is dropped
            for e in range(kept):
                yield Episode(frames[e], actions[e], rewards[e], terminated=False, truncated=True)
            stage.advance(kept)


@functools.lru_cache(maxsize=4)
def _player(setpoint: float, steps: int) -> Player:
    """Who acts and how often at random are parameters: all sixteen data sets compile once."""
    policies = [behaviour.POLICIES[name] for name in _BEHAVIOURS[:-1]]
    policies.append(behaviour.hold)  # global: at epsilon 1 the policy underneath never acts

    def act(params: Params, window: jax.Array, key: Key) -> jax.Array:
        index, epsilon = params

        def policy(window: jax.Array) -> jax.Array:
            action: jax.Array = jax.lax.switch(index, policies, window)
            return action

        return behaviour.make_exploring(policy, epsilon)(None, window, key)

    plant = make_industrial_benchmark(setpoint)
    return make_player(plant, act, history=behaviour.HISTORY, steps=steps)
