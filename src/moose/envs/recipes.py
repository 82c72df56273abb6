"""What the benchmark data sets are: their names, recipes, expected returns and places in the cache.

A name such as ``ib/bad-0.2`` stands for a :class:`Recipe`, from which :mod:`moose.envs.catalog`
makes the data; the names of Gymnasium environments are in :mod:`moose.envs.gymnasium_recipes`.
Nothing here needs a simulator, so that a list of names comes at once.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal, Self

import platformdirs
from pydantic import Field, model_validator

from moose.config import Settings, build_settings, digest
from moose.envs import mujoco
from moose.envs.gymnasium_recipes import GymnasiumRecipe, gymnasium_recipe_of, is_gymnasium
from moose.errors import ConfigError, nearest

CACHE_VARIABLE = "MOOSE_CACHE"
GENERATOR_VERSION = 1
"""To be raised when the same recipe would give other bits."""

EXPECTED_SETPOINT = 70.0
EXPECTED_RETURNS = MappingProxyType(
    {
        ("bad", 0.0): -326.8,
        ("bad", 0.2): -275.5,
        ("bad", 0.4): -215.5,
        ("bad", 0.6): -155.0,
        ("bad", 0.8): -106.6,
        ("mediocre", 0.0): -78.2,
        ("mediocre", 0.2): -77.2,
        ("mediocre", 0.4): -75.9,
        ("mediocre", 0.6): -74.4,
        ("mediocre", 0.8): -72.2,
        ("optimized", 0.0): -59.7,
        ("optimized", 0.2): -60.4,
        ("optimized", 0.4): -61.0,
        ("optimized", 0.6): -61.9,
        ("optimized", 0.8): -64.0,
        ("global", 1.0): -72.0,
    }
)
"""Mean return by (behaviour, epsilon) at setpoint 70: 100 steps, discount 0.97, reward / 100.

Measured with at least 100,000 episodes each by benchmarks/expected_returns.py; the largest standard
error, that of bad-0.8, is 0.05."""

EXPECTED_HOLD = -64.9
EXPECTED_SET_POINT = -61.5
"""The same for never acting, and for the constant steerings in ``behaviour.BEST_SET_POINT``."""

_LARGEST = 100_000_000


class Recipe(Settings):
    """All that determines a data set of the Industrial Benchmark."""

    generator_version: ClassVar[int] = GENERATOR_VERSION

    behaviour: Literal["bad", "mediocre", "optimized", "global"]
    """Which policy collected it; global means random actions only."""
    epsilon: float = Field(ge=0.0, le=1.0)
    """Probability of replacing an action by a uniform one."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of all randomness."""
    episodes: int = Field(default=100, ge=1, le=1_000_000)
    """How many episodes."""
    steps: int = Field(default=1000, ge=1, le=1_000_000)
    """Steps of each episode."""
    setpoint: float = Field(default=70.0, ge=0.0, le=100.0)
    """The plant's setpoint."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.behaviour == "global" and self.epsilon < 1.0:
            raise ValueError("global means random actions only, so epsilon has to be 1")
        if self.episodes * self.steps > _LARGEST:
            raise ValueError(
                f"episodes times steps is {self.episodes * self.steps}; "
                f"at most {_LARGEST} transitions fit into one data set"
            )
        return self

    @property
    def label(self) -> str:
        """What to call it in the name of a folder."""
        return f"ib-{self.behaviour}-{self.epsilon}"


AnyRecipe = Recipe | GymnasiumRecipe


def dataset_names() -> tuple[str, ...]:
    """The sixteen names of the paper's Industrial Benchmark data sets."""
    return tuple(f"ib/{behaviour}-{epsilon}" for behaviour, epsilon in EXPECTED_RETURNS)


def recipe_of(name: str, **changes: object) -> Recipe:
    """The recipe that a name stands for.

    Args:
        name: One of :func:`dataset_names`.
        **changes: Fields of the recipe that differ from its defaults.

    Returns:
        The recipe.
    """
    match = re.fullmatch(r"ib/([a-z]+)-([0-9.]+)", name)
    if match is None or name not in dataset_names():
        raise ConfigError(
            f"There is no data set named '{name}'.",
            where="data set name",
            advice=f"{advice_on_name(name)} ('moose data list' shows all names)",
        )
    return build_settings(Recipe, {"behaviour": match[1], "epsilon": float(match[2]), **changes})


def advice_on_name(name: str) -> str:
    """What a name that stands for no data set may have meant."""
    if "/" not in name and re.search(r"-v\d+$", name):
        return f"a Gymnasium environment is written with gym/ before it: gym/{name}"
    return nearest(name, (*dataset_names(), *mujoco.dataset_names()))


def expected_return(recipe: Recipe) -> float | None:
    """What the recipe's behaviour is known to earn, or None where that was never established.

    Args:
        recipe: The behaviour and the plant's setpoint are read.

    Returns:
        The mean over episodes of the discounted return (see :data:`EXPECTED_RETURNS`).
    """
    if recipe.setpoint != EXPECTED_SETPOINT:
        return None
    return EXPECTED_RETURNS.get((recipe.behaviour, recipe.epsilon))


def any_recipe_of(name: str, **changes: object) -> AnyRecipe:
    """The recipe that a name of either kind of data set stands for."""
    return (
        gymnasium_recipe_of(name, **changes) if is_gymnasium(name) else recipe_of(name, **changes)
    )


def cached_path(recipe: AnyRecipe, cache: Path | None = None) -> Path:
    """Where the cache keeps this recipe's data set."""
    folder = cache if cache is not None else cache_folder()
    return folder / "datasets" / f"{recipe.label}-{digest(recipe, recipe.generator_version)}"


def cache_folder() -> Path:
    """The folder named by the environment variable MOOSE_CACHE, or the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("moose"))
