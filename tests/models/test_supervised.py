"""Epochs and shuffles: what is seen, how often, and in which order."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from devices import with_devices
from moose.models.supervised import (
    FitInputs,
    FitSettings,
    fit_epochs,
    make_table,
    successors_of,
    windows_of,
)
from toys import MemoryJournal, assert_same_bits, make_toy_log, make_toy_task

TASK = make_toy_task(history=3)
LOG = make_toy_log(TASK, episodes=3, steps=9, unfinished=(1,))
KNOWN = np.setdiff1d(np.arange(27), [17])  # the last transition of episode 1 has no successor


def fit(loss, params, *, settings, key=None, members=None, journal=None):
    options = {} if journal is None else {"journal": journal}
    key = jax.random.key(0) if key is None else key
    inputs = FitInputs(make_table(LOG), None)
    return fit_epochs("toy", loss, params, inputs, settings, key, members=members, **options)


def watch(epochs, batch_size, members=None, seed=0):
    """The transitions that a loss was shown: [epochs, batches, (members,) B]."""
    seen = []

    def loss(params, inputs, chosen, key):
        jax.debug.callback(lambda rows: seen.append(np.array(rows)), chosen, ordered=True)
        return jnp.sum(params**2)

    settings = FitSettings(epochs=epochs, batch_size=batch_size)
    fit(loss, jnp.ones(1), settings=settings, key=jax.random.key(seed), members=members)
    jax.effects_barrier()
    return np.array(seen).reshape(epochs, -1, *seen[0].shape)


# The table


def test_only_transitions_with_a_known_successor_are_learned_from():
    np.testing.assert_array_equal(make_table(LOG).transitions, KNOWN)


def test_windows_and_successors_stay_within_their_episode():
    table = make_table(LOG)
    chosen = jnp.arange(27, dtype=jnp.int32)
    windows, successors = windows_of(table, chosen, 3), successors_of(table, chosen)
    for transition in KNOWN:
        episode, time = divmod(transition, 9)
        frames = LOG.observations[episode * 10 : episode * 10 + 10]
        expected = [frames[max(time - age, 0)] for age in range(3)]
        np.testing.assert_array_equal(windows[transition], expected)
        np.testing.assert_array_equal(successors[transition], frames[time + 1])


# Shuffles


@pytest.mark.parametrize(("batch_size", "num_batches"), [(5, 5), (13, 2), (26, 1), (500, 1)])
def test_an_epoch_shows_each_transition_at_most_once(batch_size, num_batches):
    seen = watch(2, batch_size)
    assert seen.shape == (2, num_batches, min(batch_size, 26))
    for epoch in seen:
        assert len(np.unique(epoch)) == epoch.size
        assert np.isin(epoch, KNOWN).all()
    if batch_size in (13, 26, 500):  # nothing is left over
        np.testing.assert_array_equal(np.sort(seen[0].ravel()), KNOWN)


def test_shuffles_differ_between_epochs_and_members():
    seen = watch(3, 13, members=2)
    assert seen.shape == (3, 2, 2, 13)
    orders = [seen[epoch, :, member].ravel() for epoch in range(3) for member in range(2)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), KNOWN)
    assert len({order.tobytes() for order in orders}) == 6


def test_shuffles_follow_the_seed():
    np.testing.assert_array_equal(watch(1, 13), watch(1, 13))
    assert (watch(1, 13, seed=1) != watch(1, 13)).any()


# The fit


def quadratic(params, inputs, chosen, key):
    frames = inputs.table.observations[inputs.table.rows[chosen]]
    noise = 0.1 * jax.random.normal(key, frames.shape)
    return jnp.mean((frames + noise - params[None]) ** 2)


def test_a_fit_is_adam_on_the_shuffled_batches():
    settings = FitSettings(epochs=2, batch_size=13, learning_rate=0.1)
    key = jax.random.key(5)
    inputs, params = FitInputs(make_table(LOG), None), jnp.zeros(3)
    optimiser = optax.adam(0.1)
    state = optimiser.init(params)
    losses = []
    value_and_grad = jax.jit(jax.value_and_grad(quadratic))
    for epoch in range(2):
        order_key, loss_key = jax.random.split(jax.random.fold_in(key, epoch))
        order = jax.random.permutation(order_key, inputs.table.transitions)
        for index in range(2):
            chosen = order[13 * index : 13 * (index + 1)]
            loss, gradient = value_and_grad(
                params, inputs, chosen, jax.random.fold_in(loss_key, index)
            )
            changes, state = optimiser.update(gradient, state)
            params = optax.apply_updates(params, changes)
            losses.append(loss)
    journal = MemoryJournal()
    found = fit(quadratic, jnp.zeros(3), settings=settings, key=key, journal=journal)
    np.testing.assert_allclose(found, params, rtol=1e-5)
    means = [line[2]["loss"] for line in journal.lines]
    np.testing.assert_allclose(means, np.reshape(losses, (2, 2)).mean(axis=1), rtol=1e-5)


def test_a_resumed_fit_ends_with_the_same_bits():
    settings = FitSettings(epochs=3, batch_size=13, learning_rate=0.1)
    expected = fit(quadratic, jnp.zeros(3), settings=settings)
    journal = MemoryJournal()
    journal.fail_at = ("toy", 2)
    with pytest.raises(KeyboardInterrupt):
        fit(quadratic, jnp.zeros(3), settings=settings, journal=journal)
    journal.fail_at = None
    assert_same_bits(fit(quadratic, jnp.zeros(3), settings=settings, journal=journal), expected)


# Several devices

SHARES = """
import jax, jax.numpy as jnp
import numpy as np
from moose.models.supervised import FitInputs, FitSettings, fit_epochs, make_table
from toys import make_toy_log, make_toy_task

jax.config.update("jax_enable_compilation_cache", False)  # what is not compiled is not looked at

def loss(params, inputs, chosen, key):
    jax.debug.inspect_array_sharding(
        chosen, callback=lambda sharding: print(sharding.shard_shape(chosen.shape))
    )
    return jnp.sum((params * inputs.table.rewards[chosen] - 1.0) ** 2)

members = {members}
params = jnp.ones(1) if members is None else jnp.ones((members, 1))
inputs = FitInputs(make_table(make_toy_log(make_toy_task(), episodes=3, steps=9)), None)
settings = FitSettings(epochs=2, batch_size=6, learning_rate=0.1)
params = fit_epochs("toy", loss, params, inputs, settings, jax.random.key(0), members=members)
print(np.array(params).ravel().tolist())
"""


@pytest.mark.parametrize(("members", "share"), [(None, "(3,)"), (4, "(2, 6)"), (3, "(3, 6)")])
def test_devices_share_out_members_or_a_batch(members, share):
    script = SHARES.format(members=members)
    one, two = (with_devices(count, "-c", script).splitlines() for count in (1, 2))
    assert share in two[:-1]
    np.testing.assert_allclose(json.loads(two[-1]), json.loads(one[-1]), rtol=1e-5)
