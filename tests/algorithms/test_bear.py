"""BEAR: its losses in NumPy, the order of its steps, the price of the discrepancy, its acting."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moose.algorithms import bear
from moose.algorithms.critics import mean_discrepancy
from moose.models.action_vae import samples_before_tanh
from moose.models.actor import Actor, act
from moose.training import init_learner
from toys import (
    apply_numpy,
    assert_close,
    make_toy_log,
    make_toy_task,
    moved,
    q_numpy,
    step_once,
)

UPDATES = 10  # of which the first two are the warm start


@pytest.fixture(scope="module", params=[0, 2], ids=["warming up", "warm"])
def stepped(request):
    task, key = make_toy_task(history=2), jax.random.key(1)
    config = bear.Config(
        hidden=(8,), vae_width=8, batch_size=16, target_rate=0.25, discount=0.8, updates=UPDATES
    )
    optimiser = optax.adam(config.learning_rate)
    before = bear.init_state(task, config, optimiser, jax.random.key(0))
    other = bear.init_state(task, config, optimiser, jax.random.key(2))
    before = before._replace(target_critics=other.target_critics, target_actor=other.target_actor)
    update = bear.make_update(task, config, optimiser)
    return step_once(task, config, before, update, key, key, 5, step=request.param), request.param


def samples(actor, states, count, key, limit=np.inf):
    """Repeated states and u = mean + deviation · clipped noise, in NumPy but for the noise."""
    outputs = apply_numpy(actor, np.asarray(states, np.float64))
    mean, log_deviation = np.split(outputs, 2, axis=-1)
    shape = (len(states), count, mean.shape[-1])
    noise = np.clip(np.asarray(jax.random.normal(key, shape), np.float64), -limit, limit)
    deviation = np.exp(np.clip(log_deviation, -20, 2))
    repeated = np.repeat(np.asarray(states, np.float64)[:, None], count, axis=1)
    return repeated, mean[:, None] + deviation[:, None] * noise


def test_the_target_is_the_best_soft_clipped_value_of_the_slow_policys_samples(stepped):
    stepped, _ = stepped
    batch, before = stepped.batch, stepped.before
    states, drawn = samples(before.target_actor, batch.next_states, 10, stepped.keys[2])
    table = np.stack([q_numpy(q, states, np.tanh(drawn)) for q in before.target_critics])
    mixed = 0.75 * table.min(axis=0) + 0.25 * table.max(axis=0)
    targets = batch.rewards + 0.8 * batch.continues * mixed.max(axis=1)
    losses = [
        np.mean((q_numpy(critic, batch.states, batch.actions) - targets) ** 2)
        for critic in before.critics.params
    ]
    np.testing.assert_allclose(stepped.metrics["critic_loss"], sum(losses), rtol=1e-4)


def test_the_policy_is_paid_for_the_lower_mean_value_once_it_is_warm(stepped):
    stepped, step = stepped
    batch, before, after = stepped.batch, stepped.before, stepped.after
    logged = samples_before_tanh(after.vae.params.decoder, batch.states, 5, stepped.keys[3])
    states, drawn = samples(before.actor.params, batch.states, 5, stepped.keys[4], limit=0.5)
    price = np.exp(before.log_multiplier.params)
    discrepancy = mean_discrepancy(logged, jnp.asarray(drawn, jnp.float32), "laplacian", 10.0)
    means = [q_numpy(q, states, np.tanh(drawn)).mean(axis=1) for q in after.critics.params]
    values = np.minimum(*means) if step >= 0.2 * UPDATES else 0.0
    expected = np.mean(price * np.asarray(discrepancy) - values)
    np.testing.assert_allclose(stepped.metrics["policy_loss"], expected, rtol=1e-3)
    np.testing.assert_allclose(stepped.metrics["mmd"], np.mean(discrepancy), rtol=1e-3)
    np.testing.assert_allclose(stepped.metrics["multiplier"], price, rtol=1e-5)


def test_the_slow_copies_follow_last(stepped):
    stepped, _ = stepped
    before, after = stepped.before, stepped.after
    assert_close(after.target_critics, moved(before.target_critics, after.critics.params, 0.25))
    assert_close(after.target_actor, moved(before.target_actor, after.actor.params, 0.25))


def test_the_mean_over_samples_comes_before_the_minimum_over_critics():
    key = jax.random.key(3)
    pair = bear.init_critics(make_toy_task(history=1), (8,), 2, key)
    states = jax.random.normal(key, (40, 3))
    actions = jax.random.uniform(key, (40, 5, 2), minval=-1.0)
    repeated = np.repeat(np.asarray(states)[:, None], 5, axis=1)
    table = np.stack([q_numpy(critic, repeated, np.asarray(actions)) for critic in pair])
    # Shifted so that they agree on average, and the order shows.
    gap = table[0].mean() - table[1].mean()
    last = pair[1][-1]
    pair = (pair[0], (*pair[1][:-1], last._replace(bias=last.bias + np.float32(gap))))
    table[1] += gap
    found = bear.lowest_mean_value(pair, states, actions)
    expected = table.mean(axis=2).min(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    assert np.abs(table.min(axis=0).mean(axis=1) - expected).max() > 1e-3


@pytest.mark.parametrize(
    ("start", "discrepancy", "expected"),
    [
        (0.0, 0.5, 0.1),  # dear: raised by a step of Adam
        (0.0, 0.01, -0.1),  # below the threshold: lowered
        (9.95, 0.5, 10.0),
        (-4.95, 0.01, -5.0),
    ],
)
def test_the_price_follows_the_discrepancy_within_bounds(start, discrepancy, expected):
    optimiser = optax.adam(0.1)
    learner = init_learner(jnp.float32(start), optimiser, is_seeded=False)
    found = bear.raise_price(learner, optimiser, jnp.float32(discrepancy), 0.05)
    np.testing.assert_allclose(found.params, expected, atol=1e-4)


@pytest.mark.parametrize("acting", ["sampled", "deterministic"])
def test_it_acts_by_the_best_sample_or_by_the_mode(stepped, acting):
    stepped, _ = stepped
    task, state = stepped.task, stepped.after
    config = stepped.config.model_copy(update={"acting": acting})
    scale = bear.make_experience(make_toy_log(task), "standardised").scale
    actor = bear.make_actor(state, config, scale)
    window = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    features = ((window - scale.mean) / scale.deviation).reshape(-1)
    outputs = apply_numpy(state.actor.params, features)
    mean, deviation = outputs[:2], np.exp(np.clip(outputs[2:], -20, 2))
    if acting == "sampled":
        noise = np.asarray(jax.random.normal(jax.random.key(7), (10, 2)))
        actions = np.tanh(mean + deviation * noise)
        values = q_numpy(state.critics.params[0], np.repeat(features[None], 10, axis=0), actions)
        best = actions[np.argmax(values)]
    else:
        assert isinstance(actor, Actor)
        best = np.tanh(mean)
    low, high = np.array(task.action_low), np.array(task.action_high)
    expected = low + (best + 1) / 2 * (high - low)
    found = act(actor, task, jnp.asarray(window), jax.random.key(7))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
