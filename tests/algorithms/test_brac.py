"""BRAC: the clone, the sampled divergence, its targets and the order of its steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moose.algorithms import brac
from moose.models.gaussian import Gaussian, log_density, log_density_of_sample
from moose.training import init_learner
from toys import (
    MemoryJournal,
    apply_numpy,
    assert_close,
    assert_same_bits,
    make_toy_log,
    make_toy_task,
    moved,
    q_numpy,
    step_once,
)

UPDATES = 10  # of which the first two are the warm start


@pytest.fixture(scope="module", params=["value_penalty", "policy"])
def stepped(request):
    task, key = make_toy_task(history=2), jax.random.key(1)
    config = brac.Config(
        hidden=(8,),
        clone={"hidden": (8,)},
        batch_size=16,
        target_rate=0.25,
        discount=0.8,
        updates=UPDATES,
        regularisation=request.param,
        divergence_weight=0.7,
    )
    before = brac.init_state(task, config, jax.random.key(0))
    other = brac.init_state(task, config, jax.random.key(2))
    before = before._replace(target_critics=other.target_critics)
    own = brac.Own(brac.init_behaviour(task, config, jax.random.key(4)), key)
    step = 0 if request.param == "policy" else 2
    found = step_once(task, config, before, brac.make_update(task, config), own, key, 3, step)
    return found, own.behaviour, step


def gaussian_numpy(network, states):
    mean, shape = np.split(apply_numpy(network, np.asarray(states, np.float64)), 2, axis=-1)
    return mean, -5 + 2.5 * (np.tanh(shape) + 1)


def log_density_numpy(mean, log_deviation, before):
    """log N(u) − Σ log(1 − tanh²u), the slope by its definition, in float64."""
    scaled = (before - mean) / np.exp(log_deviation)
    log_normal = -0.5 * scaled**2 - log_deviation - 0.5 * np.log(2 * np.pi)
    return np.sum(log_normal - np.log(1 - np.tanh(before) ** 2), axis=-1)


def draw(mean, log_deviation, count, key):
    noise = jax.random.normal(key, (len(mean), count, mean.shape[-1]))
    return mean[:, None] + np.exp(log_deviation)[:, None] * np.asarray(noise, np.float64)


def divergence_numpy(policy, clone, states, key):
    mean, log_deviation = gaussian_numpy(policy, states)
    own = draw(mean, log_deviation, 4, key)
    clone_mean, clone_log_deviation = gaussian_numpy(clone, states)
    clipped = np.arctanh(np.clip(np.tanh(own), -0.999, 0.999))
    own_density = log_density_numpy(mean[:, None], log_deviation[:, None], own)
    its_density = log_density_numpy(clone_mean[:, None], clone_log_deviation[:, None], clipped)
    return np.mean(own_density - its_density, axis=1)


def test_the_target_uses_slow_copies_that_moved_first(stepped):
    stepped, behaviour, _ = stepped
    batch, before = stepped.batch, stepped.before
    slow = moved(before.target_critics, before.critics.params, 0.25)
    assert_close(stepped.after.target_critics, slow)
    action_key, divergence_key = jax.random.split(stepped.keys[1])
    policy = gaussian_numpy(before.actor.params, batch.next_states)
    actions = np.tanh(draw(*policy, 1, action_key)[:, 0])
    values = np.minimum(*(q_numpy(critic, batch.next_states, actions) for critic in slow))
    if stepped.config.regularisation == "value_penalty":
        values = values - 0.7 * divergence_numpy(
            before.actor.params, behaviour, batch.next_states, divergence_key
        )
    targets = batch.rewards + 0.8 * batch.continues * values
    losses = [
        np.mean((q_numpy(critic, batch.states, batch.actions) - targets) ** 2)
        for critic in before.critics.params
    ]
    np.testing.assert_allclose(stepped.metrics["critic_loss"], sum(losses), rtol=1e-3)


def test_the_policy_pays_for_the_divergence_and_is_paid_for_q_once_warm(stepped):
    stepped, behaviour, step = stepped
    batch, before = stepped.batch, stepped.before
    action_key, divergence_key = jax.random.split(stepped.keys[2])
    divergence = divergence_numpy(before.actor.params, behaviour, batch.states, divergence_key)
    policy = gaussian_numpy(before.actor.params, batch.states)
    actions = np.tanh(draw(*policy, 1, action_key)[:, 0])
    pair = stepped.after.critics.params  # which step before the policy
    values = np.minimum(*(q_numpy(critic, batch.states, actions) for critic in pair))
    expected = np.mean(0.7 * divergence - (values if step >= 0.2 * UPDATES else 0.0))
    np.testing.assert_allclose(stepped.metrics["policy_loss"], expected, rtol=1e-3)
    np.testing.assert_allclose(stepped.metrics["kl"], np.mean(divergence), rtol=1e-3)


def test_the_sampled_divergence_agrees_with_the_closed_form():
    # tanh changes both densities alike, so that the divergence is that of the Gaussians.
    policy = Gaussian(jnp.asarray([[0.2, -0.4]]), jnp.asarray([[-1.0, -1.5]]))
    clone = Gaussian(jnp.asarray([[0.0, -0.1]]), jnp.asarray([[-0.7, -0.9]]))
    samples = brac.sample_divergence(policy, clone, 40_000, jax.random.key(0))
    (mean, log_deviation), (other, other_log) = (
        tuple(np.asarray(part, np.float64) for part in g) for g in (policy, clone)
    )
    ratio = np.exp(2 * (log_deviation - other_log))
    square = ((mean - other) / np.exp(other_log)) ** 2
    expected = np.sum(0.5 * (ratio + square - 1) + other_log - log_deviation)
    np.testing.assert_allclose(samples, expected, rtol=0.02)


def test_the_cloning_loss_is_likelihood_and_priced_entropy():
    task, key = make_toy_task(history=1), jax.random.key(5)
    network = brac.init_behaviour(task, brac.Config(clone={"hidden": (8,)}), key)
    rng = np.random.default_rng(0)
    states, actions = rng.normal(size=(6, 3)), rng.uniform(-1, 1, (6, 2))
    actions[0] = [1.0, -1.0]
    loss, metrics = brac.cloning_loss(
        network,
        jnp.asarray(states, jnp.float32),
        jnp.asarray(actions, jnp.float32),
        jnp.float32(0.3),
        key,
    )
    mean, log_deviation = gaussian_numpy(network, states)
    own = draw(mean, log_deviation, 1, key)[:, 0]
    entropy = -np.mean(log_density_numpy(mean, log_deviation, own))
    logged = np.arctanh(np.clip(actions, -0.999, 0.999))
    likelihood = np.mean(log_density_numpy(mean, log_deviation, logged))
    np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-3)
    np.testing.assert_allclose(loss, -0.3 * entropy - likelihood, rtol=1e-3)


@pytest.mark.parametrize(
    ("start", "entropy", "expected"), [(1.0, 0.0, 0.9), (1.0, -5.0, 1.1), (0.05, 0.0, 0.0)]
)
def test_the_price_of_entropy_falls_when_there_is_enough_and_never_below_zero(
    start, entropy, expected
):
    optimiser = optax.adam(0.1)
    learner = init_learner(jnp.float32(start), optimiser, is_seeded=False)
    found = brac.lower_price(learner, optimiser, jnp.float32(entropy), -2.0)
    np.testing.assert_allclose(found.params, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, 10_000), ({"updates": 100_000}, 100_000), ({"clone": {"updates": 7}}, 7)],
)
def test_the_clone_gets_as_many_updates_as_the_policy_and_not_too_few(changes, expected):
    assert brac.cloning_updates(brac.Config(**changes)) == expected


def test_densities_of_own_samples_and_of_actions_agree_inside():
    gaussian = Gaussian(jnp.zeros((1, 2)), jnp.full((1, 2), -1.0))
    before = jnp.asarray([[[0.3, -0.8], [1.2, 0.1]]])
    np.testing.assert_allclose(
        log_density(gaussian, jnp.tanh(before)),
        log_density_of_sample(gaussian, before),
        rtol=1e-4,
    )


def test_runs_that_differ_in_the_policy_share_the_clone():
    task, journal = make_toy_task(history=1), MemoryJournal()
    log = make_toy_log(task, episodes=2, steps=10)
    small = {"hidden": (4,), "updates": 2, "checks": 1, "batch_size": 4}
    clone = {"hidden": (4,), "updates": 2, "checks": 1, "batch_size": 4}
    first, second = (
        brac.fit(
            log,
            task,
            brac.Config(**small, clone=clone, divergence_weight=weight),
            jax.random.key(0),
            journal=journal,
        )
        for weight in (0.1, 10.0)
    )
    assert len(journal.results) == 1
    assert_same_bits(
        jax.tree.map(np.asarray, first.behaviour), jax.tree.map(np.asarray, second.behaviour)
    )
