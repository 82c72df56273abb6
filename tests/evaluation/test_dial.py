"""The positions of a dial in a toy plant, measured in real models of both kinds."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.data.normalize import measure
from moose.data.split import fold_episodes
from moose.evaluation.dial import DialSettings, DialWitness, measure_dial
from moose.models.actor import DialActor
from moose.models.ensembles import DynamicsSettings, fit_ensemble
from moose.models.networks import Dense
from moose.models.recurrent import RecurrentSettings
from moose.models.situations import SituationSettings
from toys import make_toy_log, make_toy_task


def constant_network(inputs, outputs):
    """A layer that gives the same whatever it sees."""
    bias = np.arctanh(np.asarray(outputs, np.float32))
    return (Dense(jnp.zeros((inputs, len(bias))), jnp.asarray(bias)),)


HORIZON, HISTORY = 6, 3
MODELS = {
    "stacked": DynamicsSettings(
        members=2, hidden=(16,), epochs=60, batch_size=100, learning_rate=5e-3
    ),
    "recurrent": DynamicsSettings(
        kind="recurrent",
        members=2,
        recurrent=RecurrentSettings(units=8, updates=150, rounds=3, horizon=6, batch_size=32),
    ),
}


@pytest.fixture(scope="module")
def world():
    """A toy plant whose lever stays where it is with the right action, and models of both kinds."""
    task = make_toy_task(history=HISTORY, horizon=HORIZON)
    # push 0.3 and pull −0.2 a unit: these two cancel.
    task = dataclasses.replace(task, hold_action=(2 / 3, 1.0))
    log = make_toy_log(task, episodes=24, steps=40)
    folds = fold_episodes(log.num_episodes, 2, 0)
    witnesses = []
    for number, (held_out, fitted) in enumerate([folds, folds[::-1]]):
        part, rest = log.select_episodes(fitted), log.select_episodes(held_out)
        for kind, settings in MODELS.items():
            key = jax.random.key(10 * number + len(kind))
            witnesses.append(DialWitness(fit_ensemble(part, task, settings, key), part, rest))
    return task, log, witnesses


@pytest.fixture(scope="module")
def measured(world):
    """The clone does the mean of what the log did; at 1 the first action is higher."""
    task, log, witnesses = world
    features = HISTORY * 3
    actor = DialActor(
        constant_network(features, [0.0, 0.0]),
        constant_network(features + 1, [0.3, 0.0]),
        measure(log.observations),
        0.5,
    )
    settings = DialSettings(
        positions=3,
        num_starts=10,
        num_stretches=20,
        situations=SituationSettings(ages=(0, 2), references=200),
    )
    told = []
    found = measure_dial(actor, witnesses, task, settings, jax.random.key(3), observe=told.append)
    assert told == [1, 2, 3]
    return found


def test_positions_are_imagined_from_first_states_in_all_models(measured):
    assert measured.starts == "first"
    assert measured.positions.tolist() == [0.0, 0.5, 1.0]
    for course in (*measured.courses, measured.hold):
        assert course.returns.shape == (4, 2, 10)
        assert np.isfinite(course.returns).all()
        assert course.bundle.frames.shape == (3, HORIZON + 1, 3)
    assert measured.stretch_returns.shape == (2, 80)
    assert measured.explained > 0.3


def test_the_distance_from_the_behaviour_grows_with_the_dial(measured):
    distances = [course.from_behaviour for course in measured.courses]
    assert distances[0] == pytest.approx(0.0, abs=1e-9)
    assert distances[1] == pytest.approx(0.15**2, rel=1e-3)
    assert distances[2] == pytest.approx(0.3**2, rel=1e-3)


def test_holding_is_near_to_itself_and_distances_are_in_order(measured):
    assert measured.hold.strayed == pytest.approx(0.0, abs=1e-3)
    assert measured.hold.apart >= 0
    for course in measured.courses:
        assert 0 <= course.strayed <= course.apart
        assert course.novelty.min() >= 0
        assert course.novelty.max() <= 1
    assert measured.hold.at_bounds.tolist() == [0.0, 0.0]


def test_an_imagined_difference_is_that_of_the_plant(world, measured):
    """The two ends of the dial in the plant itself, many times, against the models' opinion."""
    task, _, _ = world
    rng = np.random.default_rng(1)

    def play(action):
        total = []
        for _ in range(300):
            frame, discount, earned = rng.normal(size=3) * 0.3, 1.0, 0.0
            for _ in range(HORIZON):
                x, y, lever = frame
                values = np.array([0.8 * y + 0.2 * lever, 0.7 * x + 0.4 * np.tanh(y) + 0.1])
                values = values + 0.1 * rng.normal(size=2) + 0.2 * (action[0] - 0.5)
                after = np.asarray(task.physics(jnp.asarray(frame), action, values))
                earned += discount * float(task.reward(frame, action, after))
                discount *= task.discount
                frame = after
            total.append(earned)
        return np.mean(total)

    true = play(np.array([0.95, 1.0])) - play(np.array([0.5, 1.0]))
    imagined = measured.courses[2].returns.mean() - measured.courses[0].returns.mean()
    assert abs(true) > 0.3
    assert imagined == pytest.approx(true, rel=0.4)


def test_few_episodes_are_begun_anywhere_and_in_the_same_states_by_all_kinds_of_models(world):
    task, log, witnesses = world
    rest = witnesses[0].held_out.select_episodes(np.arange(3))
    few = [w._replace(held_out=rest) for w in witnesses[:2]]
    actor = DialActor(
        constant_network(HISTORY * 3, [0.0, 0.0]),
        constant_network(HISTORY * 3 + 1, [0.5, 0.0]),
        measure(log.observations),
        0.5,
    )
    settings = DialSettings(positions=2, num_starts=15, num_stretches=10)
    found = measure_dial(actor, few, task, settings, jax.random.key(3))
    assert found.starts == "any"
    assert found.courses[0].returns.shape == (2, 2, 15)
    np.testing.assert_array_equal(*found.logged_returns.reshape(2, 15))
    np.testing.assert_array_equal(*found.episodes)
