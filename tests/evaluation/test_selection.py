"""Where to put a dial: what is promised counts as far as it is near to what is known."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.data.normalize import measure
from moose.data.split import fold_episodes
from moose.evaluation.offline import Bundle
from moose.evaluation.selection import (
    Course,
    DialMeasurement,
    DialWitness,
    SelectionSettings,
    choose_position,
    lower_bound,
    measure_dial,
    score,
)
from moose.models.actor import DialActor
from moose.models.ensembles import DynamicsSettings, fit_ensemble
from moose.models.networks import Dense
from moose.models.recurrent import RecurrentSettings
from moose.models.situations import SituationSettings
from toys import make_toy_log, make_toy_task

BUNDLE = Bundle(np.zeros((3, 2, 3)), np.zeros((3, 1, 2)))
SETTINGS = SelectionSettings(pessimism=0.5, distrust=0.1)


def make_course(by_model, strayed=0.0, apart=0.0, new=0.0):
    """Two witnesses of two models, each with three starts that differ a little."""
    returns = np.asarray(by_model, float).reshape(2, 2, 1) + np.array([-0.1, 0.0, 0.1])
    novelty = np.where(np.arange(100) < 100 * new, 1.0, 0.5).reshape(100, 1, 1, 1)
    return Course(returns, strayed, apart, novelty, 0.0, np.zeros(2), BUNDLE)


def make_measurement(courses, hold, over_promise=(0.0, 0.2, 0.5, 0.1, -0.3)):
    return DialMeasurement(
        horizon=1,
        discount=0.9,
        starts="first",
        positions=np.linspace(0, 1, len(courses)),
        courses=tuple(courses),
        hold=hold,
        logged_returns=np.array([-80.0, -82.0]),
        logged=BUNDLE,
        stretch_returns=np.array([[-80.0, -83.0, -70.0], [-81.0, -82.0, -71.0]]),
        over_promise=np.asarray(over_promise, float),
        episodes=np.arange(6).reshape(2, 3),
    )


CLONE = make_course([-81, -79, -80, -80])
HOLD = make_course([-60, -58, -62, -60], strayed=0.0, apart=2.0, new=1.0)


def test_a_gain_near_the_log_is_taken_where_it_is_highest():
    near = [make_course([-57, -55, -59, -57]), make_course([-55, -53, -57, -55], strayed=0.01)]
    choice = choose_position(make_measurement([CLONE, *near], HOLD), SETTINGS)
    assert choice.position == 1.0
    assert choice.course is near[1]
    assert choice.gains["hold"].mean == pytest.approx(5.0)
    assert choice.gains["clone"].mean == pytest.approx(25.0)
    assert any("+5" in reason.text and reason.kind == "for" for reason in choice.reasons)


def test_a_promise_far_from_all_that_is_known_is_left_for_holding_still():
    far = make_course([-57, -55, -59, -57], strayed=0.6, apart=2.5, new=1.0)
    choice = choose_position(make_measurement([CLONE, far], HOLD), SETTINGS)
    assert choice.position is None
    assert choice.course is HOLD
    assert choice.scores[1] == pytest.approx(3.0 - 0.1 * 60.0 * 0.6)
    told = [reason.text for reason in choice.reasons if reason.kind == "against"]
    assert len(told) == 1
    assert "promise most" in told[0]
    assert any("held still" in reason.text for reason in choice.reasons)
    # The same promise is taken by somebody who trusts the models more.
    trusting = SETTINGS.model_copy(update={"distrust": 0.01})
    assert choose_position(make_measurement([CLONE, far], HOLD), trusting).position == 1.0


def test_what_the_log_did_is_the_advice_where_nothing_is_better():
    worse = make_course([-83, -81, -82, -82])
    bad_hold = make_course([-90, -90, -90, -90])
    choice = choose_position(make_measurement([CLONE, worse], bad_hold), SETTINGS)
    assert choice.position == 0.0
    assert choice.course is CLONE
    assert set(choice.gains) == {"hold"}


def test_without_an_action_that_holds_the_log_is_the_only_rival():
    better = make_course([-75, -73, -74, -74])
    choice = choose_position(make_measurement([CLONE, better], None), SETTINGS)
    assert choice.position == 1.0
    assert set(choice.gains) == {"clone"}


def test_one_sceptical_model_counts_as_much_as_it_is_told_to():
    doubted = make_course([-50, -48, -52, -64])  # gains of 10, 10, 10 and −4 over holding
    measured = make_measurement([CLONE, doubted], HOLD)
    for pessimism, expected in ((0.0, 6.5), (0.5, 1.25), (1.0, -4.0)):
        settings = SETTINGS.model_copy(update={"pessimism": pessimism})
        assert score(doubted, measured, settings) == pytest.approx(expected)
    doubtful = SETTINGS.model_copy(update={"pessimism": 1.0})
    assert choose_position(measured, doubtful).position is None


def test_the_lower_bound_is_its_equation():
    measured = make_measurement([CLONE], HOLD)
    # The worst model, less what was promised too much, less a tenth of 60 for each unit.
    assert lower_bound(HOLD, measured, SETTINGS) == pytest.approx(-62 - 0.5 - 0.1 * 60 * 2.0)
    modest = make_measurement([CLONE], HOLD, over_promise=[-1.0] * 5)
    assert lower_bound(HOLD, modest, SETTINGS) == pytest.approx(-62 - 0.1 * 60 * 2.0)


# A dial in a toy plant, with real models


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
    settings = SelectionSettings(
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


def test_few_episodes_are_begun_anywhere(world):
    task, log, witnesses = world
    few = [w._replace(held_out=w.held_out.select_episodes(np.arange(3))) for w in witnesses[:1]]
    actor = DialActor(
        constant_network(HISTORY * 3, [0.0, 0.0]),
        constant_network(HISTORY * 3 + 1, [0.5, 0.0]),
        measure(log.observations),
        0.5,
    )
    settings = SelectionSettings(positions=2, num_starts=15, num_stretches=10)
    found = measure_dial(actor, few, task, settings, jax.random.key(3))
    assert found.starts == "any"
    assert found.courses[0].returns.shape == (1, 2, 15)
