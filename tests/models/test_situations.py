"""Distances of imagined situations from those of a log."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.models.rollout import Imagined
from moose.models.situations import (
    SituationSettings,
    ages_in,
    distances,
    measure_situations,
    situation_columns,
)
from toys import altered, make_toy_log, make_toy_task

SETTINGS = SituationSettings(ages=(0, 1, 7), references=40)


@pytest.fixture(scope="module")
def task():
    return make_toy_task(history=3)


@pytest.fixture(scope="module")
def situations(task):
    return measure_situations(make_toy_log(task), task, SETTINGS, jax.random.key(0))


def test_ages_beyond_the_history_are_its_oldest_and_columns_are_what_physics_gives(task):
    assert ages_in(task, SETTINGS) == (0, 1, 2)
    assert ages_in(make_toy_task(history=1), SETTINGS) == (0,)
    assert situation_columns(task) == (2,)


def test_distances_are_a_loop_over_steps_and_references(task, situations):
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(3 + 4, 2, 5, 3)).astype(np.float32) * 3.0
    imagined = Imagined(jnp.asarray(frames), jnp.zeros((4, 2, 5, 2)), jnp.zeros((4, 2, 5)))
    found = np.asarray(distances(situations, imagined, task, SETTINGS))
    references = np.asarray(situations.references, np.float64)
    lever = (frames[..., 2] - situations.scale.mean[2]) / situations.scale.deviation[2]
    known = make_toy_log(task).observations[:, 2]
    known = (known - situations.scale.mean[2]) / situations.scale.deviation[2]
    lowest, highest = known.min(), known.max()
    for step in range(4):
        for model in range(2):
            for start in range(5):
                # After the step: its own frame and the two before it.
                point = [lever[3 + step - age, model, start] for age in (0, 1, 2)]
                nearest = np.sqrt(((references - point) ** 2).sum(axis=1)).min()
                outside = max(point[0] - highest, lowest - point[0], 0.0)
                expected = max(nearest - float(situations.usual), 0.0) + np.sqrt(3) * outside
                assert found[step, model, start] == pytest.approx(expected, abs=1e-4)
    assert (found > 0).any()


def test_the_logs_own_situations_are_within_what_is_usual_as_often_as_asked(task):
    log = make_toy_log(task, episodes=20, steps=50)
    settings = SituationSettings(ages=(0, 1), references=200, usual_quantile=0.8)
    situations = measure_situations(log, task, settings, jax.random.key(0))
    frames = np.stack([log.observations[i : i + 3] for i in range(40)])  # of one episode
    imagined = Imagined(
        jnp.asarray(frames.swapaxes(0, 1)[:, None]), jnp.zeros((1, 1, 40, 2)), jnp.zeros((1, 1, 40))
    )
    task_of_two = make_toy_task(history=2)
    share = np.mean(np.asarray(distances(situations, imagined, task_of_two, settings)) == 0.0)
    assert 0.5 < share <= 1.0


def test_a_signal_outside_its_range_counts_although_others_vary_much():
    """A lever that hardly moves beside a signal that is all over the place: no margin for it."""
    task = dataclasses.replace(make_toy_task(history=1), physics=lambda frame, action, _: frame)
    task = dataclasses.replace(task, predicted_names=())
    rng = np.random.default_rng(0)
    log = make_toy_log(make_toy_task(history=1), episodes=10, steps=50)
    frames = rng.normal(size=log.observations.shape).astype(np.float32)
    frames[:, 2] *= 0.01
    log = altered(log, observations=frames)
    settings = SituationSettings(ages=(0,), references=50)
    # On a scale of their own both would count alike; a plant's physical range does not do so.
    wide = dataclasses.replace(task, observation_limits=((None, None), (None, None), (-4.0, 4.0)))
    situations = measure_situations(log, wide, settings, jax.random.key(0))
    moved = frames[:20].copy()
    moved[:, 2] = 0.3

    def beyond(frames, weight):
        seen = Imagined(
            jnp.asarray(np.stack([frames, frames])[:, None]),
            jnp.zeros((1, 1, 20, 2)),
            jnp.zeros((1, 1, 20)),
        )
        manner = settings.model_copy(update={"outside_weight": weight})
        return np.asarray(distances(situations, seen, wide, manner))

    assert beyond(moved, 0.0).mean() < 0.2
    expected = (0.3 - frames[:, 2].max()) / 2.0
    np.testing.assert_allclose(beyond(moved, 1.0) - beyond(moved, 0.0), expected, atol=1e-5)
    np.testing.assert_array_equal(beyond(frames[:20], 1.0), beyond(frames[:20], 0.0))


def test_the_slope_points_away_from_the_nearest_situation_and_is_finite_on_it(task, situations):
    def total(lever):
        frames = jnp.zeros((4, 1, 1, 3)).at[..., 2].set(lever)
        imagined = Imagined(frames, jnp.zeros((1, 1, 1, 2)), jnp.zeros((1, 1, 1)))
        return jnp.sum(distances(situations, imagined, task, SETTINGS))

    assert float(jax.grad(total)(50.0)) > 0.0
    assert float(jax.grad(total)(-50.0)) < 0.0
    assert np.isfinite(float(jax.grad(total)(0.0)))


def test_whole_situations_leave_out_what_was_before_an_episode(task):
    """A lever that never stays: only a first frame, repeated, looks as if it had."""
    log = make_toy_log(task, episodes=10, steps=12)
    moving = log.observations.copy()
    moving[:, 2] = np.arange(len(moving))
    log = altered(log, observations=moving)
    settings = SituationSettings(ages=(0, 2), references=100, early_share=1.0)

    def shares_held(**manner):
        found = measure_situations(log, task, settings, jax.random.key(0), **manner)
        return (np.diff(np.asarray(found.references), axis=1) == 0).mean()

    assert shares_held() > 0.1
    assert shares_held(is_whole=True) == 0.0


def test_usual_is_what_other_episodes_are_if_there_are_some(task):
    log, other = make_toy_log(task), make_toy_log(task, seed=5)
    far = dataclasses.replace(other, observations=other.observations + 5.0)
    key = jax.random.key(0)
    near = measure_situations(log, task, SETTINGS, key, other=other)
    apart = measure_situations(log, task, SETTINGS, key, other=far)
    assert float(apart.usual) > 3 * float(near.usual)
    assert (np.diff(apart.own) >= 0).all()


def test_a_log_of_short_episodes_has_no_whole_situations_and_uses_all(task):
    log = make_toy_log(task, episodes=10, steps=2)
    settings = SituationSettings(ages=(0, 2), references=20)
    found = measure_situations(log, task, settings, jax.random.key(0), is_whole=True)
    assert found.references.shape == (20, 2)
