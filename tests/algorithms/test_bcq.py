"""BCQ: its target, the order of its steps, and its two ways of acting."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moose.algorithms import bcq
from moose.models.action_vae import draw_latents
from moose.models.actor import act
from toys import (
    apply_numpy,
    assert_close,
    differ,
    make_toy_log,
    make_toy_task,
    moved,
    q_numpy,
    step_once,
)


@pytest.fixture(scope="module")
def stepped():
    task, key = make_toy_task(history=2), jax.random.key(1)
    config = bcq.Config(
        hidden=(8,), vae_width=8, batch_size=16, target_rate=0.25, discount=0.8, target_samples=5
    )
    optimiser = optax.adam(config.learning_rate)
    before = bcq.init_state(task, config, optimiser, jax.random.key(0))
    other = bcq.init_state(task, config, optimiser, jax.random.key(2))
    before = before._replace(
        target_critics=other.target_critics, target_perturbation=other.target_perturbation
    )
    update = bcq.make_update(task, config, optimiser)
    return step_once(task, config, before, update, key, key, 4)


def proposals(decoder, perturbation, states, count, key, limit=0.05):
    """States [B, N, S] and decoded, perturbed actions [B, N, d], in NumPy but for the noise."""
    latents = np.asarray(draw_latents(decoder, states, count, key), np.float64)
    repeated = np.repeat(np.asarray(states, np.float64)[:, None], count, axis=1)
    actions = np.tanh(apply_numpy(decoder, np.concatenate([repeated, latents], axis=-1)))
    pairs = np.concatenate([repeated, actions], axis=-1)
    return repeated, np.clip(actions + limit * np.tanh(apply_numpy(perturbation, pairs)), -1, 1)


def test_the_target_is_the_best_soft_clipped_value_of_perturbed_proposals(stepped):
    batch, before, after = stepped.batch, stepped.before, stepped.after
    assert differ(before.vae.params, after.vae.params)
    decoder = after.vae.params.decoder  # the autoencoder steps first
    states, actions = proposals(
        decoder, before.target_perturbation, batch.next_states, 5, stepped.keys[2]
    )
    table = np.stack([q_numpy(critic, states, actions) for critic in before.target_critics])
    mixed = 0.75 * table.min(axis=0) + 0.25 * table.max(axis=0)
    targets = batch.rewards + 0.8 * batch.continues * mixed.max(axis=1)
    losses = [
        np.mean((q_numpy(critic, batch.states, batch.actions) - targets) ** 2)
        for critic in before.critics.params
    ]
    np.testing.assert_allclose(stepped.metrics["critic_loss"], sum(losses), rtol=1e-4)


def test_the_perturbation_is_judged_by_the_first_critic_after_its_step(stepped):
    before, after = stepped.before, stepped.after
    states, actions = proposals(
        after.vae.params.decoder,
        before.perturbation.params,
        stepped.batch.states,
        1,
        stepped.keys[3],
    )
    value = np.mean(q_numpy(after.critics.params[0], states, actions))
    np.testing.assert_allclose(stepped.metrics["policy_loss"], -value, rtol=1e-4)


def test_the_slow_copies_follow_last(stepped):
    before, after = stepped.before, stepped.after
    assert_close(after.target_critics, moved(before.target_critics, after.critics.params, 0.25))
    slow = moved(before.target_perturbation, after.perturbation.params, 0.25)
    assert_close(after.target_perturbation, slow)


@pytest.mark.parametrize("acting", ["sampled", "deterministic"])
def test_it_acts_by_the_best_proposal_or_by_latent_zero(stepped, acting):
    task, state = stepped.task, stepped.after
    config = stepped.config.model_copy(update={"acting": acting, "acting_samples": 20})
    scale = bcq.make_experience(make_toy_log(task), "standardised").scale
    actor = bcq.make_actor(state, config, scale)
    window = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    features = ((window - scale.mean) / scale.deviation).reshape(1, -1)
    key = jax.random.key(7)
    decoder, perturbation = state.vae.params.decoder, state.perturbation.params
    if acting == "sampled":
        # The noise of one state, without the axis of a batch.
        noise = np.asarray(jax.random.normal(key, (20, 4)))
        latents = np.clip(noise, -0.5, 0.5)
        states = np.repeat(features, 20, axis=0)
    else:
        latents, states = np.zeros((1, 4)), features
    actions = np.tanh(apply_numpy(decoder, np.hstack([states, latents])))
    shift = 0.05 * np.tanh(apply_numpy(perturbation, np.hstack([states, actions])))
    actions = np.clip(actions + shift, -1, 1)
    best = actions[np.argmax(q_numpy(state.critics.params[0], states, actions))]
    low, high = np.array(task.action_low), np.array(task.action_high)
    expected = low + (best + 1) / 2 * (high - low)
    found = act(actor, task, jnp.asarray(window), key)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
