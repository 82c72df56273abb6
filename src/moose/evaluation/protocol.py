"""Playing a policy in the true plant and measuring its return, the same way for all of them.

The protocol: fresh resets, a fixed number of steps, the discounted sum of the rewards. Policies
that are compared get the same key, so that they meet the same plants and the same luck; every
evaluation in the course of a training gets another one. Nothing here feeds back into training.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from moose.envs.collect import episode_keys, make_player
from moose.errors import ConfigError
from moose.types import Act, Key, Params, Plant

STEPS = 100
DISCOUNT = 0.97
"""The published figures of the Industrial Benchmark sum 100 steps with this discount."""

Evaluator = Callable[[Params, Key], jax.Array]
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
    return measure(params, key)


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
    _require(episodes >= 1, "episodes", episodes, "a whole number of at least 1")
    _require(steps >= 1, "steps", steps, "a whole number of at least 1")
    _require(0.0 <= discount <= 1.0, "discount", discount, "a number from 0 to 1")
    play = make_player(plant, act, history=history, steps=steps)

    def measure(params: Params, key: Key) -> jax.Array:
        trajectories = play(params, episode_keys(key, 0, episodes))
        return discounted_sum(trajectories.rewards, discount)

    return jax.jit(measure)


def discounted_sum(rewards: jax.Array, discount: float) -> jax.Array:
    """Σ_t discountᵗ · rewards[..., t]: from ``[..., T]`` to ``[...]``."""
    # Powers on the host, in double precision: a hundred float32 products would drift.
    weights = np.power(float(discount), np.arange(rewards.shape[-1]))
    return jnp.sum(rewards * jnp.asarray(weights, rewards.dtype), axis=-1)


def _require(is_met: bool, name: str, value: object, wanted: str) -> None:
    if not is_met:
        raise ConfigError(f"{name} is {value}.", where=name, advice=f"choose {wanted}")
