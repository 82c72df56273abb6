"""What the log would do in a state: a variational autoencoder of actions, given the state.

=====  ==================================================
s, a   state, and action in [−1, 1]^d
z      latent, L = 2 d numbers, prior N(0, 1)
â      reconstruction of a
=====  ==================================================

Samples are decoded from latents drawn from the prior and clipped to ±0.5, so that they stay with
what is typical.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moose.models.networks import Network, apply_network, apply_to_pairs, init_network
from moose.models.support import LOG_DEVIATION_RANGE, kl_to_prior
from moose.training import Metrics
from moose.types import Key

KL_WEIGHT = 0.5
LATENT_LIMIT = 0.5
"""How far from 0 a latent drawn for decoding may lie."""


class ActionVae(NamedTuple):
    """Encoder (n + d) → (means, log-deviations) of 2 d latents; decoder (n + 2 d) → d."""

    encoder: Network
    decoder: Network


def init_action_vae(num_state: int, num_action: int, width: int, key: Key) -> ActionVae:
    """An untrained autoencoder, with two hidden layers each way."""
    encoder_key, decoder_key = jax.random.split(key)
    latents = 2 * num_action
    return ActionVae(
        encoder=init_network(encoder_key, (num_state + num_action, width, width, 2 * latents)),
        decoder=init_network(decoder_key, (num_state + latents, width, width, num_action)),
    )


def action_vae_loss(
    vae: ActionVae, states: jax.Array, actions: jax.Array, key: Key
) -> tuple[jax.Array, Metrics]:
    """Mean (â − a)² plus half of the mean KL to the prior, for states [B, S], actions [B, d]."""
    mean, log_deviation = encode_actions(vae.encoder, states, actions)
    latents = mean + jnp.exp(log_deviation) * jax.random.normal(key, mean.shape, mean.dtype)
    decoded = apply_network(vae.decoder, jnp.concatenate([states, latents], axis=-1))
    errors = jnp.tanh(decoded) - actions
    loss = jnp.mean(errors**2) + KL_WEIGHT * jnp.mean(kl_to_prior(mean, log_deviation))
    return loss, {"vae_loss": loss}


def encode_actions(
    encoder: Network, states: jax.Array, actions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean and log-deviation of the latents, [B, L] each."""
    outputs = apply_network(encoder, jnp.concatenate([states, actions], axis=-1))
    mean, log_deviation = jnp.split(outputs, 2, axis=-1)
    return mean, jnp.clip(log_deviation, *LOG_DEVIATION_RANGE)


def decode_before_tanh(decoder: Network, states: jax.Array, latents: jax.Array) -> jax.Array:
    """Actions before tanh [..., N, d] for states [..., S] and N latents in each [..., N, L]."""
    return apply_to_pairs(decoder, states, latents)


def decoded_samples(decoder: Network, states: jax.Array, count: int, key: Key) -> jax.Array:
    """Actions [..., N, d] that the log might have taken in states [..., S]."""
    return jnp.tanh(samples_before_tanh(decoder, states, count, key))


def samples_before_tanh(decoder: Network, states: jax.Array, count: int, key: Key) -> jax.Array:
    """The same before tanh: decoded from clipped draws from the prior."""
    return decode_before_tanh(decoder, states, draw_latents(decoder, states, count, key))


def draw_latents(decoder: Network, states: jax.Array, count: int, key: Key) -> jax.Array:
    """Clipped draws from the prior, [..., N, L] for states [..., S]."""
    latents = decoder[0].weight.shape[0] - states.shape[-1]
    noise = jax.random.normal(key, (*states.shape[:-1], count, latents), states.dtype)
    return jnp.clip(noise, -LATENT_LIMIT, LATENT_LIMIT)


def perturbed_actions(
    perturbation: Network, states: jax.Array, actions: jax.Array, limit: float
) -> jax.Array:
    """ã = clip(a + Φ · tanh(ξ(s, a)), −1, 1) for actions [..., N, d] and states [..., S]."""
    shift = limit * jnp.tanh(apply_to_pairs(perturbation, states, actions))
    return jnp.clip(actions + shift, -1.0, 1.0)
