"""Gymnasium environments as plants: made by name, described, and played for data.

Only environments whose observations and actions are rows of numbers can serve.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from moose.config import settings_tree
from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.envs import mujoco
from moose.envs.experts import find_expert, read_expert
from moose.envs.gymnasium_recipes import GENERATOR_VERSION, PREFIX, GymnasiumRecipe
from moose.errors import ConfigError, MissingExtraError, nearest
from moose.progress import SILENT, Progress
from moose.storage import sha256_of
from moose.tasks.gymnasium_task import PLANT

if TYPE_CHECKING:
    import gymnasium

_OWN = "moose/"

Behaviour = Callable[[npt.NDArray[np.float64], np.random.Generator], npt.NDArray[Any]]
"""``behave(frame, rng) -> action``."""


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
        extra = "mujoco" if name in mujoco.OBSERVATION_NAMES else "gym"
        raise MissingExtraError("gymnasium", extra, "Playing in a Gymnasium environment")
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
        with warnings.catch_warnings():
            # The versions that published figures were made with count as outdated.
            warnings.simplefilter("ignore", DeprecationWarning)
            environment = gymnasium.make(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(
            f"The environment cannot be made: {error}",
            where=where,
            advice=_advice_on(name),
        ) from error
    _require_numbers(environment, where)
    return environment


def _advice_on(name: str) -> str:
    """What to do if an environment that is registered cannot be made."""
    import gymnasium  # noqa: PLC0415 (an optional dependency)

    family, _, version = name.rpartition("-v")
    versions = [
        int(other.rpartition("-v")[2])
        for other in gymnasium.registry
        if re.fullmatch(re.escape(family) + r"-v\d+", other)
    ]
    extra = "" if importlib.util.find_spec("mujoco") else " (MuJoCo: the extra 'mujoco')"
    advice = f"install what it needs{extra}, or choose another"
    if version.isdigit() and max(versions) > int(version):
        advice += f"; the newest version is {family}-v{max(versions)}"
    return advice


def columns_of(environment: gymnasium.Env[Any, Any]) -> Columns:
    """Names of the numbers that an environment shows and takes, and the bounds of the latter."""
    space: Any = environment.action_space
    size = int(np.prod(environment.observation_space.shape or (0,)))
    name = environment.spec.id if environment.spec else ""
    numbered = tuple(f"observation_{i}" for i in range(size))
    return Columns(
        mujoco.OBSERVATION_NAMES.get(name, numbered),
        mujoco.ACTION_NAMES.get(name, tuple(f"action_{i}" for i in range(space.shape[0]))),
        tuple(map(float, space.low)),
        tuple(map(float, space.high)),
    )


def make_gymnasium_dataset(
    recipe: GymnasiumRecipe, *, expert: Path | None = None, progress: Progress = SILENT
) -> Dataset:
    """Play the recipe's policy in its environment.

    Every episode has its own random stream, so that the first episodes of a large data set are
    those of a small one.

    Args:
        recipe: What to make.
        expert: File of the expert that plays; the one that comes with the program by default.
        progress: Whom to tell how far it is.

    Returns:
        The data set; the same bits for the same recipe, expert and versions.
    """
    with contextlib.closing(make_environment(recipe.environment)) as environment:
        columns = columns_of(environment)
        behave = _behaviour_of(recipe, environment, expert)
        return Dataset.from_episodes(
            _play(environment, recipe, behave, progress),
            observation_names=columns.observation_names,
            action_names=columns.action_names,
            provenance={
                "plant": PLANT,
                "environment": recipe.environment,
                "columns": {name: list(values) for name, values in columns._asdict().items()},
                "recipe": settings_tree(recipe),
                **({} if expert is None else {"expert_sha256": sha256_of(expert)}),
                "generator_version": GENERATOR_VERSION,
                "versions": versions_of_plant(recipe.environment),
            },
        )


def versions_of_plant(name: str) -> dict[str, str]:
    """Versions of the libraries that an environment's doings depend on, by its registered name."""
    import gymnasium  # noqa: PLC0415 (an optional dependency)

    spec = gymnasium.registry.get(name)  # ours are registered when they are made
    is_mujoco = spec is not None and "mujoco" in str(spec.entry_point)
    libraries = ("gymnasium", "mujoco") if is_mujoco else ("gymnasium",)
    return {library: importlib.metadata.version(library) for library in libraries}


def _play(
    environment: gymnasium.Env[Any, Any],
    recipe: GymnasiumRecipe,
    behave: Behaviour,
    progress: Progress,
) -> Iterator[Episode]:
    left, number = recipe.transitions, 0
    with progress.stage("transitions", recipe.transitions) as stage:
        while left:
            rng = np.random.default_rng((recipe.seed, number))
            most = min(left, recipe.steps)
            episode = _play_episode(environment, behave, rng, most)
            length = len(np.asarray(episode.actions))
            yield episode
            stage.advance(length)
            left, number = left - length, number + 1


def _behaviour_of(
    recipe: GymnasiumRecipe, environment: gymnasium.Env[Any, Any], file: Path | None
) -> Behaviour:
    """Who acts, in the environment's own units."""
    space: Any = environment.action_space

    def draw(frame: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[Any]:
        return np.asarray(rng.uniform(space.low, space.high), space.dtype)

    if recipe.policy == "random":
        return draw
    expert = find_expert(recipe.environment) if file is None else read_expert(file)
    sizes = (expert.weights[0].shape[0], expert.weights[-1].shape[1])
    wanted = (*(environment.observation_space.shape or ()), *space.shape)
    if sizes != wanted:
        raise ConfigError(
            f"The expert turns {sizes[0]} observations into {sizes[1]} actions, and the "
            f"environment has {wanted[0]} and {wanted[1]}.",
            where=str(file),
            advice=f"give an expert that was trained in '{PREFIX}{recipe.environment}'",
        )
    middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2

    def demonstrate(frame: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[Any]:
        if rng.uniform() < recipe.random_share:
            return draw(frame, rng)
        chosen = expert.act(frame) + rng.normal(0.0, recipe.noise, space.shape)
        return np.asarray(middle + half * np.clip(chosen, -1.0, 1.0), space.dtype)

    return demonstrate


def _play_episode(
    environment: gymnasium.Env[Any, Any], behave: Behaviour, rng: np.random.Generator, most: int
) -> Episode:
    frame, _ = environment.reset(seed=int(rng.integers(2**31)))
    frames, actions, rewards = [_row(frame)], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        action = behave(frames[-1], rng)
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
