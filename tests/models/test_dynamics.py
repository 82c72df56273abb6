"""The dynamics ensemble: its equations in NumPy, its training, and what it must not learn from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moose.data.normalize import measure
from moose.models.dynamics import (
    StackedModel,
    StackedSettings,
    fit_stacked,
    init_stacked,
    measure_scales,
    ready_stacked,
)
from moose.models.networks import apply_network, plain
from toys import (
    MemoryJournal,
    altered,
    assert_close,
    assert_same_bits,
    differ,
    make_toy_log,
    make_toy_task,
    toy_physics_numpy,
    toy_reward_numpy,
)

SETTINGS = StackedSettings(members=3, hidden=(8,), epochs=2, batch_size=40, learning_rate=1e-2)


def member_of(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def standardised(values, scale):
    return (values - scale.mean) / scale.deviation


def network_numpy(layers, inputs):
    *hidden, last = [(np.asarray(w, np.float64), np.asarray(b, np.float64)) for w, b in layers]
    for weight, bias in hidden:
        inputs = np.maximum(inputs @ weight + bias, 0.0)
    return inputs @ last[0] + last[1]


# Scales


@pytest.mark.parametrize("target", ["direct", "delta"])
def test_scales_are_those_of_what_was_observed(target):
    task = make_toy_task(target=target)
    log = make_toy_log(task, episodes=3, steps=9, unfinished=(1,))
    scales = measure_scales(log, task)
    frames = np.split(log.observations, [10, 20])
    frames[1] = frames[1][:-1]  # the placeholder
    observed = np.concatenate(frames)
    targets = np.concatenate([f[1:, [1, 0]] - (target == "delta") * f[:-1, [1, 0]] for f in frames])
    assert_same_bits(scales.frame, measure(observed))
    assert_same_bits(scales.predicted, measure(observed[:, [1, 0]]))
    assert_close(scales.target, measure(targets))
    assert_same_bits(scales.action, measure(log.actions))
    assert_same_bits(scales.reward, measure(log.rewards))


# One imagined step


@pytest.mark.parametrize(("target", "history"), [("direct", 1), ("delta", 3)])
def test_a_step_is_its_equation(target, history):
    task = make_toy_task(target=target, history=history, is_reward_known=False)
    log = make_toy_log(task)
    ensemble = init_stacked(log, task, SETTINGS, jax.random.key(0))
    members, scales = ready_stacked(ensemble.members), ensemble.scales
    step = jax.jit(StackedModel(task, scales).step)
    reward_of = jax.jit(StackedModel(task, scales).reward)
    rng = np.random.default_rng(0)
    clipped = []
    for size in (0.5, 3.0, 30.0):
        window = rng.normal(size=(history, 3)).astype(np.float32) * np.float32(size)
        action = rng.uniform(task.action_low, task.action_high).astype(np.float32)
        member = member_of(members, 1)
        inputs = np.concatenate(
            [standardised(window, scales.frame).ravel(), standardised(action, scales.action)]
        )
        output = network_numpy(member.dynamics, inputs)
        predicted = output * scales.target.deviation + scales.target.mean
        predicted = predicted + (target == "delta") * window[0, [1, 0]]
        bounded = np.clip(predicted, scales.predicted.minimum, scales.predicted.maximum)
        frame = toy_physics_numpy(window[0], action, bounded)
        clipped.append((bounded != predicted).any())

        carry, found = step(member, jnp.asarray(window), jnp.asarray(action))
        np.testing.assert_allclose(found, frame, rtol=1e-4, atol=1e-5)
        # The history is shifted: newest first, the oldest frame is dropped.
        np.testing.assert_allclose(carry, np.vstack([frame, window[:-1]]), rtol=1e-4, atol=1e-5)

        reward_inputs = np.concatenate([inputs, standardised(found, scales.frame)])
        reward = network_numpy(member.reward, reward_inputs)[0]
        reward = reward * scales.reward.deviation + scales.reward.mean
        reward = np.clip(reward, scales.reward.minimum, scales.reward.maximum)
        found_reward = reward_of(member, jnp.asarray(window), jnp.asarray(action), found)
        assert found_reward.shape == ()
        np.testing.assert_allclose(found_reward, reward, rtol=1e-3, atol=1e-4)
    assert any(clipped)


def test_a_known_reward_is_used_as_it_is():
    task = make_toy_task()
    ensemble = init_stacked(make_toy_log(task), task, SETTINGS, jax.random.key(0))
    assert ensemble.members.reward is None
    model = StackedModel(task, ensemble.scales)
    window, action = np.array([[0.1, 0.2, 0.3], [9.0, 9.0, 9.0]]), np.array([0.5, 1.0])
    frame = np.array([20.0, -3.0, 0.5])  # far outside of the data: not clipped
    reward = model.reward(member_of(ready_stacked(ensemble.members), 0), window, action, frame)
    np.testing.assert_allclose(reward, toy_reward_numpy(window[0], action, frame))


def test_the_first_carry_is_the_window():
    task = make_toy_task()
    model = StackedModel(task, measure_scales(make_toy_log(task), task))
    window = jnp.ones((2, 3))
    assert_same_bits(model.start(None, window), window)


# Training


def alone(task, log, settings, key, index):
    """One member trained by itself, with an ordinary loop and a loss written once more."""
    untrained = init_stacked(log, task, settings, key)
    _, train_key = jax.random.split(key)
    member, scales = member_of(untrained.members, index), untrained.scales
    rows, first_rows = log.observation_rows, log.first_rows
    transitions = np.flatnonzero(log.has_successor)
    ages = np.arange(task.history)
    windows = log.observations[np.maximum(rows[:, None] - ages, first_rows[:, None])]
    frames = log.observations[rows + 1]
    targets = frames[:, [1, 0]] - (task.target == "delta") * windows[:, 0, [1, 0]]
    inputs = np.hstack(
        [
            standardised(windows, scales.frame).reshape(len(rows), -1),
            standardised(log.actions, scales.action),
        ]
    )
    data = (
        inputs,
        standardised(targets, scales.target),
        np.hstack([inputs, standardised(frames, scales.frame)]),
        standardised(log.rewards, scales.reward),
    )

    def loss(member, inputs, targets, reward_inputs, rewards):
        errors = apply_network(plain(member.dynamics), inputs) - targets
        total = jnp.mean(errors**2)
        if member.reward is not None:
            reward_errors = apply_network(plain(member.reward), reward_inputs)[:, 0] - rewards
            total = total + jnp.mean(reward_errors**2)
        return total

    optimiser = optax.adam(settings.learning_rate)

    @jax.jit
    def train(member, state, *batch):
        changes, state = optimiser.update(jax.grad(loss)(member, *batch), state)
        return optax.apply_updates(member, changes), state

    state = optimiser.init(member)
    for epoch in range(settings.epochs):
        order_key, _ = jax.random.split(jax.random.fold_in(train_key, epoch))
        member_key = jax.random.split(order_key, settings.members)[index]
        order = np.asarray(jax.random.permutation(member_key, jnp.asarray(transitions)))
        for start in range(0, len(order) - settings.batch_size + 1, settings.batch_size):
            chosen = order[start : start + settings.batch_size]
            batch = [jnp.asarray(part[chosen], jnp.float32) for part in data]
            member, state = train(member, state, *batch)
    return member


def test_members_trained_together_are_members_trained_alone():
    task = make_toy_task(target="delta", is_reward_known=False)
    log = make_toy_log(task, unfinished=(2,))
    key = jax.random.key(4)
    together = fit_stacked(log, task, SETTINGS, key).members
    for index in range(SETTINGS.members):
        expected = alone(task, log, SETTINGS, key, index)
        assert_close(member_of(together, index), expected, rtol=1e-4, atol=1e-5)
    assert differ(member_of(together, 0), member_of(together, 1))
    # And a member does not depend on how many others there are.
    single = SETTINGS.model_copy(update={"members": 1})
    only = fit_stacked(log, task, single, key).members
    assert_close(member_of(only, 0), member_of(together, 0), rtol=1e-4, atol=1e-5)


def test_seeds_together_are_seeds_in_turn():
    task = make_toy_task(target="delta", is_reward_known=False)
    log = make_toy_log(task, unfinished=(2,))
    keys = jax.random.split(jax.random.key(9), 2)
    together = fit_stacked(log, task, SETTINGS, keys)
    for seed, key in enumerate(keys):
        one = fit_stacked(log, task, SETTINGS, key)
        assert_close(member_of(together.members, seed), one.members, rtol=1e-4, atol=1e-5)
        assert_same_bits(together.scales, one.scales)
    assert differ(member_of(together.members, 0), member_of(together.members, 1))


def test_the_loss_is_the_mean_over_members_and_falls():
    task = make_toy_task()
    log = make_toy_log(task, episodes=10)
    settings = SETTINGS.model_copy(update={"epochs": 30})
    journal = MemoryJournal()
    fit_stacked(log, task, settings, jax.random.key(0), journal=journal)
    losses = [float(line[2]["loss"]) for line in journal.lines]
    assert 0.5 < losses[0] < 2.0  # standardised targets: about 1 before training
    assert losses[-1] < 0.6 * losses[0]


def test_placeholders_are_never_learned_from():
    task = make_toy_task(target="delta", is_reward_known=False)
    log = make_toy_log(task, unfinished=(0, 3))
    poison = log.observations.copy()
    assert (~log.is_observed).sum() == 2
    poison[~log.is_observed] = 1e30
    clean = fit_stacked(log, task, SETTINGS, jax.random.key(0))
    poisoned = fit_stacked(altered(log, observations=poison), task, SETTINGS, jax.random.key(0))
    assert_same_bits(poisoned, clean)
