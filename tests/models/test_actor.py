"""The policy network: raw history in, raw bounded action out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.data.normalize import measure
from moose.models.actor import choose_action, init_actor
from toys import make_toy_log, make_toy_task


@pytest.mark.parametrize("num_actions", [1, 2])
@pytest.mark.parametrize("history", [1, 3])
def test_an_action_is_tanh_of_the_standardised_window_in_the_tasks_bounds(num_actions, history):
    task = make_toy_task(num_actions=num_actions, history=history)
    scale = measure(make_toy_log(task).observations)
    actor = init_actor(task, scale, (8,), jax.random.key(0))
    window = np.random.default_rng(0).normal(size=(history, 3)).astype(np.float32)

    features = ((window - scale.mean) / scale.deviation).reshape(-1)
    (first, last) = ((np.asarray(layer.weight), np.asarray(layer.bias)) for layer in actor.network)
    boxed = np.tanh(np.maximum(features @ first[0] + first[1], 0.0) @ last[0] + last[1])
    low, high = np.array(task.action_low), np.array(task.action_high)
    expected = low + (boxed + 1.0) / 2.0 * (high - low)

    action = choose_action(actor, task, jnp.asarray(window))
    assert action.shape == (num_actions,)
    np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-6)


def test_actions_stay_within_bounds_whatever_is_seen():
    task = make_toy_task(history=2)
    actor = init_actor(task, measure(make_toy_log(task).observations), (8,), jax.random.key(0))
    low, high = np.array(task.action_low), np.array(task.action_high)
    rng = np.random.default_rng(1)
    for size in (0.0, 1.0, 1e3, 1e20):
        windows = jnp.asarray(rng.uniform(-size, size, (50, 2, 3)), jnp.float32)
        actions = jax.vmap(lambda window: choose_action(actor, task, window))(windows)
        assert np.isfinite(actions).all()
        assert (actions >= low - 1e-6).all()
        assert (actions <= high + 1e-6).all()


def test_the_newest_frame_comes_first():
    task = make_toy_task(history=2)
    scale = measure(make_toy_log(task).observations)
    actor = init_actor(task, scale, (), jax.random.key(0))
    # A policy that reads the newest x only.
    weight = jnp.zeros((6, 2)).at[0, 0].set(1.0)
    actor = actor._replace(network=(actor.network[0]._replace(weight=weight, bias=jnp.zeros(2)),))
    window = jnp.asarray([[0.3, 0.0, 0.0], [-5.0, 1.0, 1.0]])
    expected = 0.5 + 1.5 * np.tanh((0.3 - scale.mean[0]) / scale.deviation[0])
    np.testing.assert_allclose(choose_action(actor, task, window)[0], expected, rtol=1e-5)
