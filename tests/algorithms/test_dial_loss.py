"""The loss of a policy with a dial: its equations one by one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.algorithms import dial_loss
from moose.data.normalize import measure
from moose.models.actor import DialActor, act_at
from moose.models.behaviour import behaviour_action
from moose.models.networks import apply_network, init_network
from moose.models.recurrent_scales import physical_scale
from toys import make_toy_log, make_toy_task


@pytest.fixture(scope="module")
def task():
    return make_toy_task(history=2)


@pytest.fixture(scope="module")
def log(task):
    return make_toy_log(task)


@pytest.mark.parametrize("sees", ["given", "all"])
def test_a_widened_search_acts_as_the_narrow_one(task, log, sees):
    search = dial_loss.SearchSettings(sees=sees)
    columns = dial_loss.seen_columns(task, search)
    assert columns == ((2,) if sees == "given" else (0, 1, 2))
    frame = measure(log.observations)
    known = physical_scale(frame, task)
    known = type(known)(known.mean + 0.3, known.deviation * 2.0, known.minimum, known.maximum)
    network = init_network(jax.random.key(0), (2 * len(columns) + 1, 5, 2))
    whole = dial_loss.widened(network, frame, known, task, columns)
    actor = DialActor(init_network(jax.random.key(1), (6, 4, 2)), whole, frame, position=1.0)
    window = jnp.asarray(log.observations[:2])
    for position in (0.0, 0.3, 1.0):
        place = jnp.float32(position)
        narrow = dial_loss.found_action(network, known, window, columns, place)
        behaviour = behaviour_action(actor.behaviour, frame, window)
        low, high = np.array(task.action_low), np.array(task.action_high)
        box = (1 - position) * np.asarray(behaviour) + position * np.asarray(narrow)
        expected = (low + high) / 2 + box * (high - low) / 2
        np.testing.assert_allclose(act_at(actor, task, window, place), expected, atol=1e-5)
    if sees == "given":  # what physics does not give has no influence on what was found
        other = window.at[:, :2].add(5.0)
        at_one = jnp.float32(1.0)
        np.testing.assert_allclose(
            act_at(actor, task, other, at_one), act_at(actor, task, window, at_one), atol=1e-6
        )


def test_an_untrained_search_holds_still_or_keeps_to_the_middle(task):
    inputs = jax.random.normal(jax.random.key(2), (50, 7))
    network = dial_loss.init_search(jax.random.key(0), (7, 16, 2), task)
    middle = jnp.tanh(jax.vmap(lambda x: apply_network(network, x))(inputs))
    assert float(jnp.abs(middle).max()) < 0.05
    holding = make_toy_task(history=2)
    holding = type(holding)(**{**vars(holding), "hold_action": (0.0, 0.75)})
    network = dial_loss.init_search(jax.random.key(0), (7, 16, 2), holding)
    found = jnp.tanh(jax.vmap(lambda x: apply_network(network, x))(inputs))
    # 0 in [-1, 2] is a third of the way down, 0.75 in [0.5, 1.5] half of it.
    np.testing.assert_allclose(found, np.tile([-1 / 3, -0.5], (50, 1)), atol=0.05)


def test_the_distance_from_the_behaviour_is_its_equation(task):
    rng = np.random.default_rng(0)
    horizon, models, starts, discount = 3, 2, 4, 0.9
    shape = (horizon, models, starts, 2)
    known, found = rng.uniform(-1, 1, (2, *shape)).astype(np.float32)
    positions = rng.uniform(0, 1, starts).astype(np.float32)
    low, high = np.array(task.action_low), np.array(task.action_high)
    strayed = np.zeros(shape[:-1], np.float32)
    expected = np.zeros(starts)
    for time, model, start in np.ndindex(*shape[:-1]):
        at = (time, model, start)
        action, strayed[at] = dial_loss.between(
            jnp.asarray(known[at]), jnp.asarray(found[at]), jnp.asarray(positions[start]), task
        )
        box = (np.asarray(action) - (low + high) / 2) / ((high - low) / 2)
        meant = (1 - positions[start]) * known[at] + positions[start] * found[at]
        np.testing.assert_allclose(box, meant, atol=1e-5)
        expected[start] += discount**time * np.sum((box - known[at]) ** 2) / horizon / models
    mean = dial_loss.mean_strayed(jnp.asarray(strayed), discount)
    np.testing.assert_allclose(mean, expected, rtol=1e-4)
