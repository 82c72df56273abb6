"""Held-out model errors: exact models make none, and a known drift makes a known one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.errors import DataError
from moose.models.accuracy import measure_model_errors, reached_horizon
from toys import make_toy_task


class DriftingModel:
    """Knows the plant below exactly, but for a constant that each member adds to y every step."""

    def start(self, member, window):
        return window[0]

    def step(self, member, carry, action):
        frame = carry + jnp.stack([action[0], 2 * action[0] + member, action[0] * 0])
        return frame, frame

    def reward(self, member, window, action, frame):
        return frame[0]


def make_walk(lengths=(40, 25, 12), seed=0, last_is_known=True):
    rng = np.random.default_rng(seed)
    episodes = []
    for length in lengths:
        actions = rng.normal(size=(length, 1))
        steps = np.concatenate([actions, 2 * actions, 0 * actions], axis=1)
        frames = np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])
        frames = frames if last_is_known else frames[:-1]
        episodes.append(Episode(frames, actions, np.zeros(length)))
    return Dataset.from_episodes(episodes, ("x", "y", "lever"), ("push",), {})


def measure(drifts, dataset, horizon=10):
    task = make_toy_task(num_actions=1, history=3)
    return measure_model_errors(
        DriftingModel(),
        jnp.asarray(drifts, jnp.float32),
        dataset,
        task,
        horizon=horizon,
        num_starts=200,
        key=jax.random.key(0),
    )


@pytest.mark.parametrize("last_is_known", [True, False])
def test_an_exact_model_makes_no_error(last_is_known):
    errors = measure([0.0], make_walk(last_is_known=last_is_known))
    np.testing.assert_allclose(errors.by_step, 0.0, atol=1e-4)
    assert (errors.baseline[1:] > errors.by_step[1:]).all()


def test_the_error_of_a_drift_grows_with_its_steps():
    errors = measure([0.5, 1.0], make_walk())
    y, x = errors.by_step.T  # the toy task predicts y, then x
    np.testing.assert_allclose(x, 0.0, atol=1e-4)
    # Every step adds the drift once more, and members are averaged.
    np.testing.assert_allclose(y / y[0], np.arange(1, 11), rtol=1e-3)


def test_episodes_that_are_too_short_are_said_to_be():
    assert measure([0.0], make_walk(), horizon=40).by_step.shape == (40, 2)
    with pytest.raises(DataError, match="41 steps"):
        measure([0.0], make_walk(), horizon=41)


@pytest.mark.parametrize(
    ("lengths", "horizon"),
    [
        ([30, 30], 20),
        ([15, 15], 15),
        ([12, 3, 3, 3, 3], 12),  # half of the steps
        ([11, 3, 3, 3, 3], 3),  # the plant ends most of what is logged early
        ([1, 1], 1),
    ],
)
def test_a_horizon_is_reached_by_half_of_the_log(lengths, horizon):
    parts = [Episode(np.zeros((n + 1, 1)), np.zeros((n, 1)), np.zeros(n)) for n in lengths]
    assert reached_horizon(Dataset.from_episodes(parts, ("x",), ("a",), {}), 20) == horizon


def test_a_frame_that_was_not_logged_cannot_be_compared_with():
    log = Dataset.from_episodes(
        [Episode(np.zeros((8, 1)), np.zeros((8, 1)), np.zeros(8))], ("x",), ("a",), {}
    )
    assert reached_horizon(log, 20) == 7
