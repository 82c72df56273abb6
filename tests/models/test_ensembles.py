"""The door to ensembles of either kind: which one is fitted, what names it, how it is rolled."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from moose.config import build_settings, digest, load_settings, settings_tree, to_yaml
from moose.models.dynamics import Ensemble, ReadyMember, StackedModel, fit_stacked
from moose.models.ensembles import (
    DynamicsSettings,
    fit_digest,
    fit_ensemble,
    init_ensemble,
    make_model,
    ready,
)
from moose.models.recurrent import RecurrentEnsemble, RecurrentModel, RecurrentSettings
from moose.models.recurrent_fit import fit_recurrent
from moose.training import key_numbers
from toys import assert_same_bits, make_toy_log, make_toy_task

TASK = make_toy_task()
LOG = make_toy_log(TASK, episodes=4, steps=8)
KEY = jax.random.key(0)
STACKED = build_settings(DynamicsSettings, {"members": 3, "hidden": [4], "epochs": 1})
RECURRENT = build_settings(
    DynamicsSettings,
    {
        "members": 2,
        "kind": "recurrent",
        "recurrent": {"units": 3, "horizon": 3, "updates": 1, "batch_size": 2, "held_out_runs": 2},
    },
)


def test_stacked_models_are_fitted_as_ever():
    fitted = fit_ensemble(LOG, TASK, STACKED, KEY)
    assert isinstance(fitted, Ensemble)
    assert_same_bits(fitted, fit_stacked(LOG, TASK, STACKED, KEY))
    assert isinstance(make_model(TASK, fitted.scales), StackedModel)
    assert isinstance(ready(fitted.members), ReadyMember)


def test_recurrent_models_are_fitted_where_they_are_asked_for():
    fitted = fit_ensemble(LOG, TASK, RECURRENT, KEY)
    assert isinstance(fitted, RecurrentEnsemble)
    assert len(fitted.members.cells.head) == 2
    assert_same_bits(fitted, fit_recurrent(LOG, TASK, 2, RECURRENT.recurrent, KEY))
    assert isinstance(make_model(TASK, fitted.scales), RecurrentModel)
    assert ready(fitted.members) is fitted.members  # nothing is left to do
    untrained = init_ensemble(LOG, TASK, RECURRENT, KEY)
    assert jax.tree.structure(untrained) == jax.tree.structure(fitted)
    assert_same_bits(jax.tree.map(np.shape, untrained), jax.tree.map(np.shape, fitted))


def test_the_name_of_a_fit_of_stacked_models_is_that_of_old():
    plain = {"members": 3, "hidden": [4], "epochs": 1, "batch_size": 500, "learning_rate": 1e-4}
    assert settings_tree(STACKED) == plain
    expected = digest(LOG.fingerprint, TASK.facts, plain, key_numbers(KEY))
    assert fit_digest(LOG, TASK, STACKED, KEY) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"observation_limits": ((None, None), (None, None), (-1.0, 1.0))},
        {"action_high": (2.0, 1.6)},
        {"definition": "physics: {lever: lever + push}"},
    ],
)
def test_recurrent_models_depend_on_all_that_is_known_of_a_plant(change):
    other = dataclasses.replace(TASK, **change)
    assert fit_digest(LOG, other, STACKED, KEY) == fit_digest(LOG, TASK, STACKED, KEY)
    assert fit_digest(LOG, other, RECURRENT, KEY) != fit_digest(LOG, TASK, RECURRENT, KEY)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["kind=recurrent"],
        ["recurrent.units=5"],
        ["kind=recurrent", "recurrent.inputs=all", "hidden=[7]"],
    ],
)
def test_settings_are_read_back_as_they_were(overrides, tmp_path):
    settings = load_settings(DynamicsSettings, overrides=overrides)
    (tmp_path / "dynamics.yaml").write_text(to_yaml(settings))
    assert load_settings(DynamicsSettings, file=tmp_path / "dynamics.yaml") == settings
    # Nothing, or all of it: what a run's manifest says does not depend on defaults.
    told = settings_tree(settings).get("recurrent")
    every = set(RecurrentSettings.model_fields)
    assert told is None if not overrides else set(told) == every
