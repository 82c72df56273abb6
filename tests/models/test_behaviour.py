"""The clone of a log's behaviour, beside which others search."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.models.behaviour import (
    BehaviourSettings,
    behaviour_action,
    fit_behaviour,
    measure_drawn,
)
from moose.tasks.task import to_box
from toys import make_toy_log, make_toy_task


@pytest.fixture(scope="module")
def log():
    return make_toy_log(make_toy_task(history=2))


def test_a_clone_does_what_the_log_did():
    task = make_toy_task(history=2)
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(10):
        frames = rng.uniform(-1.0, 1.0, (31, 3))
        wanted = np.stack([0.5 + frames[:-1, 0], 1.0 - 0.3 * frames[:-1, 2]], axis=1)
        episodes.append(Episode(frames, wanted, np.zeros(30)))
    log = Dataset.from_episodes(episodes, task.observation_names, task.action_names, {})
    settings = BehaviourSettings(hidden=(16,), updates=600, batch_size=64, learning_rate=1e-2)
    frame = measure_drawn(log, settings.early_share)
    network = fit_behaviour(log, task, settings, frame, jax.random.key(0))
    windows = jnp.asarray(np.stack([log.observations[[i + 1, i]] for i in range(20)]))
    found = jax.vmap(lambda window: behaviour_action(network, frame, window))(windows)
    expected = jax.vmap(lambda action: to_box(action, task))(jnp.asarray(log.actions[1:21]))
    assert float(jnp.sqrt(jnp.mean((found - expected) ** 2))) < 0.05


def test_drawn_statistics_are_those_of_early_frames_with_the_whole_range(log):
    early, even = measure_drawn(log, 1.0), measure_drawn(log, 0.0)
    np.testing.assert_allclose(even.mean, log.observations.mean(0), atol=0.05)
    assert not np.allclose(early.mean, even.mean, atol=0.01)
    for one in (early, even):
        np.testing.assert_array_equal(one.minimum, log.observations.min(axis=0))
        np.testing.assert_array_equal(one.maximum, log.observations.max(axis=0))
