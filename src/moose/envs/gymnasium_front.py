"""The Industrial Benchmark as a Gymnasium environment, for use with other people's agents.

Importing this module registers ``moose/IndustrialBenchmark-v0``::

    import gymnasium
    import moose.envs.gymnasium_front

    environment = gymnasium.make("moose/IndustrialBenchmark-v0", setpoint=70, history=30)

The import may be left to Gymnasium:
``gymnasium.make("moose.envs.gymnasium_front:moose/IndustrialBenchmark-v0")``.

Rewards are raw, -(3 fatigue + consumption); published figures are a hundredth of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, ClassVar, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from moose.envs import industrial_benchmark as plant
from moose.errors import ConfigError, MissingExtraError, RunError, nearest

try:
    import gymnasium
except ImportError as error:
    raise MissingExtraError("gymnasium", "gym", "The Gymnasium environment") from error

ENVIRONMENT_ID = "moose/IndustrialBenchmark-v0"
REWARD_KINDS = ("classic", "delta")
ACTION_KINDS = ("continuous", "discrete")
DISCRETE_ACTIONS: NDArray[np.float32] = np.array(
    list(itertools.product((-1.0, 0.0, 1.0), repeat=3)), np.float32
)
"""``[27, 3]`` what each discrete action does; the first column, velocity, changes slowest."""

Frames = NDArray[np.float32]


class IndustrialBenchmarkEnv(gymnasium.Env[Frames, Any]):
    """One plant that is reset, observed and steered; it is truncated and never terminates.

    Args:
        setpoint: Load of the plant, within [0, 100]; where it starts if it drifts.
        is_drifting: Whether the setpoint moves by itself.
        reward_kind: ``classic`` for the reward, ``delta`` for its gain over the step before.
        action_kind: ``continuous`` for three numbers in [-1, 1] (others are clipped), ``discrete``
            for a row of :data:`DISCRETE_ACTIONS`.
        history: How many frames an observation holds, newest first, six numbers each. After a
            reset all of them are the first frame.
        max_steps: Steps until the episode is truncated.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(
        self,
        setpoint: float = 70.0,
        *,
        is_drifting: bool = False,
        reward_kind: str = "classic",
        action_kind: str = "continuous",
        history: int = 30,
        max_steps: int = plant.EPISODE_STEPS,
    ) -> None:
        self.setpoint = _checked_setpoint(setpoint)
        self.is_drifting = _checked_flag("is_drifting", is_drifting)
        self.reward_kind = _checked_choice("reward_kind", reward_kind, REWARD_KINDS)
        self.action_kind = _checked_choice("action_kind", action_kind, ACTION_KINDS)
        self.history = _checked_count("history", history)
        self.max_steps = _checked_count("max_steps", max_steps)
        self.observation_space = gymnasium.spaces.Box(
            low=np.tile(np.asarray(plant.FRAME_LOW, np.float32), self.history),
            high=np.tile(np.asarray(plant.FRAME_HIGH, np.float32), self.history),
            dtype=np.float32,
        )
        self.action_space = (
            gymnasium.spaces.Box(-1.0, 1.0, (len(plant.ACTION_NAMES),), np.float32)
            if self.action_kind == "continuous"
            else gymnasium.spaces.Discrete(len(DISCRETE_ACTIONS))
        )
        self._state: plant.State | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frames, dict[str, Any]]:
        """Start an episode; the same seed gives the same plant. There are no ``options``."""
        super().reset(seed=seed)
        self._key = jax.random.key(int(self.np_random.integers(2**31)))
        self._state, frame, self._reward, markov = _first(
            self._key, self.setpoint, self.is_drifting
        )
        self._frames = np.tile(np.asarray(frame), (self.history, 1))
        self._steps_done = 0
        return self._frames.flatten(), _information(markov)

    def step(self, action: Any) -> tuple[Frames, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steer the plant once."""
        if self._state is None:
            raise RunError("The environment was stepped before its first reset.", advice="reset it")
        self._steps_done += 1
        previous = self._reward
        self._state, frame, self._reward, markov = _next(
            self._key, self._state, self._steering(action), self._steps_done
        )
        self._frames = np.concatenate([np.asarray(frame)[None], self._frames[:-1]])
        score = float(self._reward)
        if self.reward_kind == "delta":
            score -= float(previous)
        is_truncated = self._steps_done >= self.max_steps
        return self._frames.flatten(), score, False, is_truncated, _information(markov)

    def _steering(self, action: Any) -> NDArray[np.float32]:
        """The three changes an action stands for, or an error that says what an action is."""
        if self.action_kind == "discrete":
            if not self.action_space.contains(action):
                raise RunError(
                    f"{action!r} is not an action.",
                    where=f"action_kind={self.action_kind!r}",
                    advice=f"choose a whole number from 0 to {len(DISCRETE_ACTIONS) - 1}",
                )
            return np.asarray(DISCRETE_ACTIONS[action])
        steering = np.asarray(action)
        is_numeric = np.issubdtype(steering.dtype, np.number)
        if not is_numeric or steering.shape != self.action_space.shape or np.isnan(steering).any():
            raise RunError(
                f"{action!r} is not an action.",
                where=f"action_kind={self.action_kind!r}",
                advice="give three numbers: " + ", ".join(plant.ACTION_NAMES),
            )
        return np.asarray(np.clip(steering, -1.0, 1.0), np.float32)


def register() -> None:
    """Make :data:`ENVIRONMENT_ID` known to ``gymnasium.make``; harmless if it is already."""
    if ENVIRONMENT_ID not in gymnasium.registry:
        gymnasium.register(ENVIRONMENT_ID, entry_point=f"{__name__}:IndustrialBenchmarkEnv")


def _observed(state: plant.State) -> tuple[plant.State, jax.Array, jax.Array, jax.Array]:
    """The state, its frame, its reward and all its numbers in one vector."""
    frame = plant.observe(state)
    numbers = [jnp.ravel(getattr(state, name)).astype(frame.dtype) for name in _MARKOV_FIELDS]
    return state, frame, plant.reward(frame), jnp.concatenate(numbers)


@jax.jit
def _first(
    key: jax.Array, setpoint: float, is_drifting: bool
) -> tuple[plant.State, jax.Array, jax.Array, jax.Array]:
    """The start of an episode. Compiled once per process, as is :func:`_next`."""
    noise = plant.draw_noise(jax.random.fold_in(key, 0))
    return _observed(plant.reset(setpoint, noise, is_drifting=is_drifting))


@jax.jit
def _next(
    key: jax.Array, state: plant.State, action: NDArray[np.float32], steps_done: int
) -> tuple[plant.State, jax.Array, jax.Array, jax.Array]:
    """The step with this number, counted from one, of the episode with this key."""
    noise = plant.draw_noise(jax.random.fold_in(key, steps_done))
    return _observed(plant.step(state, action, noise))


_MARKOV_FIELDS = (
    *plant.FRAME_NAMES,
    "operational_costs",
    "latent_fatigue",
    "domain",
    "response",
    "direction",
    "setpoint_change",
    "sequence_step",
    "sequence_length",
)
MARKOV_NAMES = (
    *plant.FRAME_NAMES,
    *(f"operational_cost_{age}_steps_ago" for age in reversed(range(len(plant.DELAY_WEIGHTS)))),
    "latent_gain_fatigue",
    "latent_velocity_fatigue",
    "domain",
    "response",
    "direction",
    "setpoint_change",
    "sequence_step",
    "sequence_length",
)
"""What the ``info`` of a step names: the whole hidden state, in the order it is stored."""


def _information(markov: jax.Array) -> dict[str, Any]:
    return dict(zip(MARKOV_NAMES, np.asarray(markov).tolist(), strict=True))


def _checked_setpoint(value: object) -> float:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not 0.0 <= float(value) <= 100.0:  # type: ignore[arg-type]
        raise _bad_option("setpoint", value, "a number from 0 to 100")
    return float(value)  # type: ignore[arg-type]


def _checked_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _bad_option(name, value, "True or False")
    return bool(value)


def _checked_count(name: str, value: object) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise _bad_option(name, value, "a whole number, 1 or more")
    return int(value)


def _checked_choice(name: str, value: object, valid: Iterable[str]) -> str:
    choices = tuple(valid)
    if not isinstance(value, str) or value not in choices:
        accepted = " or ".join(f"'{choice}'" for choice in choices)
        raise _bad_option(name, value, accepted, nearest(str(value), choices))
    return value


def _bad_option(name: str, value: object, accepted: str, advice: str = "") -> ConfigError:
    return ConfigError(
        f"{name} must be {accepted}, not {value!r}.",
        where=f"option '{name}' of {ENVIRONMENT_ID}",
        advice=advice or f"give {accepted}",
    )


register()
