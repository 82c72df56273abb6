"""The loop that plays a policy in a plant, on a plant simple enough to know every number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from moose.envs import behaviour
from moose.envs.collect import episode_keys, make_player
from moose.envs.plants import make_industrial_benchmark
from moose.types import Plant


def make_counter():
    """A plant that adds the action to its state and shows the time beside it."""

    def reset(key):
        return jnp.asarray([0.0, 10.0])

    def step(state, action, key):
        return state + jnp.stack([jnp.ones(()), action[0]])

    def reward(frame, action, next_frame):
        return 100.0 * frame[0] + 10.0 * action[0] + next_frame[1]

    return Plant("counter", ("time", "level"), ("change",), reset, step, lambda s: s, reward)


def make_noisy():
    """A plant whose frames are its random numbers."""

    def step(state, action, key):
        return jax.random.normal(key, (2,))

    return Plant(
        "noise",
        ("a", "b"),
        ("change",),
        lambda key: jax.random.normal(key, (2,)),
        step,
        lambda state: state,
        lambda frame, action, next_frame: next_frame[0],
    )


def random_act(params, window, key):
    return jax.random.normal(key, (1,))


def test_frames_actions_and_rewards_belong_together():
    def act(params, window, key):
        return params * window[0, :1]  # the time

    play = make_player(make_counter(), act, history=3, steps=4)
    frames, actions, rewards = play(jnp.float32(2.0), episode_keys(jax.random.key(0), 0, 2))
    assert frames.shape == (2, 5, 2)
    assert actions.shape == (2, 4, 1)
    assert rewards.shape == (2, 4)
    np.testing.assert_array_equal(frames[0], [[0, 10], [1, 10], [2, 12], [3, 16], [4, 22]])
    np.testing.assert_array_equal(actions[0, :, 0], [0, 2, 4, 6])
    np.testing.assert_array_equal(rewards[0], [10, 132, 256, 382])


def test_windows_are_newest_first_and_begin_with_copies_of_the_first_frame():
    seen = []

    def act(params, window, key):
        jax.debug.callback(lambda w: seen.append(np.asarray(w[:, 0])), window, ordered=True)
        return jnp.ones(1)

    play = make_player(make_counter(), act, history=3, steps=4)
    # Ordered callbacks cannot be batched; one episode without the outer vmap shows the same.
    with jax.disable_jit():
        play(None, episode_keys(jax.random.key(0), 0, 1))
    assert [window.ravel().tolist() for window in seen] == [
        [0, 0, 0],
        [1, 0, 0],
        [2, 1, 0],
        [3, 2, 1],
    ]


def test_an_episode_depends_on_its_own_key_only():
    play = make_player(make_noisy(), random_act, history=2, steps=6)
    key = jax.random.key(5)
    together = play(None, episode_keys(key, 0, 7))
    for first, count in ((0, 3), (3, 4)):
        part = play(None, episode_keys(key, first, count))
        for whole, piece in zip(together, part, strict=True):
            np.testing.assert_array_equal(whole[first : first + count], piece)


def test_the_first_steps_do_not_depend_on_the_number_of_steps():
    keys = episode_keys(jax.random.key(5), 0, 3)
    short = make_player(make_noisy(), random_act, history=2, steps=4)(None, keys)
    long = make_player(make_noisy(), random_act, history=2, steps=9)(None, keys)
    np.testing.assert_array_equal(short.frames, long.frames[:, :5])
    np.testing.assert_array_equal(short.actions, long.actions[:, :4])


def test_no_random_number_is_used_twice():
    play = make_player(make_noisy(), random_act, history=2, steps=50)
    frames, actions, _ = play(None, episode_keys(jax.random.key(5), 0, 4))
    numbers = np.concatenate([np.ravel(frames), np.ravel(actions)])
    assert len(np.unique(numbers)) == len(numbers)


def test_the_real_plant_plays_its_known_part():
    plant = make_industrial_benchmark(30.0)
    act = behaviour.make_exploring(behaviour.mediocre, 0.5)
    play = make_player(plant, act, history=behaviour.HISTORY, steps=20)
    frames, actions, rewards = (
        np.asarray(x) for x in play(None, episode_keys(jax.random.key(0), 0, 5))
    )
    assert frames.dtype == actions.dtype == rewards.dtype == np.float32
    np.testing.assert_array_equal(frames[:, :, 0], 30.0)
    np.testing.assert_array_equal(frames[:, 0, 1:4], 50.0)
    steps = np.float32([1.0, 10.0, 20 * np.sin(np.radians(15)) / 0.9])
    np.testing.assert_allclose(
        frames[:, 1:, 1:4], np.clip(frames[:, :-1, 1:4] + steps * actions, 0, 100), atol=1e-4
    )
    np.testing.assert_allclose(rewards, -(3 * frames[:, 1:, 4] + frames[:, 1:, 5]) / 100, rtol=1e-6)
