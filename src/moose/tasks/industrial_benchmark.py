"""The Industrial Benchmark as a learner knows it: columns, steering physics and reward.

The simulator (:mod:`moose.envs.industrial_benchmark`) takes these from here, so that what a learner
holds for known cannot differ from what the plant does.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from moose.tasks.task import Task

FRAME_NAMES = ("setpoint", "velocity", "gain", "shift", "fatigue", "consumption")
ACTION_NAMES = ("d_velocity", "d_gain", "d_shift")
REWARD_SCALE = 1 / 100  # published figures are rewards times this

MAX_REQUIRED_STEP = math.sin(math.radians(15.0))
SHIFT_STEP = 20.0 * MAX_REQUIRED_STEP / 0.9
STEERING_STEPS = (1.0, 10.0, SHIFT_STEP)  # what a full action adds to velocity, gain and shift


def make_task() -> Task:
    """The task of the paper: 30 frames of history, known steering, known reward, γ = 0.97."""
    return Task(
        name="industrial_benchmark",
        observation_names=FRAME_NAMES,
        action_names=ACTION_NAMES,
        action_low=(-1.0, -1.0, -1.0),
        action_high=(1.0, 1.0, 1.0),
        history=30,
        discount=0.97,
        horizon=100,
        target="direct",
        predicted_names=("fatigue", "consumption"),
        physics=_next_frame,
        reward=_scaled_reward,
        hold_action=(0.0, 0.0, 0.0),
        observation_limits=((0.0, 100.0),) * 4 + ((None, None),) * 2,
    )


def steer(frame: jax.Array, action: ArrayLike) -> jax.Array:
    """Velocity, gain and shift ``[3]`` after an action: the part of the plant that is known.

    Differentiable in both arguments: ``frame`` ``[6]``, of which only velocity, gain and shift are
    read, and ``action`` ``[3]``, clipped to [-1, 1].
    """
    change = jnp.clip(jnp.asarray(action, frame.dtype), -1.0, 1.0)
    return jnp.clip(frame[1:4] + jnp.asarray(STEERING_STEPS, frame.dtype) * change, 0.0, 100.0)


def reward(frame: jax.Array) -> jax.Array:
    """The unscaled r = -(3 f + c) of a frame ``[6]``."""
    return -(3.0 * frame[..., 4] + frame[..., 5])


def _next_frame(frame: jax.Array, action: jax.Array, predicted: jax.Array) -> jax.Array:
    """Steerings move by the action times a known constant; the setpoint stays."""
    return jnp.concatenate([frame[:1], steer(frame, action), predicted])


def _scaled_reward(frame: jax.Array, action: jax.Array, next_frame: jax.Array) -> jax.Array:
    """−(3 fatigue + consumption) / 100, as all published figures are scaled."""
    return reward(next_frame) * REWARD_SCALE
