"""DDPG: its targets, the order of its steps, and that it is left to diverge."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from moose.algorithms import ddpg
from toys import (
    MemoryJournal,
    altered,
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
    config = ddpg.Config(hidden=(8,), batch_size=16, target_rate=0.25, discount=0.8)
    optimiser = optax.adam(config.learning_rate)
    before = ddpg.init_state(task, config, optimiser, jax.random.key(0))
    # Targets of their own, so that it shows which network is used where.
    other = ddpg.init_state(task, config, optimiser, jax.random.key(2))
    before = before._replace(target_actor=other.target_actor, target_critics=other.target_critics)
    update = ddpg.make_update(task, config, optimiser)
    return step_once(task, config, before, update, key, key, 1)


def test_the_target_is_the_slow_critic_at_the_slow_policy(stepped):
    batch, before = stepped.batch, stepped.before
    next_actions = np.tanh(apply_numpy(before.target_actor, batch.next_states))
    next_values = q_numpy(before.target_critics[0], batch.next_states, next_actions)
    targets = batch.rewards + 0.8 * batch.continues * next_values
    errors = q_numpy(before.critics.params[0], batch.states, batch.actions) - targets
    np.testing.assert_allclose(stepped.metrics["critic_loss"], np.mean(errors**2), rtol=1e-4)


def test_the_policy_is_judged_by_the_critic_after_its_step(stepped):
    batch, after = stepped.batch, stepped.after
    assert differ(stepped.before.critics.params, after.critics.params)
    actions = np.tanh(apply_numpy(stepped.before.actor.params, batch.states))
    value = np.mean(q_numpy(after.critics.params[0], batch.states, actions))
    np.testing.assert_allclose(stepped.metrics["policy_loss"], -value, rtol=1e-4)


def test_the_slow_copies_follow_last(stepped):
    before, after = stepped.before, stepped.after
    assert_close(after.target_actor, moved(before.target_actor, after.actor.params, 0.25))
    assert_close(after.target_critics, moved(before.target_critics, after.critics.params, 0.25))


def test_huge_values_do_not_stop_it():
    task, journal = make_toy_task(history=1), MemoryJournal()
    log = make_toy_log(task)
    log = altered(log, rewards=log.rewards * np.float32(1e10))
    config = ddpg.Config(hidden=(8,), updates=20, checks=1)
    fitted = ddpg.fit(log, task, config, jax.random.key(0), journal=journal)
    losses = [float(metrics["critic_loss"]) for _, _, metrics in journal.lines]
    assert len(losses) == 20
    assert min(losses) > 1e18
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(fitted))
