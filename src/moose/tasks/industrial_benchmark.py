"""The Industrial Benchmark as a learner knows it: columns, steering physics and reward."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from moose.tasks.task import Task

_NAMES = ("setpoint", "velocity", "gain", "shift", "fatigue", "consumption")
_STEERING_STEP = (1.0, 10.0, 20.0 * 0.25881904510252074 / 0.9)  # 20 sin 15° / 0.9


def make_task() -> Task:
    """The task of the paper: 30 frames of history, known steering, known reward, γ = 0.97."""
    return Task(
        name="industrial_benchmark",
        observation_names=_NAMES,
        action_names=("d_velocity", "d_gain", "d_shift"),
        action_low=(-1.0, -1.0, -1.0),
        action_high=(1.0, 1.0, 1.0),
        history=30,
        discount=0.97,
        horizon=100,
        target="direct",
        predicted_names=("fatigue", "consumption"),
        physics=_next_frame,
        reward=_reward,
        hold_action=(0.0, 0.0, 0.0),
    )


def _next_frame(frame: jax.Array, action: jax.Array, predicted: jax.Array) -> jax.Array:
    """Steerings move by the action times a known constant; the setpoint stays."""
    step = jnp.asarray(_STEERING_STEP, frame.dtype)
    steerings = jnp.clip(frame[1:4] + step * action, 0.0, 100.0)
    return jnp.concatenate([frame[:1], steerings, predicted])


def _reward(frame: jax.Array, action: jax.Array, next_frame: jax.Array) -> jax.Array:
    """−(3 fatigue + consumption) / 100, as all published figures are scaled."""
    return -(3.0 * next_frame[4] + next_frame[5]) / 100.0
