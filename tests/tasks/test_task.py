"""What a task knows and checks."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.config import digest
from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.errors import DataError
from moose.tasks.task import from_box, to_box
from toys import make_toy_log, make_toy_task


def test_predicted_columns_follow_the_names_and_not_their_order():
    assert make_toy_task().predicted == (1, 0)


def test_the_data_have_to_have_the_tasks_columns():
    task = make_toy_task()
    task.require(make_toy_log(task))
    episode = Episode(np.zeros((3, 3)), np.zeros((2, 2)), np.zeros(2))
    names = task.observation_names
    swapped = Dataset.from_episodes([episode], names[::-1], task.action_names, {})
    with pytest.raises(DataError, match="observation columns are lever, y, x") as caught:
        task.require(swapped)
    assert "expects x, y, lever" in str(caught.value)
    assert "task 'toy'" in caught.value.where
    renamed = Dataset.from_episodes([episode], names, ("push", "tug"), {})
    with pytest.raises(DataError, match="action columns are push, tug"):
        task.require(renamed)


def test_bounds_map_to_the_box_and_back():
    task = make_toy_task()
    low, high = jnp.asarray(task.action_low), jnp.asarray(task.action_high)
    np.testing.assert_allclose(to_box(low, task), [-1.0, -1.0], atol=1e-6)
    np.testing.assert_allclose(to_box(high, task), [1.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(to_box((low + high) / 2, task), [0.0, 0.0], atol=1e-6)
    raw = jnp.asarray(np.random.default_rng(0).uniform(-3, 3, (7, 2)), jnp.float32)
    np.testing.assert_allclose(jax.vmap(lambda a: from_box(to_box(a, task), task))(raw), raw, 1e-5)


def test_whatever_changes_fitted_models_changes_the_facts():
    task = make_toy_task()
    changes = [
        {"name": "other"},
        {"history": 3},
        {"target": "delta"},
        {"predicted_names": ("x", "y")},
        {"reward": None},
    ]
    facts = [task.facts, *(dataclasses.replace(task, **change).facts for change in changes)]
    assert len({digest(fact) for fact in facts}) == len(facts)
    # What only the search depends on is no reason to fit models again.
    assert dataclasses.replace(task, discount=0.5, horizon=7).facts == task.facts
