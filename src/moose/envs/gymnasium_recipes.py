"""Data sets of Gymnasium environments: what ``gym/Pendulum-v1`` and ``mujoco/hopper`` stand for.

Nothing here needs Gymnasium, so that names can be told apart without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from moose.config import Settings, build_settings
from moose.envs import mujoco
from moose.errors import ConfigError, nearest

PREFIX = "gym/"
GENERATOR_VERSION = 2
"""To be raised when the same recipe would give other bits."""

# Gymnasium imports what stands before a colon. A data set may come from anyone, so that its
# environment has to be one that is registered by then.
_ENVIRONMENT = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?")


class GymnasiumRecipe(Settings):
    """All that determines a data set of a Gymnasium environment, besides the library's version."""

    generator_version: ClassVar[int] = GENERATOR_VERSION

    environment: str
    """The environment's registered name, with its version."""
    policy: Literal["random", "expert"] = "random"
    """Who acts: ``random`` draws actions uniformly within their bounds, ``expert`` is a trained
    policy that comes with the program and makes mistakes."""
    random_share: float = Field(default=0.3, ge=0.0, le=1.0)
    """How often the expert's action is replaced by a random one."""
    noise: float = Field(default=0.3, ge=0.0)
    """Deviation of what is added to the expert's other actions, in half widths of their bounds."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of all randomness."""
    transitions: int = Field(default=100_000, ge=1, le=100_000_000)
    """How many transitions; the last episode is cut where they are reached."""
    steps: int = Field(default=1000, ge=1, le=1_000_000)
    """Steps of an episode at most; most environments end it earlier themselves."""

    @field_validator("environment")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not _ENVIRONMENT.fullmatch(value):
            raise ValueError("must be the registered name of an environment, such as Pendulum-v1")
        return value

    @property
    def label(self) -> str:
        """What to call it in the name of a folder."""
        return f"gym-{self.environment.replace('/', '-')}-{self.policy}"


def is_gymnasium(name: str) -> bool:
    """Whether a data set's name stands for a Gymnasium environment."""
    return name.startswith((PREFIX, mujoco.PREFIX))


def gymnasium_recipe_of(name: str, **changes: object) -> GymnasiumRecipe:
    """The recipe that a name stands for.

    Args:
        name: ``gym/`` and the name of an environment, for random play in it, or one of
            :func:`moose.envs.mujoco.dataset_names`, for an expert's noisy play.
        **changes: Fields of the recipe that differ from its defaults.

    Returns:
        The recipe.
    """
    if name.startswith(mujoco.PREFIX):
        return _mujoco_recipe_of(name, changes)
    if not is_gymnasium(name) or not _ENVIRONMENT.fullmatch(name.removeprefix(PREFIX)):
        raise ConfigError(
            f"'{name}' is not the name of a Gymnasium environment.",
            where="data set name",
            advice="write gym/ and its registered name with the version, such as gym/Pendulum-v1",
        )
    environment = name.removeprefix(PREFIX)
    return build_settings(GymnasiumRecipe, {"environment": environment, **changes})


def environment_of(name: str) -> str:
    """The registered name of the environment that a data set's name stands for."""
    return gymnasium_recipe_of(name).environment


def _mujoco_recipe_of(name: str, changes: Mapping[str, object]) -> GymnasiumRecipe:
    if name not in mujoco.dataset_names():
        raise ConfigError(
            f"There is no data set named '{name}'.",
            where="data set name",
            advice=f"{nearest(name, mujoco.dataset_names(), prefix=mujoco.PREFIX)} (any other "
            "environment is written as gym/ and its name)",
        )
    defaults = {
        "environment": mujoco.ENVIRONMENTS[name.removeprefix(mujoco.PREFIX)],
        "policy": "expert",
        "transitions": 1_000_000,
    }
    return build_settings(GymnasiumRecipe, {**defaults, **changes})
