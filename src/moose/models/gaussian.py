"""Tanh-Gaussian policies: a = tanh(u), u ~ N(mean, deviation²), in the box [−1, 1]^d.

Densities of own samples are computed from u, which tanh may have rounded to the edge of the box;
densities of logged actions from the inverse of tanh, which is clipped for the same reason.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moose.types import Key

MARGIN = 1e-3
"""How far inside of the box an action is moved before tanh is inverted."""


class Gaussian(NamedTuple):
    """Independent Gaussians, before tanh."""

    mean: jax.Array
    """[..., d]"""
    log_deviation: jax.Array
    """[..., d]"""


def clipped_gaussian(outputs: jax.Array) -> Gaussian:
    """The halves of a network's outputs [..., 2 d]; log-deviations clipped to [−20, 2]."""
    mean, log_deviation = jnp.split(outputs, 2, axis=-1)
    return Gaussian(mean, jnp.clip(log_deviation, -20.0, 2.0))


def bounded_gaussian(outputs: jax.Array) -> Gaussian:
    """The halves (mean, s) of a network's outputs; log-deviation −5 + 2.5 (tanh s + 1)."""
    mean, shape = jnp.split(outputs, 2, axis=-1)
    return Gaussian(mean, -5.0 + 2.5 * (jnp.tanh(shape) + 1.0))


def draw_before_tanh(
    gaussian: Gaussian, count: int, key: Key, *, noise_limit: float | None = None
) -> jax.Array:
    """N samples u = mean + deviation · noise [..., N, d], the noise clipped if a limit is given."""
    shape = (*gaussian.mean.shape[:-1], count, gaussian.mean.shape[-1])
    noise = jax.random.normal(key, shape, gaussian.mean.dtype)
    if noise_limit is not None:
        noise = jnp.clip(noise, -noise_limit, noise_limit)
    deviation = jnp.exp(gaussian.log_deviation)
    return gaussian.mean[..., None, :] + deviation[..., None, :] * noise


def log_density_of_sample(gaussian: Gaussian, before_tanh: jax.Array) -> jax.Array:
    """Of tanh u for u [..., N, d]: log N(u) − Σ 2 (log 2 − u − softplus(−2 u))."""
    deviations = (before_tanh - gaussian.mean[..., None, :]) * jnp.exp(
        -gaussian.log_deviation[..., None, :]
    )
    log_normal = (
        -0.5 * deviations**2 - gaussian.log_deviation[..., None, :] - 0.5 * math.log(2.0 * math.pi)
    )
    log_slope = 2.0 * (math.log(2.0) - before_tanh - jax.nn.softplus(-2.0 * before_tanh))
    return jnp.sum(log_normal - log_slope, axis=-1)


def log_density(gaussian: Gaussian, actions: jax.Array) -> jax.Array:
    """Of actions [..., N, d] in the box, moved inside where they lie at its edge."""
    return log_density_of_sample(gaussian, before_tanh_of(actions))


def before_tanh_of(actions: jax.Array) -> jax.Array:
    """The inverse of tanh, of actions clipped to ±(1 − MARGIN)."""
    return jnp.arctanh(jnp.clip(actions, -1.0 + MARGIN, 1.0 - MARGIN))
