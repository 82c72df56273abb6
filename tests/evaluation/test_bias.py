"""Model bias: none for a model that is the plant, the known one for a model that drifts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from moose.data.normalize import Statistics
from moose.evaluation.bias import measure_bias
from moose.types import Plant
from toys import make_toy_task

SCALE = Statistics(*(jnp.asarray([m] * 3, jnp.float32) for m in (0.0, 2.0, -1.0, 1.0)))


class NearlyThePlant:
    def start(self, member, window):
        return window[0]

    def step(self, member, carry, action):
        frame = advance(carry, action) + jnp.stack([member, jnp.zeros(()), jnp.zeros(())])
        return frame, frame

    def reward(self, member, window, action, frame):
        return frame[0]


def advance(frame, action):
    return frame + jnp.stack([action[0], -action[0], jnp.zeros(())])


def make_plant():
    return Plant(
        name="walk",
        frame_names=("x", "y", "lever"),
        action_names=("push",),
        reset=lambda key: jax.random.normal(key, (3,)),
        step=lambda state, action, key: advance(state, action),
        observe=lambda state: state,
        reward=lambda frame, action, next_frame: next_frame[0],
    )


def measure(drifts):
    task = make_toy_task(num_actions=1, history=2, horizon=6, discount=0.9)
    return measure_bias(
        lambda window: 0.1 * window[0, :1],
        NearlyThePlant(),
        jnp.asarray(drifts, jnp.float32),
        SCALE,
        task,
        make_plant(),
        episodes=20,
        key=jax.random.key(1),
    )


def test_the_plant_itself_has_no_bias():
    bias = measure([0.0, 0.0])
    np.testing.assert_allclose(bias.by_step, 0.0, atol=1e-5)
    assert abs(bias.total) < 1e-4
    assert abs(bias.over_promise) < 1e-4


def test_a_drift_is_measured_in_deviations_and_over_promises():
    bias = measure([0.3])
    assert bias.by_step.shape == (6,)
    # One step: the drift of 0.3 over the deviation of 2; it is fed back through the policy later.
    np.testing.assert_allclose(bias.by_step[0], 0.15, rtol=1e-4)
    assert (np.diff(bias.by_step) > 0.15 * 0.99).all()
    np.testing.assert_allclose(bias.total, bias.by_step.sum(), rtol=1e-5)
    assert bias.over_promise > 0
    # The mean over members.
    np.testing.assert_allclose(measure([0.3, 0.3]).by_step, bias.by_step, rtol=1e-5)
