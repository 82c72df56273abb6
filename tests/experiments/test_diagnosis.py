"""A run's models are judged afterwards from what it left behind, and nothing is fitted again."""

from __future__ import annotations

import json

import pytest

from moose.errors import RunError
from moose.experiments import runner
from moose.experiments.diagnosis import QUANTILES, diagnose_run
from moose.progress import SILENT

SETTINGS = (
    "held_out=0.3",
    "dynamics.epochs=2",
    "dynamics.hidden=[8]",
    "dynamics.members=2",
    "support.epochs=2",
    "support.width=8",
    "search.hidden=[8]",
    "search.updates=2",
    "search.start_states=4",
    "search.horizon=5",
)


class Listener:
    def __init__(self):
        self.stages = []

    def stage(self, name, total, done=0):
        self.stages.append((name, total, done))
        return SILENT.stage(name, total, done)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from moose.data.files import save_dataset
    from moose.envs.catalog import make_dataset
    from moose.envs.recipes import recipe_of

    folder = tmp_path_factory.mktemp("diagnosis")
    save_dataset(make_dataset(recipe_of("ib/bad-0.4", episodes=4, steps=60)), folder / "data")
    for name, algorithm in (("moose", "moose"), ("clone", "clone")):
        request = runner.make_request(
            str(folder / "data"),
            algorithm=algorithm,
            preset="quick",
            overrides=SETTINGS if algorithm == "moose" else ("updates=2", "hidden=[4]"),
            evaluation_episodes=0,
        )
        runner.start_run(request, folder / name)
    return folder


def test_models_and_support_are_measured(run):
    listener = Listener()
    found = diagnose_run(run / "moose", progress=listener)
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


def test_people_and_programs_get_the_same_numbers(run, tmp_path):
    from typer.testing import CliRunner

    from moose.cli import app

    command = ["diagnose", str(run / "moose"), "--quiet"]
    told = CliRunner().invoke(app, [*command, "--json", "--plot", str(tmp_path / "models.svg")])
    assert told.exit_code == 0
    assert (tmp_path / "models.svg").read_bytes().startswith(b"<?xml")
    error = json.loads(told.stdout)["model_errors"]["error"]["fatigue"][0]
    shown = CliRunner().invoke(app, command)
    assert f"{error:.3f}" in shown.stdout


def test_only_a_run_of_moose_has_models(run):
    with pytest.raises(RunError, match="finished run of MOOSE"):
        diagnose_run(run / "clone")
