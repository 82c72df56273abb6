"""Plants by name, as the pure functions that collection and evaluation need."""

from __future__ import annotations

import jax

from moose.envs import industrial_benchmark
from moose.types import Key, Plant


def make_industrial_benchmark(setpoint: float = 70.0, *, is_drifting: bool = False) -> Plant:
    """The Industrial Benchmark with rewards divided by 100, as all published figures are.

    Args:
        setpoint: The setpoint p in [0, 100], at which a drifting one starts.
        is_drifting: Let the setpoint wander instead of keeping it fixed.

    Returns:
        The plant.
    """

    def reset(key: Key) -> industrial_benchmark.State:
        noise = industrial_benchmark.draw_noise(key)
        return industrial_benchmark.reset(setpoint, noise, is_drifting=is_drifting)

    def step(
        state: industrial_benchmark.State, action: jax.Array, key: Key
    ) -> industrial_benchmark.State:
        return industrial_benchmark.step(state, action, industrial_benchmark.draw_noise(key))

    def reward(frame: jax.Array, action: jax.Array, next_frame: jax.Array) -> jax.Array:
        return industrial_benchmark.reward(next_frame) * industrial_benchmark.REWARD_SCALE

    return Plant(
        name="industrial_benchmark",
        frame_names=industrial_benchmark.FRAME_NAMES,
        action_names=industrial_benchmark.ACTION_NAMES,
        reset=reset,
        step=step,
        observe=industrial_benchmark.observe,
        reward=reward,
    )
