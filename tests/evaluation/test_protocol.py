"""The evaluation protocol: sums that are right, and the same luck for everybody."""

from __future__ import annotations

import gymnasium
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from moose.envs.plants import make_industrial_benchmark
from moose.errors import ConfigError
from moose.evaluation.protocol import (
    GymnasiumEvaluator,
    discounted_sum,
    evaluate,
    make_evaluator,
)
from moose.types import Plant


def make_plant():
    """Frames are random numbers; the reward is the new frame plus the action."""
    return Plant(
        name="noise",
        frame_names=("value",),
        action_names=("change",),
        reset=lambda key: jax.random.normal(key, (1,)),
        step=lambda state, action, key: jax.random.normal(key, (1,)),
        observe=lambda state: state,
        reward=lambda frame, action, next_frame: next_frame[0] + action[0],
    )


def constant(params, window, key):
    return params[None]


@given(
    rewards=hnp.arrays(
        np.float32,
        st.sampled_from([(1,), (40,), (3, 7), (2, 1, 5)]),  # each is compiled
        elements=st.floats(-1000, 1000, width=32),
    ),
    discount=st.sampled_from([0.0, 0.5, 0.97, 1.0]),
)
def test_discounted_sums_match_the_naive_loop(rewards, discount):
    expected = np.zeros(rewards.shape[:-1])
    for step in reversed(range(rewards.shape[-1])):
        expected = rewards[..., step] + discount * expected
    found = jax.jit(discounted_sum, static_argnums=1)(jnp.asarray(rewards), discount)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=0.02)


def test_discounted_sums_of_ones_are_geometric():
    found = discounted_sum(jnp.ones((3, 100)), 0.97)
    np.testing.assert_allclose(found, (1 - 0.97**100) / 0.03, rtol=1e-6)


def test_every_episode_has_its_return_and_the_policy_its_parameters():
    key = jax.random.key(0)
    measure = make_evaluator(make_plant(), constant, history=2, episodes=8, steps=10, discount=0.5)
    silent = measure(jnp.float32(0.0), key)
    acting = measure(jnp.float32(3.0), key)
    assert silent.shape == (8,)
    assert len(np.unique(silent)) == 8
    # The same key gives the same plants: only the action's own share differs.
    np.testing.assert_allclose(acting - silent, 3 * (1 - 0.5**10) / 0.5, rtol=1e-5)
    assert not np.any(silent == measure(jnp.float32(0.0), jax.random.key(1)))
    once = evaluate(
        make_plant(),
        constant,
        jnp.float32(0.0),
        history=2,
        episodes=8,
        steps=10,
        discount=0.5,
        key=key,
    )
    np.testing.assert_array_equal(once, silent)


@pytest.mark.parametrize(
    "change", [{"episodes": 0}, {"steps": 0}, {"discount": 1.5}, {"discount": float("nan")}]
)
def test_impossible_protocols_are_refused(change):
    settings = {"history": 1, "episodes": 2, "steps": 3, **change}
    with pytest.raises(ConfigError, match=next(iter(change))):
        make_evaluator(make_plant(), constant, **settings)


# Gymnasium environments


class Countdown(gymnasium.Env):
    """Pays 1 a step and ends after some steps, drawn at reset; the frame counts the steps."""

    def __init__(self, is_terminated=True):
        self.observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.is_terminated = is_terminated

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.steps_done = int(self.np_random.integers(1, 9)), 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps_done += 1
        is_over = self.steps_done >= self.length
        frame = np.array([self.steps_done], np.float32)
        return frame, 1.0, is_over and self.is_terminated, is_over and not self.is_terminated, {}


def playing(make_environment, act=constant, **settings):
    settings = {"history": 1, "episodes": 4, "steps": 20, "discount": 0.9} | settings
    evaluator = GymnasiumEvaluator(make_environment, act, **settings)
    returns = [evaluator(jnp.float32(0.0), jax.random.key(seed)) for seed in (0, 0, 1)]
    evaluator.close()
    return returns


@pytest.mark.parametrize("is_terminated", [True, False])
def test_an_episode_stops_when_it_is_over_and_is_not_begun_again(is_terminated):
    first, again, other = playing(lambda: Countdown(is_terminated), episodes=30)
    possible = [(1 - 0.9**length) / 0.1 for length in range(1, 9)]
    assert all(np.isclose(possible, value).any() for value in first)
    assert len(np.unique(first.round(6))) > 4
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_more_episodes_than_fit_side_by_side_are_played_in_groups():
    many, _, _ = playing(Countdown, episodes=70)
    few, _, _ = playing(Countdown, episodes=40)
    assert many.shape == (70,)
    np.testing.assert_array_equal(many[:40], few)


def test_the_policy_sees_its_history_newest_first_and_has_a_key_of_its_own():
    seen = []

    def act(params, window, key):
        jax.debug.callback(lambda *values: seen.append(values), window, jax.random.uniform(key))
        return jnp.zeros(1)

    playing(Countdown, act, history=3, episodes=1, steps=3)
    jax.effects_barrier()
    windows = [window[:, 0].tolist() for window, _ in seen]
    assert [0.0, 0.0, 0.0] in windows
    assert [2.0, 1.0, 0.0] in windows
    assert all(window in ([0, 0, 0], [1, 0, 0], [2, 1, 0]) for window in windows)
    assert len({float(luck) for _, luck in seen}) == len(windows) / 3 * 2  # one of two is repeated


def test_pendulum_agrees_with_a_loop_by_hand():
    def act(params, window, key):
        return jnp.clip(-window[0, 2:] * 0.5, -2.0, 2.0)

    settings = {"history": 1, "episodes": 3, "steps": 30, "discount": 0.95}
    evaluator = GymnasiumEvaluator(lambda: gymnasium.make("Pendulum-v1"), act, **settings)
    key = jax.random.key(5)
    found = evaluator(None, key)
    evaluator.close()
    expected = []
    for episode in range(3):
        seed = int(jax.random.bits(jax.random.fold_in(key, episode))) >> 1
        environment = gymnasium.make("Pendulum-v1")
        frame, _ = environment.reset(seed=seed)
        total = 0.0
        for step in range(30):
            frame, reward, *_ = environment.step(np.clip(-frame[2:] * np.float32(0.5), -2, 2))
            total += 0.95**step * reward
        expected.append(total)
        environment.close()
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_both_evaluators_agree_on_the_industrial_benchmark():
    """The same plant behind both doors: other random streams, the same distribution."""
    pytest.importorskip("scipy")
    from scipy.stats import ks_2samp

    from moose.envs.gymnasium_front import IndustrialBenchmarkEnv

    def act(target, window, key):
        return jnp.clip(target - window[0, 1:4], -1.0, 1.0)

    target, common = jnp.array([40.0, 50.0, 60.0]), {"history": 2, "steps": 40}
    evaluator = GymnasiumEvaluator(
        lambda: IndustrialBenchmarkEnv(70.0, history=1),
        act,
        **common,
        episodes=40,
        reward_scale=0.01,
    )
    theirs = evaluator(target, jax.random.key(0))
    evaluator.close()
    plant = make_industrial_benchmark(70.0)
    ours = evaluate(plant, act, target, **common, episodes=400, key=jax.random.key(1))
    assert ks_2samp(np.asarray(ours, np.float64), theirs).pvalue > 0.01
    error = np.hypot(np.std(ours) / 20, np.std(theirs) / np.sqrt(40))
    assert abs(float(np.mean(ours)) - theirs.mean()) < 4 * error
    # The comparison can fail: another target earns something else.
    worse = evaluate(plant, act, target - 30, **common, episodes=400, key=jax.random.key(1))
    assert ks_2samp(np.asarray(worse, np.float64), theirs).pvalue < 1e-6


def test_environments_without_flat_observations_are_refused():
    class Picture(Countdown):
        def __init__(self):
            super().__init__()
            self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (2, 2), np.float32)

    with pytest.raises(ConfigError, match="FlattenObservation"):
        GymnasiumEvaluator(Picture, constant, history=1, episodes=2)
    with pytest.raises(ConfigError, match="episodes"):
        GymnasiumEvaluator(Countdown, constant, history=1, episodes=0)
