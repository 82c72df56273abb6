"""Task files: what they say becomes a task; what they cannot say is refused with advice."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from fuzzing import fuzzed
from moose.config import digest, to_yaml
from moose.errors import ConfigError, DataError, UserError
from moose.tasks import industrial_benchmark
from moose.tasks.formula_tree import FormulaError
from moose.tasks.registry import find_task, task_of
from moose.tasks.task_file import (
    check_task_file,
    make_schema,
    make_task,
    read_task_file,
    task_of_definition,
)
from plant_log import TREE, tree_with

BENCHMARK = """
name: benchmark again
observations:
  setpoint:
  velocity: {low: 0, high: 100}
  gain: {}
  shift:
  fatigue:
  consumption: {unit: kW}
actions:
  d_velocity: {low: -1, high: 1}
  d_gain: {low: -1, high: 1}
  d_shift: {low: -1, high: 1}
hold: zero
reward:
  formula: -(3 * fatigue + consumption) / 100
physics:
  setpoint: setpoint
  velocity: clip(velocity + d_velocity, 0, 100)
  gain: clip(gain + 10 * d_gain, 0, 100)
  shift: clip(shift + 5.751534335500169 * d_shift, 0, 100)
history: 30
"""


def test_a_file_can_say_what_the_program_knows_of_the_benchmark(tmp_path):
    file = tmp_path / "plant.yaml"
    file.write_text(BENCHMARK)
    ours, known = make_task(read_task_file(file)), industrial_benchmark.make_task()
    for name in ("observation_names", "action_names", "action_low", "action_high", "history"):
        assert getattr(ours, name) == getattr(known, name)
    for name in ("discount", "horizon", "target", "predicted_names", "hold_action"):
        assert getattr(ours, name) == getattr(known, name)
    random = np.random.default_rng(0)
    for _ in range(5):
        frame = jnp.asarray(random.uniform(0, 100, 6), jnp.float32)
        action = jnp.asarray(random.uniform(-1, 1, 3), jnp.float32)
        predicted = jnp.asarray(random.uniform(0, 100, 2), jnp.float32)
        expected = known.physics(frame, action, predicted)
        np.testing.assert_allclose(ours.physics(frame, action, predicted), expected, rtol=1e-6)
        np.testing.assert_allclose(
            ours.reward(frame, action, expected), known.reward(frame, action, expected), rtol=1e-6
        )
        slope = jax.grad(lambda a: jnp.sum(ours.physics(frame, a, predicted)))(action)  # noqa: B023
        known_slope = jax.grad(lambda a: jnp.sum(known.physics(frame, a, predicted)))(action)  # noqa: B023
        np.testing.assert_allclose(slope, known_slope, rtol=1e-5)


def test_setpoints_are_controlled_by_their_change():
    task = make_task(check_task_file(TREE))
    assert task.observation_names == ("temperature", "pressure", "valve")
    assert task.predicted_names == ("temperature", "pressure")
    assert task.action_names == ("d_valve",)
    assert (task.action_low, task.action_high) == ((-8.0,), (8.0,))
    assert task.hold_action == (0.0,)
    frame, predicted = jnp.array([80.0, 3.0, 97.0]), jnp.array([81.0, 4.0])
    np.testing.assert_allclose(task.physics(frame, jnp.array([2.0]), predicted), [81, 4, 99])
    np.testing.assert_allclose(task.physics(frame, jnp.array([8.0]), predicted), [81, 4, 100])
    held = task.physics(frame, jnp.asarray(task.hold_action), predicted)
    np.testing.assert_allclose(held, [81, 4, 97])
    without_rate = make_task(check_task_file(tree_with(actions__valve__rate=None)))
    assert without_rate.action_high == (100.0,)


def test_known_physics_may_use_what_is_predicted():
    tree = tree_with(hold=None, actions__valve__rate=None)
    tree["observations"]["power"] = None
    tree["physics"] = {"power": "next(temperature) * next(pressure) + power + valve"}
    task = make_task(check_task_file(tree))
    frame = jnp.array([1.0, 2.0, 5.0])
    np.testing.assert_allclose(
        task.physics(frame, jnp.array([7.0]), jnp.array([3.0, 4.0])), [3, 4, 12 + 5 + 7]
    )


def test_columns_may_have_other_names_than_signals():
    tree = tree_with(observations__pressure={"column": "PI 101.PV"})
    schema = make_schema(check_task_file(tree))
    assert schema.columns[1].source == "PI 101.PV"
    assert schema.observation_names[1] == "pressure"


@pytest.mark.parametrize(
    ("changes", "complaints"),
    [
        ({"reward": {}}, ["either a column or a formula"]),
        ({"reward": {"column": "a", "formula": "b"}}, ["either a column or a formula"]),
        ({"observations": {}}, ["observations"]),
        ({"actions": {}}, ["actions"]),
        ({"observations__valve": {}}, ["'valve' is both an observation and an action"]),
        ({"observations__d_valve": {}}, ["'d_valve' stands for the change of a set-point"]),
        ({"observations__reward": {}}, ["'reward' is the reward's own name"]),
        ({"observations__a`b": {}}, ["'a`b' cannot be a name"]),
        ({"actions__valve__low": 100}, ["'valve' has a low of 100, which is not below 100"]),
        ({"actions__valve__rate": 0}, ["actions.valve.rate"]),
        ({"hold": "zero"}, ["'valve' has a rate, which only set-points have"]),
        ({"hold": "las"}, ["hold: 'las' is not known; did you mean 'last'?"]),
        ({"physics": {"presure": "1"}}, ["no such observation; did you mean 'pressure'?"]),
        ({"physics": {"pressure": "1", "temperature": "1"}}, ["nothing is left to learn"]),
        ({"time": "batch"}, ["the column 'batch' is used for two things"]),
        ({"observations__pressure__unti": "bar"}, ["did you mean 'unit'?"]),
        ({"histroy": 3}, ["histroy: there is no such setting; did you mean 'history'?"]),
        ({"history": 0}, ["history"]),
        ({"discount": 1.5}, ["discount"]),
        ({"fixes": {"gaps": "glue"}}, ["fixes.gaps"]),
        ({"csv": {"decimal": ";"}}, ["csv.decimal"]),
    ],
)
def test_mistakes_are_told_with_their_place(changes, complaints):
    with pytest.raises(ConfigError) as caught:
        check_task_file(tree_with(**changes), "plant.yaml")
    for complaint in complaints:
        assert complaint in str(caught.value)
    assert "plant.yaml" in caught.value.where


@pytest.mark.parametrize(
    ("changes", "place", "what"),
    [
        ({"reward": {"formula": "-presure"}}, "reward.formula", "no signal 'presure'"),
        ({"reward": {"formula": "pressure[2]"}}, "reward.formula", "too old"),
        ({"reward": {"formula": "d_valve[1]"}}, "reward.formula", "too old"),
        ({"reward": {"formula": "next(pressure)"}}, "reward.formula", "not known here"),
        ({"physics": {"pressure": "pressure[1]"}}, "physics.pressure", "too old"),
        ({"physics": {"pressure": "next(pressure)"}}, "physics.pressure", "not known here"),
        ({"physics": {"pressure": "cost"}}, "physics.pressure", "no signal 'cost'"),
    ],
)
def test_formulas_are_checked_with_the_file(changes, place, what):
    with pytest.raises(FormulaError, match=what) as caught:
        check_task_file(tree_with(**changes), "plant.yaml")
    assert caught.value.where.startswith(f"plant.yaml: {place}\n")


def test_a_task_travels_as_text():
    task = make_task(check_task_file(TREE))
    again = task_of({"task": task.definition})
    assert again.definition == task.definition
    assert again.facts == task.facts
    assert digest(again.facts) == digest(task.facts)
    assert find_task("boiler", task.definition).observation_names == task.observation_names
    # JSON with sorted keys, as manifests are written, keeps the order of the columns.
    text = json.dumps({"task": task.definition}, sort_keys=True)
    assert task_of(json.loads(text)).observation_names == task.observation_names


@pytest.mark.parametrize("definition", [{}, 3, None, "- a list", "name: x", "{", "\x00"])
def test_a_broken_definition_is_refused(definition):
    with pytest.raises(UserError):
        task_of_definition(definition, "the data set")


def test_an_unknown_plant_is_still_an_error():
    with pytest.raises(DataError, match="not known which plant"):
        task_of({"plant": "boiler"})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats() | st.text(max_size=8),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3)
    ),
    max_leaves=4,
)
PATHS = [
    *(
        "name",
        "time",
        "interval",
        "episode",
        "observations",
        "actions",
        "reward",
        "hold",
        "history",
    ),
    *("target", "physics", "horizon", "discount", "csv", "checks", "fixes", "extra"),
    *("actions__valve", "actions__valve__low", "observations__pressure", "reward__formula"),
]


@fuzzed
@given(st.dictionaries(st.sampled_from(PATHS), VALUES, min_size=1, max_size=3))
def test_only_our_error_escapes(changes):
    try:
        tree = tree_with(**{k: v for k, v in changes.items() if v is not None})
    except (TypeError, AttributeError, KeyError):
        return  # two changes that exclude each other
    try:
        content = check_task_file(tree)
    except UserError:
        return
    task = make_task(content)
    assert task_of_definition(to_yaml(content), "again").facts == task.facts
