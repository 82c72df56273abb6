"""The shared equations of Q-learning, each against an independent version in NumPy."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.algorithms import critics
from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.errors import DataError
from toys import make_toy_log, make_toy_task, q_numpy

mean_discrepancy = jax.jit(critics.mean_discrepancy, static_argnums=(2, 3))


def make_pair():
    """Two critics of three signals and two actions."""
    task = make_toy_task(num_actions=2, history=1)
    return critics.init_critics(task, (8,), 2, jax.random.key(0))


def mmd_numpy(first, second, kernel, width):
    """Loops over pairs, in float64."""

    def k(x, y):
        gap = np.sum(np.abs(x - y)) if kernel == "laplacian" else np.sum((x - y) ** 2)
        return np.exp(-gap / (2 * width))

    def mean_k(xs, ys):
        return np.mean([k(x, y) for x, y in itertools.product(xs, ys)])

    cross = mean_k(first, second)
    return np.sqrt(mean_k(first, first) + mean_k(second, second) - 2 * cross + 1e-6)


@pytest.mark.parametrize(("kernel", "width"), [("laplacian", 10.0), ("gaussian", 20.0)])
def test_the_discrepancy_of_samples(kernel, width):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(3, 5, 2)) * 3, rng.normal(size=(3, 4, 2)) + 2
    found = mean_discrepancy(
        jnp.asarray(first, jnp.float32), jnp.asarray(second, jnp.float32), kernel, width
    )
    expected = [mmd_numpy(x, y, kernel, width) for x, y in zip(first, second, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    other = {"laplacian": "gaussian", "gaussian": "laplacian"}[kernel]
    assert not np.isclose(found[0], mmd_numpy(first[0], second[0], other, width), rtol=1e-2)


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian"])
def test_the_same_samples_have_no_discrepancy_and_a_finite_gradient(kernel):
    samples = jnp.asarray(np.random.default_rng(1).normal(size=(2, 5, 3)), jnp.float32)
    found, gradient = jax.jit(
        jax.value_and_grad(lambda x: jnp.mean(mean_discrepancy(x, samples, kernel, 10.0)))
    )(samples)
    np.testing.assert_allclose(found, 1e-3, atol=2e-4)
    assert np.isfinite(gradient).all()


def test_the_soft_clipped_value_is_mixed_first_and_the_best_taken_then():
    pair = make_pair()
    rng = np.random.default_rng(2)
    states, actions = rng.normal(size=(6, 3)), rng.uniform(-1, 1, (6, 7, 2))
    found = jax.jit(critics.best_soft_clipped)(
        pair, jnp.asarray(states, jnp.float32), jnp.asarray(actions, jnp.float32)
    )
    repeated = np.repeat(states[:, None], 7, axis=1)
    table = np.stack([q_numpy(critic, repeated, actions) for critic in pair])
    low, high = table.min(axis=0), table.max(axis=0)
    mixed = 0.75 * low + 0.25 * high
    np.testing.assert_allclose(found, mixed.max(axis=1), rtol=1e-4, atol=1e-6)
    # The other orders are other numbers: the best of each critic, mixed, would be higher.
    best = table.max(axis=2)
    wrong = 0.75 * best.min(axis=0) + 0.25 * best.max(axis=0)
    assert np.abs(wrong - mixed.max(axis=1)).max() > 1e-3


def test_values_of_many_actions_are_those_of_each():
    pair = make_pair()
    rng = np.random.default_rng(3)
    states = jnp.asarray(rng.normal(size=(6, 3)), jnp.float32)
    actions = jnp.asarray(rng.uniform(-1, 1, (6, 4, 2)), jnp.float32)
    many = jax.jit(critics.q_values_of_many)(pair, states, actions)
    for i in range(4):
        one = jax.jit(critics.q_values)(pair, states, actions[:, i])
        np.testing.assert_allclose(many[:, :, i], one, rtol=1e-4, atol=1e-6)


def test_the_target_stops_at_a_true_end():
    rewards, continues = jnp.asarray([1.0, 2.0]), jnp.asarray([1.0, 0.0])
    batch = critics.Batch(None, None, rewards, None, continues)
    found = critics.td_target(batch, jnp.asarray([10.0, 10.0]), 0.9)
    np.testing.assert_allclose(found, [10.0, 2.0])


def test_the_loss_adds_the_critics_and_tells_the_size_of_q():
    pair = make_pair()
    rng = np.random.default_rng(4)
    states, actions, targets = rng.normal(size=(5, 3)), rng.normal(size=(5, 2)), rng.normal(size=5)
    batch = critics.Batch(
        jnp.asarray(states, jnp.float32), jnp.asarray(actions, jnp.float32), None, None, None
    )
    loss, metrics = jax.jit(critics.critic_loss)(pair, batch, jnp.asarray(targets, jnp.float32))
    table = np.stack([q_numpy(critic, states, actions) for critic in pair])
    np.testing.assert_allclose(loss, np.mean((table - targets) ** 2, axis=1).sum(), rtol=1e-4)
    np.testing.assert_allclose(metrics["mean_absolute_q"], np.abs(table).mean(), rtol=1e-4)
    assert metrics["critic_loss"] == loss


def test_slow_copies_move_by_their_rate():
    found = critics.polyak({"a": jnp.float32(1.0)}, {"a": jnp.float32(3.0)}, 0.005)
    np.testing.assert_allclose(found["a"], 1.01, rtol=1e-6)


def make_ended_log(task):
    """Three episodes of five steps: ended by the plant, ended unobserved, stopped unobserved."""
    rng = np.random.default_rng(5)
    parts = []
    for frames, terminated, truncated in ((6, True, False), (5, True, False), (5, False, True)):
        low, high = task.action_low, task.action_high
        actions = rng.uniform(low, high, (5, len(task.action_names)))
        parts.append(
            Episode(rng.normal(size=(frames, 3)), actions, np.arange(5.0), terminated, truncated)
        )
    return Dataset.from_episodes(parts, task.observation_names, task.action_names, {})


@pytest.mark.parametrize("inputs", ["raw", "standardised"])
def test_a_batch_holds_adjoining_windows_boxed_actions_and_true_ends(inputs):
    task = make_toy_task(num_actions=2, history=3)
    log = make_ended_log(task)
    experience = critics.make_experience(log, inputs)
    # All but the last transition of the third episode, of which the successor is unknown.
    np.testing.assert_array_equal(experience.usable, np.arange(14))
    draw = jax.jit(lambda key: critics.draw_batch(experience, task, 200, key))
    batch = jax.tree.map(np.asarray, draw(jax.random.key(0)))
    scale = experience.scale
    if inputs == "raw":
        assert (scale.mean == 0).all()
        assert (scale.deviation == 1).all()
    low, high = np.array(task.action_low), np.array(task.action_high)
    boxed = 2 * (log.actions - low) / (high - low) - 1
    seen = set()
    for i in range(200):
        (number,) = np.flatnonzero(np.isclose(boxed, batch.actions[i], atol=1e-5).all(axis=1))
        seen.add(int(number))
        episode, time = divmod(number, 5)
        rows = 6 * episode + np.maximum(time + 1 - np.arange(4), 0)
        frames = (log.observations[rows] - scale.mean) / scale.deviation
        np.testing.assert_allclose(batch.states[i], frames[1:].reshape(-1), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            batch.next_states[i], frames[:-1].reshape(-1), rtol=1e-4, atol=1e-5
        )
        assert batch.rewards[i] == time
        assert batch.continues[i] == (0.0 if time == 4 else 1.0)
    assert seen == set(range(14))


def test_a_log_of_which_nothing_followed_is_refused():
    task = make_toy_task(history=1)
    with pytest.raises(DataError, match="what followed"):
        critics.make_experience(make_toy_log(task, episodes=2, steps=1, unfinished=(0, 1)), "raw")
