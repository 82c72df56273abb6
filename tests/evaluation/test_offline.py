"""Judging without a plant: gains that are the plant's own, distances that tell what is new."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.data.split import fold_episodes
from moose.evaluation.offline import (
    ComparisonSettings,
    Witness,
    common_horizon,
    draw_starts,
    judge,
    rank,
    share_at_bounds,
)
from moose.models.ensembles import DynamicsSettings, fit_ensemble, init_ensemble
from moose.models.support import SupportSettings, fit_support
from toys import make_toy_log, make_toy_task, toy_physics_numpy, toy_reward_numpy

HORIZON = 4
SUPPORT = SupportSettings(width=16, epochs=25, batch_size=100, learning_rate=3e-3)
MODELS = DynamicsSettings(members=2, hidden=(16,), epochs=100, batch_size=100, learning_rate=5e-3)
BETTER, WORSE = np.array([0.5, 1.0]), np.array([-0.5, 1.0])


def constant(action):
    return lambda window: jnp.asarray(action, window.dtype)


@pytest.fixture(scope="module")
def world():
    """A task, two groups of models and the episodes that each has not seen."""
    task = make_toy_task(horizon=HORIZON)
    log = make_toy_log(task, episodes=12, steps=80)
    folds = fold_episodes(log.num_episodes, 2, 0)
    witnesses = []
    for number, (held_out, fitted) in enumerate([folds, folds[::-1]]):
        part = log.select_episodes(fitted)
        keys = jax.random.split(jax.random.key(number))
        witnesses.append(
            Witness(
                fit_ensemble(part, task, MODELS, keys[0]),
                fit_support(part, task, SUPPORT, keys[1]),
                log.select_episodes(held_out),
            )
        )
    return task, witnesses


@pytest.fixture(scope="module")
def judged(world):
    task, witnesses = world
    rivals = {"clone": constant(WORSE), "same": constant(BETTER), "wild": constant([9.0, -5.0])}
    settings = ComparisonSettings(starts="any", num_starts=60)
    key = jax.random.key(5)
    return judge(constant(BETTER), rivals, witnesses, task, SUPPORT, settings, key)


def true_return(task, start, action):
    """The toy plant without its noise."""
    frame, total = start.astype(np.float64), 0.0
    for step in range(HORIZON):
        x, y, lever = frame
        predicted = np.array([0.8 * y + 0.2 * lever, 0.7 * x + 0.4 * np.tanh(y) + 0.1])
        following = toy_physics_numpy(frame, action, predicted + 0.2 * (action[0] - 0.5))
        total += task.discount**step * toy_reward_numpy(frame, action, following)
        frame = following
    return total


def test_an_imagined_gain_is_that_of_the_plant(world, judged):
    task, witnesses = world
    starts = np.concatenate([w.held_out.observations[::7] for w in witnesses])
    true = np.mean([true_return(task, s, BETTER) - true_return(task, s, WORSE) for s in starts])
    gain = judged.gains["clone"]
    assert true > 0.5
    assert gain.mean == pytest.approx(true, rel=0.35)
    assert gain.interval.low < true < gain.interval.high


def test_the_same_policy_gains_nothing_at_all(judged):
    assert judged.gains["same"].mean == 0.0
    assert tuple(judged.gains["same"].interval) == (0.0, 0.0)


def test_models_tell_what_the_log_has_earned(judged):
    imagined, logged = judged.stretch_returns
    assert imagined.shape == logged.shape == (120,)
    assert 0.3 < judged.explained <= 1.0
    assert judged.bias == pytest.approx((imagined - logged).mean())
    errors = judged.errors
    assert errors.by_step.shape == errors.baseline.shape == (HORIZON, 2)
    assert errors.band.shape == (2, HORIZON, 2)
    assert (errors.band[0] < errors.band[1]).all()
    assert (errors.by_step[:3] < errors.baseline[:3]).all()


def test_what_the_log_never_did_is_new(judged):
    new = {name: np.mean(one.novelty > 0.99) for name, one in judged.performances.items()}
    assert new["wild"] > 0.9
    assert new["log"] < 0.1
    assert new["policy"] < 0.5
    for one in judged.performances.values():
        assert one.novelty.shape == (HORIZON, 2, 2, 60)
        assert one.novelty.min() >= 0
        assert one.novelty.max() <= 1


def test_situations_are_the_newest_ones_first(judged):
    excess = [one.excess for one in judged.situations]
    assert excess == sorted(excess, reverse=True)
    first = judged.situations[0]
    np.testing.assert_allclose(first.action, BETTER)
    assert first.frame.shape == (3,)
    assert 0 <= first.step < HORIZON


def test_bundles_begin_where_the_log_does(judged):
    logged, policy = judged.logged, judged.performances["policy"].bundle
    assert policy.frames.shape == logged.frames.shape == (3, HORIZON + 1, 3)
    np.testing.assert_allclose(policy.frames[:, 0], logged.frames[:, 0], rtol=1e-5)
    assert (np.diff(policy.frames, axis=0) >= 0).all()
    np.testing.assert_allclose(policy.actions, np.broadcast_to(BETTER, (3, HORIZON, 2)))


def test_models_that_remember_may_judge_too(world):
    task, witnesses = world
    settings = DynamicsSettings(members=2, kind="recurrent")
    forgetful = [
        one._replace(ensemble=init_ensemble(one.held_out, task, settings, jax.random.key(0)))
        for one in witnesses
    ]
    found = judge(
        constant(BETTER),
        {},
        forgetful,
        task,
        SUPPORT,
        ComparisonSettings(num_starts=6),
        jax.random.key(0),
    )
    assert found.performances["policy"].returns.shape == (2, 2, 6)
    assert np.isfinite(found.gains["log"].mean)


def test_early_starts_are_the_first_states_of_episodes(world):
    task, witnesses = world
    held_out = [witness.held_out for witness in witnesses]
    key = jax.random.key(0)
    for starts in draw_starts(held_out, task, ComparisonSettings(), HORIZON, key):
        ages = starts % 80
        assert (ages < task.history).all()
        assert len(starts) == len(set(starts)) == task.history * 6
    (drawn, _) = draw_starts(held_out, task, ComparisonSettings(starts="any"), HORIZON, key)
    assert len(drawn) == 100
    assert (drawn % 80 <= 80 - HORIZON).all()


def test_the_horizon_is_what_episodes_allow(world):
    task, witnesses = world
    short = make_toy_log(task, episodes=3, steps=4, unfinished=(0, 1, 2))
    held_out = [witnesses[0].held_out, short]
    assert common_horizon(held_out[:1], task, ComparisonSettings()) == HORIZON
    assert common_horizon(held_out[:1], task, ComparisonSettings(horizon=50)) == 50
    assert common_horizon(held_out, task, ComparisonSettings()) == 3


def test_ranks_are_shares_of_what_is_nearer():
    own = np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(rank(np.array([[0.5, 2.5], [3.0, 9.0]]), own), [[0, 0.5], [0.5, 1]])


def test_actions_at_their_bounds_are_counted():
    task = make_toy_task()  # bounds −1 … 2 and 0.5 … 1.5
    actions = np.array([[2.0, 1.0], [-1.0, 1.5], [0.5, 1.2], [1.999, 0.6]], np.float32)
    np.testing.assert_allclose(share_at_bounds(actions, task), [0.75, 0.25])
