"""Playing a policy in a true plant: the one loop behind data collection and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from moose.types import Act, Key, Params, Plant


class Trajectories(NamedTuple):
    """What a policy saw and did in E episodes of T steps, in raw units."""

    frames: jax.Array
    """[E, T + 1, n]"""
    actions: jax.Array
    """[E, T, d]"""
    rewards: jax.Array
    """[E, T]"""


Player = Callable[[Params, Key], Trajectories]
"""``play(params, keys [E]) -> trajectories``: one key for each episode."""


def make_player(plant: Plant, act: Act, *, history: int, steps: int) -> Player:
    """Compile the play of one policy in one plant.

    Keep the player as long as it is of use: each new one is compiled anew.

    Args:
        plant: The true plant.
        act: The policy, ``act(params, window, key)``.
        history: Frames in the window the policy sees; before an episode's start the first frame
            is repeated.
        steps: Steps of an episode.

    Returns:
        A compiled function of the policy's parameters and one key per episode. An episode depends
        on its own key only, and its first steps do not depend on the number of steps.
    """

    def play_episode(params: Params, key: Key) -> Trajectories:
        # All keys at once, outside of the loop: every use of a generator costs time to compile.
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(1 + 2 * steps))
        state = plant.reset(keys[0])
        first_frame = plant.observe(state)
        window = jnp.repeat(first_frame[None], history, axis=0)

        def play_step(
            carry: tuple[Any, jax.Array], step_keys: Key
        ) -> tuple[tuple[Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]:
            state, window = carry
            action = act(params, window, step_keys[0])
            state = plant.step(state, action, step_keys[1])
            frame = plant.observe(state)
            reward = plant.reward(window[0], action, frame)
            window = jnp.concatenate([frame[None], window[:-1]])
            return (state, window), (frame, action, reward)

        _, (frames, actions, rewards) = jax.lax.scan(
            play_step, (state, window), keys[1:].reshape(steps, 2)
        )
        return Trajectories(jnp.concatenate([first_frame[None], frames]), actions, rewards)

    return jax.jit(jax.vmap(play_episode, in_axes=(None, 0)))


def episode_keys(key: Key, first: int, count: int) -> Key:
    """Keys of the episodes ``first … first + count − 1``: the same however they are grouped."""
    return jax.vmap(lambda episode: jax.random.fold_in(key, episode))(
        jnp.arange(first, first + count)
    )
