"""A run's models are judged afterwards from what it left behind, and nothing is fitted again."""

from __future__ import annotations

import json

import jax
import pytest

from moose.algorithms import moose
from moose.config import build_settings
from moose.errors import RunError
from moose.experiments import runner
from moose.experiments.diagnosis import QUANTILES, diagnose, diagnose_run
from moose.models.ensembles import init_ensemble
from moose.models.support import init_support
from moose.progress import SILENT
from runs import TINY_CLONE, log, undisturbed
from toys import make_toy_log, make_toy_task


class Listener:
    def __init__(self):
        self.stages = []

    def stage(self, name, total, done=0):
        self.stages.append((name, total, done))
        return SILENT.stage(name, total, done)


def test_models_and_support_are_measured():
    listener = Listener()
    found = diagnose_run(undisturbed(), cache=undisturbed().parent / "cache", progress=listener)
    errors = found["model_errors"]
    assert errors["steps"] == 60
    assert errors["episodes"] == errors["held_out_episodes"] == 1
    assert set(errors["error"]) == {"fatigue", "consumption"}
    assert all(len(values) == 60 for values in errors["error"].values())
    for where in ("training", "held_out"):
        quantiles = found["novelty"][where]
        assert len(quantiles) == len(QUANTILES)
        assert quantiles == sorted(quantiles)
        assert quantiles[0] > 0
    # The policy's stage is only opened to find it finished.
    assert [(name, done) for name, _, done in listener.stages] == [("policy", 2)]


def test_recurrent_models_are_measured_alike():
    task = make_toy_task()
    log = make_toy_log(task)
    small = {"units": 2, "updates": 1}
    config = build_settings(moose.Config, {"dynamics": {"kind": "recurrent", "recurrent": small}})
    key = jax.random.key(0)
    ensemble = init_ensemble(log, task, config.dynamics, key)
    support = init_support(log, task, config.support, key)
    errors = diagnose(moose.Fitted(None, ensemble, support), log, task, config)["model_errors"]
    assert set(errors["error"]) == {"x", "y"}
    # Before training little changes in them.
    assert errors["error"]["x"][0] == pytest.approx(errors["no_change"]["x"][0], rel=0.3)


def test_people_and_programs_get_the_same_numbers(tmp_path):
    from typer.testing import CliRunner

    from moose.cli import app

    cache = undisturbed().parent / "cache"
    command = ["diagnose", str(undisturbed()), "--quiet", "--cache", str(cache)]
    told = CliRunner().invoke(app, [*command, "--json", "--plot", str(tmp_path / "models.svg")])
    assert told.exit_code == 0
    assert (tmp_path / "models.svg").read_bytes().startswith(b"<?xml")
    error = json.loads(told.stdout)["model_errors"]["error"]["fatigue"][0]
    shown = CliRunner().invoke(app, command)
    assert f"{error:.3f}" in shown.stdout


def test_a_run_of_the_clone_has_no_models(tmp_path):
    request = runner.make_request(
        str(log()), algorithm="clone", settings=[TINY_CLONE], evaluation_episodes=0
    )
    runner.start_run(request, tmp_path / "run")
    with pytest.raises(RunError, match="Only a run of LION or MOOSE"):
        diagnose_run(tmp_path / "run")
