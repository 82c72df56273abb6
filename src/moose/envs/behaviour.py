"""The policies that collected the Industrial Benchmark data sets, and simple reference controllers.

Each is a pure function of a raw history window ``[F, n]``, newest frame first, with at least
:data:`HISTORY` frames. Frames are (setpoint, velocity, gain, shift, fatigue, consumption).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp

from moose.envs.industrial_benchmark import STEERING_STEPS
from moose.types import Act, Key, Params

WindowPolicy = Callable[[jax.Array], jax.Array]
"""``policy(window [F, n]) -> action [d]``, deterministic."""

HISTORY = 6
"""Frames a behaviour policy looks back at (the optimized one reads a velocity five frames old)."""

# The frame statistics that the optimized policy was found with.
_FRAME_MEAN = (55.0, 48.75, 50.53, 49.45, 37.51, 166.33)
_FRAME_DEVIATION = (28.72, 12.31, 29.91, 29.22, 31.17, 139.44)


def bad(window: jax.Array) -> jax.Array:
    """Drives all three steerings to 100, where the plant wears out."""
    return jnp.clip(100.0 - window[0, 1:4], -1.0, 1.0)


def mediocre(window: jax.Array) -> jax.Array:
    """Drives all three steerings to 25."""
    return jnp.clip(25.0 - window[0, 1:4], -1.0, 1.0)


def optimized(window: jax.Array) -> jax.Array:
    """A short formula found by genetic programming, close to the best a memory can do."""
    mean = jnp.asarray(_FRAME_MEAN, window.dtype)
    deviation = jnp.asarray(_FRAME_DEVIATION, window.dtype)
    z = (window - mean[None]) / deviation[None]
    setpoint, velocity, shift, fatigue = z[:, 0], z[:, 1], z[:, 3], z[:, 4]
    d_velocity = -velocity[5] - 0.91
    d_gain = 2.0 * fatigue[3] - setpoint[0] + 1.43
    d_shift = -3.48 * shift[3] - shift[4] + 2.0 * setpoint[0] + 0.81
    return jnp.clip(jnp.stack([d_velocity, d_gain, d_shift]), -1.0, 1.0)


def hold(window: jax.Array) -> jax.Array:
    """Leaves every steering where it is."""
    return jnp.zeros(3, window.dtype)


def make_set_point(velocity: float, gain: float, shift: float) -> WindowPolicy:
    """A controller that drives the steerings to one point as fast as it may, and keeps them there.

    Args:
        velocity: Target velocity in [0, 100].
        gain: Target gain in [0, 100].
        shift: Target shift in [0, 100].

    Returns:
        The policy.
    """

    def set_point(window: jax.Array) -> jax.Array:
        target = jnp.asarray((velocity, gain, shift), window.dtype)
        full_step = jnp.asarray(STEERING_STEPS, window.dtype)
        return jnp.clip((target - window[0, 1:4]) / full_step, -1.0, 1.0)

    return set_point


def make_exploring(policy: WindowPolicy, epsilon: float | jax.Array) -> Act:
    """Replace the whole action by a uniform one with probability ``epsilon`` at each step.

    Args:
        policy: The deterministic policy to mix with noise.
        epsilon: Probability of a random action.

    Returns:
        A function ``act(params, window, key)`` that ignores its parameters.
    """

    def act(params: Params, window: jax.Array, key: Key) -> jax.Array:
        action = policy(window)
        uniform = jax.random.uniform(key, (1 + len(action),), action.dtype)
        return jnp.where(uniform[0] < epsilon, 2.0 * uniform[1:] - 1.0, action)

    return act


POLICIES: Mapping[str, WindowPolicy] = MappingProxyType(
    {"bad": bad, "mediocre": mediocre, "optimized": optimized}
)
"""The three policies whose mixtures with noise make the sixteen data sets."""

BEST_SET_POINT = (40.0, 49.5, 60.5)
"""The best constant velocity, gain and shift at setpoint 70, on a grid of half units."""
# Found by benchmarks/best_set_point.py. Shifts up to 60.588 earn 0.06 more, but there the safe zone
# ends and the return falls by 1.
