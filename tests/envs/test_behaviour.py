"""The behaviour policies against their formulas, and the noise that is mixed into them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.envs import behaviour
from moose.envs.industrial_benchmark import FRAME_HIGH, STEERING_STEPS, steer

MEAN = np.array([55.0, 48.75, 50.53, 49.45, 37.51, 166.33])
DEVIATION = np.array([28.72, 12.31, 29.91, 29.22, 31.17, 139.44])
ALL = {
    **behaviour.POLICIES,
    "hold": behaviour.hold,
    "set point": behaviour.make_set_point(*behaviour.BEST_SET_POINT),
}


def windows(count, frames=behaviour.HISTORY, seed=0):
    high = np.minimum(FRAME_HIGH, [100, 100, 100, 100, 150, 400])
    return np.random.default_rng(seed).uniform(0, high, (count, frames, 6)).astype(np.float32)


def formula(name, window):
    """The policies as they are written down, in double precision."""
    window = window.astype(np.float64)
    v, g, h = window[0, 1:4]
    z = (window - MEAN) / DEVIATION
    p0, v5, f3, h3, h4 = z[0, 0], z[5, 1], z[3, 4], z[3, 3], z[4, 3]
    action = {
        "bad": [100 - v, 100 - g, 100 - h],
        "mediocre": [25 - v, 25 - g, 25 - h],
        "optimized": [-v5 - 0.91, 2 * f3 - p0 + 1.43, -3.48 * h3 - h4 + 2 * p0 + 0.81],
    }[name]
    return np.clip(action, -1, 1)


@pytest.mark.parametrize("name", behaviour.POLICIES)
def test_policies_follow_their_formulas(name):
    batch = windows(500)
    batch[::3, 0, 1:4] = [25.3, 24.6, 99.9]  # near the targets, where nothing is clipped
    found = np.asarray(jax.jit(jax.vmap(behaviour.POLICIES[name]))(jnp.asarray(batch)))
    expected = np.stack([formula(name, window) for window in batch])
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.any(np.abs(expected) < 1)


@pytest.mark.parametrize("name", ALL)
def test_policies_keep_type_bounds_and_need_no_more_than_their_history(name):
    policy = jax.jit(ALL[name])
    for window in windows(20, frames=30):
        action = policy(jnp.asarray(window))
        assert action.shape == (3,)
        assert action.dtype == jnp.float32
        assert np.all(np.abs(action) <= 1)
        np.testing.assert_array_equal(action, policy(jnp.asarray(window[: behaviour.HISTORY])))


def test_the_optimized_policy_reads_the_oldest_frame_of_its_history():
    window = np.tile(np.float32([70, 40, 50, 60, 30, 100]), (behaviour.HISTORY, 1))
    other = window.copy()
    other[behaviour.HISTORY - 1, 1] += 5
    action, changed = behaviour.optimized(window), behaviour.optimized(other)
    assert action[0] != changed[0]


def test_hold_does_nothing():
    np.testing.assert_array_equal(behaviour.hold(jnp.asarray(windows(1)[0])), np.zeros(3))


@pytest.mark.parametrize("target", [(40.0, 49.5, 60.5), (0.0, 100.0, 50.0), (50.3, 47.0, 52.1)])
def test_a_set_point_is_reached_as_fast_as_may_be_and_kept(target):
    policy = behaviour.make_set_point(*target)
    frame = jnp.asarray([70.0, 50.0, 50.0, 50.0, 30.0, 100.0])
    needed = np.ceil(np.abs(np.subtract(target, 50.0)) / STEERING_STEPS - 1e-6).astype(int)
    advance = jax.jit(lambda frame: frame.at[1:4].set(steer(frame, policy(frame[None]))))
    for time in range(1, 56):
        frame = advance(frame)
        is_due = time >= needed
        np.testing.assert_allclose(frame[1:4][is_due], np.array(target)[is_due], atol=1e-4)
        assert not np.any(np.isclose(frame[1:4], target, atol=1e-3) & ~is_due)


def play(epsilon, count=20_000):
    act = behaviour.make_exploring(behaviour.bad, epsilon)
    window = jnp.asarray(windows(1)[0]).at[0, 1:4].set(10.0)  # where bad says (1, 1, 1)
    keys = jax.random.split(jax.random.key(3), count)
    return np.asarray(jax.jit(jax.vmap(lambda key: act(None, window, key)))(keys))


def test_without_noise_the_policy_acts():
    np.testing.assert_array_equal(play(0.0), 1.0)


@pytest.mark.parametrize("epsilon", [0.2, 0.6, 1.0])
def test_noise_replaces_the_whole_action_as_often_as_it_should(epsilon):
    actions = play(epsilon)
    is_random = (actions != 1.0).any(axis=1)
    # All three numbers are replaced together.
    assert (actions[is_random] != 1.0).all()
    error = np.sqrt(epsilon * (1 - epsilon) / len(actions))
    assert abs(is_random.mean() - epsilon) <= 4 * error + 1e-9


def test_random_actions_are_uniform_and_independent():
    actions = play(1.0)
    assert actions.min() >= -1
    assert actions.max() < 1
    counts, _ = np.histogram(actions, bins=20, range=(-1, 1))
    expected = actions.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-square, 19 degrees, p = 0.001
    correlation = np.corrcoef(actions.T) - np.eye(3)
    assert np.abs(correlation).max() < 4 / np.sqrt(len(actions))


def test_whether_to_explore_does_not_tell_what_is_explored():
    # The same random numbers decide both; at small epsilon the actions must still fill the range.
    actions = play(0.2)
    explored = actions[(actions != 1.0).any(axis=1)]
    assert np.abs(explored.mean(axis=0)).max() < 4 * np.sqrt(1 / 3 / len(explored))
    np.testing.assert_allclose(explored.std(axis=0), np.sqrt(1 / 3), rtol=0.03)
