"""Tanh-Gaussians against NumPy, SciPy and numerical integration."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from moose.models.gaussian import (
    MARGIN,
    Gaussian,
    before_tanh_of,
    bounded_gaussian,
    clipped_gaussian,
    draw_before_tanh,
    log_density,
    log_density_of_sample,
)


def make_gaussian(seed=0, shape=(4, 2)):
    rng = np.random.default_rng(seed)
    mean, log_deviation = rng.normal(size=shape), rng.uniform(-1.5, 0.0, size=shape)
    return Gaussian(jnp.asarray(mean, jnp.float32), jnp.asarray(log_deviation, jnp.float32))


def density_numpy(mean, log_deviation, action):
    """Change of variables by hand, in float64: N(artanh a) / (1 − a²), per number."""
    before = 0.5 * np.log((1 + action) / (1 - action))
    return stats.norm.pdf(before, mean, np.exp(log_deviation)) / (1 - action**2)


def test_the_log_density_of_samples_is_the_change_of_variables():
    gaussian = make_gaussian()
    before = np.random.default_rng(1).normal(size=(4, 7, 2)).astype(np.float32)
    found = jax.jit(log_density_of_sample)(gaussian, jnp.asarray(before))
    mean, log_deviation = (np.asarray(part, np.float64)[:, None] for part in gaussian)
    expected = np.log(density_numpy(mean, log_deviation, np.tanh(before.astype(np.float64))))
    np.testing.assert_allclose(found, expected.sum(axis=-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("before", [-30.0, -9.0, 9.0, 30.0])
def test_a_sample_that_tanh_rounds_to_the_edge_has_a_finite_density_and_gradient(before):
    gaussian = Gaussian(jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    value, gradient = jax.jit(
        jax.value_and_grad(lambda u: log_density_of_sample(gaussian, u.reshape(1, 1, 1))[0, 0])
    )(jnp.float32(before))
    # log(1 − tanh²u) tends to 2 log 2 − 2 |u|
    expected = stats.norm.logpdf(before) - (2 * np.log(2.0) - 2 * abs(before))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, -before + 2 * np.sign(before), rtol=1e-4)


@pytest.mark.parametrize(("mean", "log_deviation"), [(0.0, 0.0), (0.8, -0.5), (-0.5, -1.5)])
def test_the_density_integrates_to_one(mean, log_deviation):
    gaussian = Gaussian(jnp.full((1, 1), mean), jnp.full((1, 1), log_deviation))
    edge = 1.0 - 1.1e-3  # just inside of where actions are clipped
    grid = np.linspace(-edge, edge, 40_001)
    actions = jnp.asarray(grid, jnp.float32)[None, :, None]
    density = np.exp(np.asarray(jax.jit(log_density)(gaussian, actions)))
    outside = stats.norm.sf(np.arctanh(edge), [mean, -mean], np.exp(log_deviation)).sum()
    inside = np.trapezoid(density[0].astype(np.float64), grid)
    assert inside + outside == pytest.approx(1.0, abs=1e-3)
    assert inside > 0.95


def test_the_inverse_is_exact_inside_and_clipped_at_the_edge():
    before = np.linspace(-3.5, 3.5, 29).astype(np.float32)
    np.testing.assert_allclose(before_tanh_of(jnp.tanh(before)), before, atol=2e-4)
    most = np.arctanh(1 - MARGIN)
    for action in (1.0 - MARGIN / 2, 1.0, 1.5):
        found = before_tanh_of(jnp.float32([-action, action]))
        np.testing.assert_allclose(found, [-most, most], rtol=1e-4)


def test_the_density_of_actions_is_that_of_their_inverse():
    gaussian = make_gaussian()
    actions = np.random.default_rng(2).uniform(-1.0, 1.0, (4, 5, 2))
    actions[0, 0] = [1.0, -1.0]
    found = jax.jit(log_density)(gaussian, jnp.asarray(actions, jnp.float32))
    mean, log_deviation = (np.asarray(part, np.float64)[:, None] for part in gaussian)
    clipped = np.clip(actions, -0.999, 0.999)
    expected = np.log(density_numpy(mean, log_deviation, clipped)).sum(axis=-1)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_heads_keep_log_deviations_within_their_bounds():
    outputs = jnp.asarray([[0.3, -0.7, 100.0, -100.0], [5.0, -5.0, 0.0, 0.5]])
    clipped, bounded = clipped_gaussian(outputs), bounded_gaussian(outputs)
    for gaussian in (clipped, bounded):
        np.testing.assert_array_equal(gaussian.mean, outputs[:, :2])
    np.testing.assert_allclose(clipped.log_deviation, [[2.0, -20.0], [0.0, 0.5]])
    expected = [[0.0, -5.0], [-2.5, -5 + 2.5 * (np.tanh(0.5) + 1)]]
    np.testing.assert_allclose(bounded.log_deviation, expected, atol=1e-6)


def test_samples_have_the_moments_asked_for_and_clipped_noise_stays_near():
    gaussian = make_gaussian()
    draw = jax.jit(draw_before_tanh, static_argnames=("count", "noise_limit"))
    samples = np.asarray(draw(gaussian, 20_000, jax.random.key(0)))
    assert samples.shape == (4, 20_000, 2)
    deviation = np.exp(gaussian.log_deviation)
    assert (np.abs(samples.mean(axis=1) - gaussian.mean) < 0.03 * deviation).all()
    np.testing.assert_allclose(samples.std(axis=1), deviation, rtol=0.03)
    near = draw(gaussian, 20_000, jax.random.key(0), noise_limit=0.5)
    gaps = np.abs(np.asarray(near) - gaussian.mean[:, None]) / deviation[:, None]
    assert gaps.max() == pytest.approx(0.5, rel=1e-4)
