"""Playing a policy in the true plant and measuring its return, the same way for all of them.

The protocol: fresh resets, a fixed number of steps, the discounted sum of the rewards. Policies
that are compared get the same key, so that they meet the same plants and the same luck; every
evaluation in the course of a training gets another one. Nothing here feeds back into training.
Plants that are JAX functions are played in one compiled program, Gymnasium environments side by
side.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from moose.envs.collect import episode_keys, make_player
from moose.errors import ConfigError, MissingExtraError
from moose.types import Act, Key, Params, Plant

if TYPE_CHECKING:
    import gymnasium

STEPS = 100
DISCOUNT = 0.97
"""The published figures of the Industrial Benchmark sum 100 steps with this discount."""

_MOST_LANES = 32

Evaluator = Callable[[Params, Key], jax.Array | npt.NDArray[np.float64]]
"""``measure(params, key) -> returns [episodes]``."""


def evaluate(
    plant: Plant,
    act: Act,
    params: Params,
    *,
    history: int,
    episodes: int,
    steps: int = STEPS,
    discount: float = DISCOUNT,
    key: Key,
) -> jax.Array:
    """Play a policy once and measure its returns.

    Args:
        plant: The true plant.
        act: The policy, ``act(params, window, key)``.
        params: The policy's parameters.
        history: Frames in the window the policy sees.
        episodes: How many episodes to play.
        steps: Steps of each episode.
        discount: Weight of a reward relative to the one before it.
        key: All randomness; policies that are compared get the same.

    Returns:
        The discounted return of each episode.
    """
    measure = make_evaluator(
        plant, act, history=history, episodes=episodes, steps=steps, discount=discount
    )
    return jnp.asarray(measure(params, key))


def make_evaluator(
    plant: Plant,
    act: Act,
    *,
    history: int,
    episodes: int,
    steps: int = STEPS,
    discount: float = DISCOUNT,
) -> Evaluator:
    """Compile :func:`evaluate` once, for a policy that is measured again and again.

    Args:
        plant: The true plant.
        act: The policy, ``act(params, window, key)``.
        history: Frames in the window the policy sees.
        episodes: How many episodes to play.
        steps: Steps of each episode.
        discount: Weight of a reward relative to the one before it.

    Returns:
        A function of the policy's parameters and a key.
    """
    _require_protocol(episodes, steps, discount)
    play = make_player(plant, act, history=history, steps=steps)

    def measure(params: Params, key: Key) -> jax.Array:
        trajectories = play(params, episode_keys(key, 0, episodes))
        return discounted_sum(trajectories.rewards, discount)

    return jax.jit(measure)


class GymnasiumEvaluator:
    """:func:`make_evaluator` for plants that are Gymnasium environments, played side by side.

    An episode ends for good when it is terminated or truncated. The resets' seeds and the policy's
    keys are derived from the episodes' keys, so that policies that are compared by the same key
    meet the same plants here as well.

    Args:
        make_environment: Makes one environment with flat observations: one frame each.
        act: The policy, ``act(params, window, key)``.
        history: Frames in the window the policy sees; before an episode's start the first frame
            is repeated.
        episodes: How many episodes to play.
        steps: Steps of each episode.
        discount: Weight of a reward relative to the one before it.
        reward_scale: What rewards are multiplied by.
    """

    def __init__(
        self,
        make_environment: Callable[[], gymnasium.Env[Any, Any]],
        act: Act,
        *,
        history: int,
        episodes: int,
        steps: int = STEPS,
        discount: float = DISCOUNT,
        reward_scale: float = 1.0,
    ) -> None:
        _require_protocol(episodes, steps, discount)
        if importlib.util.find_spec("gymnasium") is None:
            raise MissingExtraError("gymnasium", "gym", "Playing in a Gymnasium environment")
        from gymnasium.vector import SyncVectorEnv  # noqa: PLC0415 (an optional dependency)

        self._lanes = min(episodes, _MOST_LANES)
        self._environments = SyncVectorEnv([make_environment] * self._lanes)
        space = self._environments.single_observation_space
        if space.shape is None or len(space.shape) != 1:
            self.close()
            raise ConfigError(
                f"The environment's observations are {space}, not a row of numbers.",
                where="make_environment",
                advice="put gymnasium.wrappers.FlattenObservation around it",
            )
        self._history, self._episodes, self._steps = history, episodes, steps
        self._weights = reward_scale * np.power(float(discount), np.arange(steps))
        self._act = jax.jit(jax.vmap(act, in_axes=(None, 0, 0)))
        self._keys_of_step = jax.jit(jax.vmap(jax.random.fold_in, in_axes=(0, None)))

    def __call__(self, params: Params, key: Key) -> npt.NDArray[np.float64]:
        """The discounted return of each episode."""
        firsts = range(0, self._episodes, self._lanes)
        groups = [self._play(params, episode_keys(key, first, self._lanes)) for first in firsts]
        return np.concatenate(groups)[: self._episodes]

    def _play(self, params: Params, keys: Key) -> npt.NDArray[np.float64]:
        seeds = np.asarray(jax.vmap(jax.random.bits)(keys)) >> 1
        frames, _ = self._environments.reset(seed=[int(seed) for seed in seeds])
        window = np.repeat(np.asarray(frames, np.float32)[:, None], self._history, axis=1)
        returns, is_playing = np.zeros(self._lanes), np.ones(self._lanes, np.bool_)
        for step, weight in enumerate(self._weights):
            # The number that the compiled loop folds in for the policy's own randomness.
            actions = self._act(params, window, self._keys_of_step(keys, 1 + 2 * step))
            frames, rewards, terminated, truncated, _ = self._environments.step(
                np.asarray(actions, self._environments.action_space.dtype)
            )
            returns[is_playing] += weight * rewards[is_playing]
            is_playing &= ~(terminated | truncated)  # what is reset and played on does not count
            if not is_playing.any():
                break
            newest = np.asarray(frames, np.float32)[:, None]
            window = np.concatenate([newest, window[:, :-1]], axis=1)
        return returns

    def close(self) -> None:
        """Let go of the environments."""
        self._environments.close()


def discounted_sum(rewards: jax.Array, discount: float) -> jax.Array:
    """Σ_t discountᵗ · rewards[..., t]: from ``[..., T]`` to ``[...]``."""
    # Powers on the host, in double precision: a hundred float32 products would drift.
    weights = np.power(float(discount), np.arange(rewards.shape[-1]))
    return jnp.sum(rewards * jnp.asarray(weights, rewards.dtype), axis=-1)


def _require_protocol(episodes: int, steps: int, discount: float) -> None:
    _require(episodes >= 1, "episodes", episodes, "a whole number of at least 1")
    _require(steps >= 1, "steps", steps, "a whole number of at least 1")
    _require(0.0 <= discount <= 1.0, "discount", discount, "a number from 0 to 1")


def _require(is_met: bool, name: str, value: object, wanted: str) -> None:
    if not is_met:
        raise ConfigError(f"{name} is {value}.", where=name, advice=f"choose {wanted}")
