"""Cloning: it finds the log's own policy, in the task's own units, with or without scaling."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.algorithms import clone
from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.models.actor import choose_action
from moose.models.supervised import make_table
from toys import make_toy_log, make_toy_task


def make_controlled_log(task, *, episodes=8, steps=60, seed=0):
    """A log in which each action is a function of the two newest values of the first signal."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(episodes):
        frames = rng.normal(size=(steps + 1, 3)) * np.array([5.0, 1.0, 0.1]) + 10
        before = np.concatenate([frames[:1, 0], frames[:-2, 0]])
        actions = 0.5 + 0.1 * (frames[:-1, :1] - before[:, None])
        parts.append(Episode(frames, np.clip(actions, -1.0, 2.0), np.zeros(steps)))
    return Dataset.from_episodes(parts, task.observation_names, task.action_names, {})


@pytest.mark.parametrize("inputs", ["raw", "standardised"])
def test_it_does_what_the_log_did(inputs):
    task = make_toy_task(num_actions=1, history=2)
    dataset = make_controlled_log(task)
    config = clone.Config(
        hidden=(32, 32), inputs=inputs, updates=1500, batch_size=64, learning_rate=3e-3, checks=1
    )
    actor = clone.fit(dataset, task, config, jax.random.key(0)).actor
    table = make_table(make_controlled_log(task, seed=1))
    chosen = jnp.arange(len(table.actions), dtype=jnp.int32)
    error = float(clone.cloning_loss(actor, table, task, chosen))
    spread = float(np.var(dataset.actions)) / 1.5**2  # the box is three wide
    assert error < 0.1 * spread


def test_the_loss_is_the_mean_square_in_the_box():
    task = make_toy_task(num_actions=2, history=2)
    dataset = make_toy_log(task, episodes=3, steps=10)
    actor = clone.fit(
        dataset, task, clone.Config(hidden=(4,), updates=1, checks=1), jax.random.key(0)
    ).actor
    table = make_table(dataset)
    chosen = jnp.asarray([0, 7, 25], jnp.int32)
    low, high = np.array(task.action_low), np.array(task.action_high)
    squares = []
    for i in np.asarray(chosen):
        row = int(dataset.observation_rows[i])
        older = max(row - 1, int(dataset.first_rows[i]))
        window = jnp.asarray(dataset.observations[[row, older]])
        difference = np.asarray(choose_action(actor, task, window)) - dataset.actions[i]
        squares.append((difference / ((high - low) / 2)) ** 2)
    loss = float(clone.cloning_loss(actor, table, task, chosen))
    np.testing.assert_allclose(loss, np.mean(squares), rtol=1e-5)


def test_last_transitions_count_though_nothing_was_observed_after_them():
    task = dataclasses.replace(make_toy_task(num_actions=1, history=1))
    dataset = make_toy_log(task, episodes=2, steps=1, unfinished=(0, 1))
    assert not dataset.has_successor.any()
    clone.fit(dataset, task, clone.Config(hidden=(4,), updates=2, checks=1), jax.random.key(0))
