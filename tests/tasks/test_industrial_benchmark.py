"""What a learner holds for known about the Industrial Benchmark is what the simulator does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.envs import behaviour
from moose.envs import industrial_benchmark as simulator
from moose.envs.collect import episode_keys, make_player
from moose.envs.plants import make_industrial_benchmark
from moose.tasks.industrial_benchmark import make_task

STEPS = 200
ROUNDING = 2.5e-7  # two float32 units: compilers may fuse a product and a sum


@pytest.fixture(scope="module")
def played():
    """Random actions that drive steerings into their bounds now and then."""
    plant = make_industrial_benchmark(70.0)
    act = behaviour.make_exploring(behaviour.bad, 0.5)
    return make_player(plant, act, history=6, steps=STEPS)(
        None, episode_keys(jax.random.key(0), 0, 4)
    )


def test_columns_and_bounds_are_the_simulators():
    task, plant = make_task(), make_industrial_benchmark()
    assert task.observation_names == plant.frame_names
    assert task.action_names == plant.action_names
    assert task.action_low == (-1.0,) * 3
    assert task.action_high == (1.0,) * 3


def test_the_physics_give_the_simulators_next_frame(played):
    task = make_task()
    frames = played.frames[:, :-1].reshape(-1, 6)
    next_frames = played.frames[:, 1:].reshape(-1, 6)
    predicted = next_frames[:, list(task.predicted)]
    actions = played.actions.reshape(-1, 3)
    found = jax.vmap(task.physics)(frames, actions, predicted)
    np.testing.assert_allclose(found, next_frames, rtol=ROUNDING)
    # The test has seen steerings at their bound as well as within.
    steerings = np.asarray(next_frames[:, 1:4])
    assert (steerings == 100.0).any()
    assert ((steerings > 0.0) & (steerings < 100.0)).any()


def test_the_reward_is_the_simulators(played):
    task = make_task()
    rewards = jax.vmap(jax.vmap(task.reward))(
        played.frames[:, :-1], played.actions, played.frames[:, 1:]
    )
    np.testing.assert_allclose(rewards, played.rewards, rtol=ROUNDING)
    fatigue, consumption = np.asarray(played.frames[:, 1:, 4:], np.float64).transpose(2, 0, 1)
    np.testing.assert_allclose(rewards, -(3 * fatigue + consumption) / 100, rtol=1e-5)


@pytest.mark.parametrize("name", ["STEERING_STEPS", "FRAME_NAMES", "ACTION_NAMES", "REWARD_SCALE"])
def test_known_constants_have_one_home(name):
    from moose.tasks import industrial_benchmark as known

    assert getattr(simulator, name) is getattr(known, name)


def test_steering_steps_are_the_papers():
    np.testing.assert_allclose(simulator.STEERING_STEPS, (1.0, 10.0, 5.75), rtol=1e-3)


def test_physics_are_differentiable_in_the_action():
    task = make_task()
    frame = jnp.asarray([70.0, 50.0, 50.0, 50.0, 30.0, 100.0])
    slopes = jax.jacobian(task.physics, argnums=1)(frame, jnp.zeros(3), jnp.ones(2))
    np.testing.assert_allclose(slopes[1:4], np.diag(simulator.STEERING_STEPS), rtol=1e-6)
    np.testing.assert_array_equal(slopes[0], np.zeros(3))
    np.testing.assert_array_equal(slopes[4:], np.zeros((2, 3)))


def test_holding_moves_no_steering():
    task = make_task()
    frame = jnp.asarray([70.0, 12.0, 34.0, 56.0, 30.0, 100.0])
    held = task.physics(frame, jnp.asarray(task.hold_action), frame[4:])
    np.testing.assert_array_equal(held, frame)
