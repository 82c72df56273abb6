"""A run's models are judged afterwards from what it left behind, and nothing is fitted again."""

from __future__ import annotations

import json

import pytest

from moose.errors import RunError
from moose.experiments import runner
from moose.experiments.diagnosis import QUANTILES, diagnose_run
from moose.progress import SILENT
from runs import TINY_CLONE, log, undisturbed


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
    assert errors["steps"] == 59
    assert set(errors["error"]) == {"fatigue", "consumption"}
    assert all(len(values) == 59 for values in errors["error"].values())
    for where in ("training", "held_out"):
        quantiles = found["novelty"][where]
        assert len(quantiles) == len(QUANTILES)
        assert quantiles == sorted(quantiles)
        assert quantiles[0] > 0
    # The policy's stage is only opened to find it finished.
    assert [(name, done) for name, _, done in listener.stages] == [("policy", 2)]


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


def test_only_a_run_of_moose_has_models(tmp_path):
    request = runner.make_request(
        str(log()), algorithm="clone", settings=[TINY_CLONE], evaluation_episodes=0
    )
    runner.start_run(request, tmp_path / "run")
    with pytest.raises(RunError, match="finished run of MOOSE"):
        diagnose_run(tmp_path / "run")
