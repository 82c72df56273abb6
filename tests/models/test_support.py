"""The support model: bound, reconstruction error and scales against NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.config import load_settings
from moose.errors import ConfigError
from moose.models.support import (
    SupportSettings,
    autoencoder_loss,
    encode,
    errors_in_turn,
    fit_support,
    init_autoencoder,
    init_support,
    kl_weight_of,
    measure_support_scales,
    num_inputs,
    num_latents,
    reconstruction_error,
    support_inputs,
)
from moose.tasks.industrial_benchmark import make_task
from toys import altered, assert_close, assert_same_bits, differ, make_toy_log, make_toy_task

TASK = make_toy_task(history=2)
SETTINGS = SupportSettings(width=16, epochs=2, batch_size=40, learning_rate=1e-2)
AUTOENCODER = init_autoencoder(TASK, SETTINGS, jax.random.key(0))
PAIRS = np.random.default_rng(0).normal(size=(9, 8)).astype(np.float32)


def encode_numpy(autoencoder, pairs):
    tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), autoencoder)
    hidden = np.maximum(pairs @ tree.encoder.weight + tree.encoder.bias, 0.0)
    mean = hidden @ tree.mean_head.weight + tree.mean_head.bias
    log_deviation = hidden @ tree.log_deviation_head.weight + tree.log_deviation_head.bias
    return mean, np.clip(log_deviation, -4.0, 15.0)


def decode_numpy(autoencoder, latents):
    first, second, last = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64), autoencoder.decoder
    )
    hidden = np.maximum(latents @ first.weight + first.bias, 0.0)
    hidden = np.maximum(hidden @ second.weight + second.bias, 0.0)
    return hidden @ last.weight + last.bias


def negative_bound_numpy(autoencoder, pairs, noise):
    """−log N(x; x̂(z), 1) + KL(q(z|x) ‖ N(0, 1)) for a fixed draw of z, mean over pairs.

    Without the constant D/2·log 2π.
    """
    mean, log_deviation = encode_numpy(autoencoder, pairs)
    variance = np.exp(log_deviation) ** 2
    reconstruction = decode_numpy(autoencoder, mean + np.sqrt(variance) * noise)
    log_likelihood = -0.5 * np.sum((pairs - reconstruction) ** 2, axis=1)
    divergence = 0.5 * np.sum(variance + mean**2 - 1.0 - np.log(variance), axis=1)
    return np.mean(-log_likelihood + divergence)


# Equations


def test_the_default_weight_gives_the_unit_variance_bound_up_to_a_factor():
    key = jax.random.key(7)
    loss = autoencoder_loss(AUTOENCODER, PAIRS, kl_weight_of(TASK, SETTINGS), key)
    noise = np.asarray(jax.random.normal(key, (9, num_latents(TASK, SETTINGS))))
    bound = negative_bound_numpy(AUTOENCODER, PAIRS, noise)
    np.testing.assert_allclose(loss, 2.0 / num_inputs(TASK, SETTINGS) * bound, rtol=1e-5)


@pytest.mark.parametrize("weight", [0.0, 0.5, 3.0])
def test_another_weight_is_the_customary_sum_of_means(weight):
    key = jax.random.key(7)
    noise = np.asarray(jax.random.normal(key, (9, num_latents(TASK, SETTINGS))))
    mean, log_deviation = encode_numpy(AUTOENCODER, PAIRS)
    latents = mean + np.exp(log_deviation) * noise
    error = np.mean((PAIRS - decode_numpy(AUTOENCODER, latents)) ** 2)
    divergence = np.mean(0.5 * (np.exp(2 * log_deviation) + mean**2 - 1.0 - 2.0 * log_deviation))
    loss = autoencoder_loss(AUTOENCODER, PAIRS, weight, key)
    np.testing.assert_allclose(loss, error + weight * divergence, rtol=1e-5)


def test_weights_of_the_paper():
    # 30 frames of 6 and 3 actions; 11 signals and 3 actions (Hopper).
    benchmark = SupportSettings()
    assert num_latents(make_task(), benchmark) == 6
    assert num_inputs(make_task(), benchmark) == 183
    assert kl_weight_of(make_task(), benchmark) == pytest.approx(0.066, abs=5e-4)
    assert kl_weight_of(make_task(), SupportSettings(kl_weight=0.5)) == 0.5
    newest = SupportSettings(sees="frame", latents=2)
    assert num_inputs(make_task(), newest) == 9
    assert kl_weight_of(make_task(), newest) == pytest.approx(4 / 9)


def test_a_negative_weight_is_refused():
    with pytest.raises(ConfigError, match="kl_weight"):
        load_settings(SupportSettings, overrides=["kl_weight=-1"])
    assert load_settings(SupportSettings, overrides=["kl_weight=0.5"]).kl_weight == 0.5
    assert load_settings(SupportSettings, overrides=["kl_weight=elbo"]).kl_weight == "elbo"


def test_reconstruction_error_is_the_mean_square_per_pair():
    mean, log_deviation = encode_numpy(AUTOENCODER, PAIRS)
    noise = np.random.default_rng(1).normal(size=mean.shape).astype(np.float32)
    for draw, latents in ((None, mean), (noise, mean + np.exp(log_deviation) * noise)):
        expected = np.mean((PAIRS - decode_numpy(AUTOENCODER, latents)) ** 2, axis=1)
        found = reconstruction_error(AUTOENCODER, PAIRS, draw)
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    stacked = reconstruction_error(AUTOENCODER, PAIRS.reshape(3, 3, 8))
    np.testing.assert_allclose(
        stacked, reconstruction_error(AUTOENCODER, PAIRS).reshape(3, 3), rtol=1e-5
    )


def test_latent_deviations_are_clipped():
    head = AUTOENCODER.log_deviation_head
    bias = jnp.asarray([100.0, -100.0, 14.0, -3.0])
    extreme = AUTOENCODER._replace(
        log_deviation_head=head._replace(weight=jnp.zeros_like(head.weight), bias=bias)
    )
    _, log_deviation = encode(extreme, PAIRS)
    np.testing.assert_array_equal(log_deviation, np.tile([15.0, -4.0, 14.0, -3.0], (9, 1)))
    loss = autoencoder_loss(extreme, PAIRS, 0.5, jax.random.key(0))
    assert np.isfinite(loss)


# Scales


def test_pairs_are_standardised_frames_and_actions():
    log = make_toy_log(TASK)
    scales = measure_support_scales(log)
    window, action = log.observations[3:1:-1], log.actions[3]
    expected = np.concatenate(
        [
            ((window - scales.frame.mean) / scales.frame.deviation).ravel(),
            (action - scales.action.mean) / scales.action.deviation,
        ]
    )
    np.testing.assert_allclose(support_inputs(scales, window, action), expected, rtol=1e-5)


def test_hardly_varying_actions_are_not_blown_up():
    log = make_toy_log(TASK)
    rng = np.random.default_rng(0)
    actions = np.stack(
        [0.3 + 1e-5 * rng.normal(size=len(log.actions)), np.full(len(log.actions), 1.2)], axis=1
    )
    scales = measure_support_scales(altered(log, actions=actions.astype(np.float32)))
    assert scales.action.deviation[0] == np.float32(1e-2)
    assert scales.action.deviation[1] == 1.0  # a constant one, as everywhere
    varied = measure_support_scales(log)
    np.testing.assert_allclose(varied.action.deviation, log.actions.std(axis=0), rtol=1e-5)


# Training


def test_seeds_together_are_seeds_in_turn():
    log = make_toy_log(TASK)
    keys = jax.random.split(jax.random.key(2), 2)
    together = fit_support(log, TASK, SETTINGS, keys)
    for seed, key in enumerate(keys):
        alone = fit_support(log, TASK, SETTINGS, key)
        one = jax.tree.map(lambda leaf, seed=seed: leaf[seed], together.autoencoder)
        assert_close(one, alone.autoencoder, rtol=1e-4, atol=1e-5)
    assert differ(
        jax.tree.map(lambda leaf: leaf[0], together.autoencoder),
        jax.tree.map(lambda leaf: leaf[1], together.autoencoder),
    )


def test_placeholders_are_never_learned_from():
    log = make_toy_log(TASK, unfinished=(0, 3))
    poison = log.observations.copy()
    poison[~log.is_observed] = 1e30
    clean = fit_support(log, TASK, SETTINGS, jax.random.key(0))
    poisoned = fit_support(altered(log, observations=poison), TASK, SETTINGS, jax.random.key(0))
    assert_same_bits(poisoned, clean)


def test_what_the_log_has_not_seen_is_reconstructed_badly():
    log = make_toy_log(TASK, episodes=20)
    settings = SETTINGS.model_copy(update={"epochs": 15, "kl_weight": 0.05})
    support = fit_support(log, TASK, settings, jax.random.key(0))
    untrained = init_support(log, TASK, settings, jax.random.key(0))
    windows = np.stack([log.observations[i : i - 2 : -1] for i in range(5, 25)])
    pair_of = jax.vmap(support_inputs, (None, 0, 0))
    pairs = pair_of(support.scales, windows, log.actions[5:25])
    strange = pair_of(support.scales, windows, log.actions[5:25] + 4.0)
    error = jax.jit(lambda model, pairs: jnp.mean(reconstruction_error(model, pairs)))
    assert error(support.autoencoder, pairs) < 0.7 * error(untrained.autoencoder, pairs)
    assert error(support.autoencoder, strange) > 3.0 * error(support.autoencoder, pairs)


@pytest.mark.parametrize("is_sampled", [False, True])
def test_errors_in_turn_have_the_values_and_slopes_of_all_at_once(is_sampled):
    rng = np.random.default_rng(1)
    pairs = jnp.asarray(rng.normal(size=(5, 2, 3, 8)), jnp.float32)
    shape = (*pairs.shape[:-1], num_latents(TASK, SETTINGS))
    noise = jnp.asarray(rng.normal(size=shape), jnp.float32) if is_sampled else None
    weights = jnp.asarray(rng.normal(size=pairs.shape[:-1]), jnp.float32)

    def weighted(function):
        return lambda x: jnp.sum(weights * function(AUTOENCODER, x, noise))

    assert_close(
        errors_in_turn(AUTOENCODER, pairs, noise), reconstruction_error(AUTOENCODER, pairs, noise)
    )
    slopes, expected = (
        jax.grad(weighted(function))(pairs) for function in (errors_in_turn, reconstruction_error)
    )
    assert_close(slopes, expected, rtol=1e-4, atol=1e-6)
    assert np.abs(expected).max() > 0.1


def test_errors_in_turn_take_the_autoencoder_as_given():
    pairs = jnp.asarray(PAIRS)[None]
    slopes = jax.grad(lambda one: jnp.sum(errors_in_turn(one, pairs, None)))(AUTOENCODER)
    assert all(not leaf.any() for leaf in jax.tree.leaves(slopes))


def test_errors_in_turn_serve_several_seeds():
    noise = jnp.ones((1, len(PAIRS), num_latents(TASK, SETTINGS)), jnp.float32)
    autoencoders = jax.tree.map(lambda leaf: jnp.stack([leaf, 2.0 * leaf]), AUTOENCODER)

    def error(autoencoder, pairs):
        return jnp.sum(errors_in_turn(autoencoder, pairs[None], noise))

    together = jax.vmap(jax.grad(error, 1), (0, None))(autoencoders, jnp.asarray(PAIRS))
    for i, slopes in enumerate(together):
        own = jax.tree.map(lambda leaf, i=i: leaf[i], autoencoders)
        assert_close(slopes, jax.grad(error, 1)(own, jnp.asarray(PAIRS)), rtol=1e-4, atol=1e-6)
    assert differ(together[0], together[1])
