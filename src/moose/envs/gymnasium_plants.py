"""Gymnasium environments as plants: made by name, described, and played for data.

Only environments whose observations and actions are rows of numbers can serve.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from moose.config import settings_tree
from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.envs.gymnasium_recipes import GENERATOR_VERSION, PREFIX, GymnasiumRecipe
from moose.errors import ConfigError, MissingExtraError, nearest
from moose.progress import SILENT, Progress
from moose.tasks.gymnasium_task import PLANT

if TYPE_CHECKING:
    import gymnasium

_OWN = "moose/"


class Columns(NamedTuple):
    """What a data set and a task have to know of an environment."""

    observation_names: tuple[str, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]


def make_environment(name: str) -> gymnasium.Env[Any, Any]:
    """Make an environment of numbers.

    Args:
        name: Its registered name, without the ``gym/`` of data sets.

    Returns:
        The environment.

    Raises:
        ConfigError: There is none of that name, a package is missing for it, or its spaces are not
            rows of numbers.
    """
    if importlib.util.find_spec("gymnasium") is None:
        raise MissingExtraError("gymnasium", "gym", "Playing in a Gymnasium environment")
    import gymnasium  # noqa: PLC0415 (an optional dependency)

    where = f"environment '{PREFIX}{name}'"
    if name.startswith(_OWN):
        importlib.import_module("moose.envs.gymnasium_front")  # registers ours
    if name not in gymnasium.registry:
        raise ConfigError(
            f"Gymnasium {gymnasium.__version__} knows no environment '{name}'.",
            where=where,
            advice=f"{nearest(name, gymnasium.registry)} "
            "(those of other packages are not known: no foreign code is loaded by name)",
        )
    try:
        environment = gymnasium.make(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(
            f"The environment cannot be made: {error}",
            where=where,
            advice="install what it needs, or choose another version of it",
        ) from error
    _require_numbers(environment, where)
    return environment


def columns_of(environment: gymnasium.Env[Any, Any]) -> Columns:
    """Names of the numbers that an environment shows and takes, and the bounds of the latter."""
    space: Any = environment.action_space
    size = int(np.prod(environment.observation_space.shape or (0,)))
    return Columns(
        tuple(f"observation_{i}" for i in range(size)),
        tuple(f"action_{i}" for i in range(space.shape[0])),
        tuple(map(float, space.low)),
        tuple(map(float, space.high)),
    )


def make_gymnasium_dataset(recipe: GymnasiumRecipe, *, progress: Progress = SILENT) -> Dataset:
    """Play the recipe's policy in its environment.

    Every episode has its own random stream, so that the first episodes of a large data set are
    those of a small one.

    Args:
        recipe: What to make.
        progress: Whom to tell how far it is.

    Returns:
        The data set; the same bits for the same recipe and versions.
    """
    with contextlib.closing(make_environment(recipe.environment)) as environment:
        columns = columns_of(environment)
        return Dataset.from_episodes(
            _play(environment, recipe, progress),
            observation_names=columns.observation_names,
            action_names=columns.action_names,
            provenance={
                "plant": PLANT,
                "environment": recipe.environment,
                "columns": {name: list(values) for name, values in columns._asdict().items()},
                "recipe": settings_tree(recipe),
                "generator_version": GENERATOR_VERSION,
                "versions": versions_of_plants(),
            },
        )


def versions_of_plants() -> dict[str, str]:
    """Versions of the libraries that what an environment does depends on."""
    found = {}
    for name in ("gymnasium", "mujoco"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _play(
    environment: gymnasium.Env[Any, Any], recipe: GymnasiumRecipe, progress: Progress
) -> Iterator[Episode]:
    space: Any = environment.action_space
    left, number = recipe.transitions, 0
    with progress.stage("transitions", recipe.transitions) as stage:
        while left:
            rng = np.random.default_rng((recipe.seed, number))
            most = min(left, recipe.steps)
            episode = _play_episode(environment, space, rng, most)
            length = len(np.asarray(episode.actions))
            yield episode
            stage.advance(length)
            left, number = left - length, number + 1


def _play_episode(
    environment: gymnasium.Env[Any, Any], space: Any, rng: np.random.Generator, most: int
) -> Episode:
    frame, _ = environment.reset(seed=int(rng.integers(2**31)))
    frames, actions, rewards = [_row(frame)], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        action = rng.uniform(space.low, space.high).astype(space.dtype)
        frame, reward, terminated, truncated, _ = environment.step(action)
        frames.append(_row(frame))
        actions.append(action)
        rewards.append(float(reward))
        truncated = truncated or len(actions) >= most
    # What ends in both ways at once has reached its own end.
    return Episode(
        np.stack(frames),
        np.stack(actions),
        np.array(rewards),
        terminated=bool(terminated),
        truncated=bool(truncated and not terminated),
    )


def _row(frame: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.asarray(frame, np.float64).copy()  # some environments show the same array again


def _require_numbers(environment: gymnasium.Env[Any, Any], where: str) -> None:
    from gymnasium.spaces import Box  # noqa: PLC0415 (an optional dependency)

    seen, taken = environment.observation_space, environment.action_space
    if not isinstance(seen, Box) or len(seen.shape) != 1:
        problem = f"its observations are {seen}"
    elif not isinstance(taken, Box) or len(taken.shape) != 1:
        problem = f"its actions are {taken}"
    elif not (taken.is_bounded("both") and bool(np.all(taken.low < taken.high))):
        problem = f"its actions have no bounds: {taken}"
    else:
        return
    environment.close()
    raise ConfigError(
        f"This environment cannot serve as a plant: {problem}.",
        where=where,
        advice="choose one with a row of numbers to observe and a bounded row of numbers to set",
    )
