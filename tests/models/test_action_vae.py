"""The autoencoder of actions: loss, decoding and perturbing, each against NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from moose.models.action_vae import (
    action_vae_loss,
    decode_before_tanh,
    draw_latents,
    init_action_vae,
    perturbed_actions,
)
from moose.models.networks import init_network
from toys import apply_numpy


def make_pairs(count=6):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 5)), rng.uniform(-1, 1, (count, 2))


def test_the_loss_is_the_squared_error_and_half_of_the_kl():
    vae = init_action_vae(5, 2, 8, jax.random.key(0))
    # One latent's log-deviation far below its bound of −4.
    last = vae.encoder[-1]
    vae = vae._replace(encoder=(*vae.encoder[:-1], last._replace(bias=last.bias.at[4].set(-30.0))))
    states, actions = make_pairs()
    key = jax.random.key(3)
    found, metrics = jax.jit(action_vae_loss)(
        vae, jnp.asarray(states, jnp.float32), jnp.asarray(actions, jnp.float32), key
    )
    outputs = apply_numpy(vae.encoder, np.hstack([states, actions]))
    mean, log_deviation = outputs[:, :4], np.clip(outputs[:, 4:], -4.0, 15.0)
    assert (log_deviation[:, 0] == -4.0).all()
    noise = np.asarray(jax.random.normal(key, (6, 4)), np.float64)
    latents = mean + np.exp(log_deviation) * noise
    errors = np.tanh(apply_numpy(vae.decoder, np.hstack([states, latents]))) - actions
    kl = 0.5 * (mean**2 + np.exp(2 * log_deviation) - 1) - log_deviation
    np.testing.assert_allclose(found, np.mean(errors**2) + 0.5 * np.mean(kl), rtol=1e-5)
    np.testing.assert_array_equal(metrics["vae_loss"], found)


def test_decoding_joins_state_and_latent_and_perturbing_is_bounded():
    vae = init_action_vae(5, 2, 8, jax.random.key(0))
    states, _ = make_pairs()
    latents = np.random.default_rng(1).normal(size=(6, 3, 4))
    repeated = np.repeat(states[:, None], 3, axis=1)
    found = jax.jit(decode_before_tanh)(
        vae.decoder, jnp.asarray(states, jnp.float32), jnp.asarray(latents, jnp.float32)
    )
    expected = apply_numpy(vae.decoder, np.concatenate([repeated, latents], axis=-1))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    network = init_network(jax.random.key(2), (7, 8, 2))
    actions = np.random.default_rng(2).uniform(-1, 1, (6, 3, 2))
    actions[0, 0] = [1.0, -1.0]
    found = jax.jit(perturbed_actions)(
        network, jnp.asarray(states, jnp.float32), jnp.asarray(actions, jnp.float32), 0.05
    )
    shift = 0.05 * np.tanh(apply_numpy(network, np.concatenate([repeated, actions], axis=-1)))
    np.testing.assert_allclose(found, np.clip(actions + shift, -1, 1), rtol=1e-4, atol=1e-6)
    assert np.abs(found - actions).max() <= 0.05 + 1e-6


def test_latents_are_clipped_draws():
    decoder = init_action_vae(5, 2, 8, jax.random.key(0)).decoder
    draw = jax.jit(draw_latents, static_argnums=2)
    latents = np.asarray(draw(decoder, jnp.zeros((50, 5)), 10, jax.random.key(0)))
    assert latents.shape == (50, 10, 4)
    assert np.abs(latents).max() == 0.5
    share = np.mean(np.abs(latents) == 0.5)  # 62 % of a standard normal lie beyond
    assert abs(share - 0.617) < 0.05
