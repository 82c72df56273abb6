"""Experts trained online: they learn, and an interruption changes nothing."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from moose.config import build_settings
from moose.envs.experts import read_expert
from moose.errors import ConfigError, RunError
from moose.experiments import expert
from moose.experiments.expert import CURVE, EXPERT, SUMMARY, ExpertSettings, train_expert

pytest.importorskip("gymnasium")

TINY = {
    "environment": "Pendulum-v1",
    "steps": 600,
    "random_steps": 200,
    "block": 20,
    "check_every": 100,
    "keep_every": 200,
    "evaluation_episodes": 1,
    "learner": {"hidden": [8]},
}


def settings(**changes):
    return build_settings(ExpertSettings, TINY | changes)


@pytest.mark.slow
def test_an_expert_learns_to_hold_a_pendulum_up(tmp_path):
    sizes = {"steps": 8000, "random_steps": 1000, "check_every": 1000, "keep_every": 1000}
    learner = {"hidden": [64, 64]}
    train_expert(settings(**sizes, learner=learner, evaluation_episodes=3), tmp_path)
    with open(tmp_path / CURVE, newline="") as file:
        curve = {int(row["steps"]): float(row["mean"]) for row in csv.DictReader(file)}
    assert list(curve) == list(range(0, 9000, 1000))
    assert curve[0] < -1000  # what a random network earns
    # By the best of the last checks: which are good depends on rounding, that is, on the processor.
    assert max(mean for steps, mean in curve.items() if steps >= 5000) > -400


def test_an_interrupted_training_ends_with_the_same_bits(tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    summary = train_expert(settings(), whole)
    evaluate = expert._evaluate

    def interrupted(environment, task, one, done, chosen):
        if done == 300:
            raise KeyboardInterrupt
        return evaluate(environment, task, one, done, chosen)

    monkeypatch.setattr(expert, "_evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_expert(settings(), broken)
    monkeypatch.undo()
    seen = []
    monkeypatch.setattr(
        expert, "_evaluate", lambda *words: (seen.append(words[3]), evaluate(*words))[1]
    )
    assert train_expert(settings(), broken) == summary
    assert seen == [300, 400, 500, 600]  # what was kept was not done again
    for name in (EXPERT, CURVE, SUMMARY):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()


def test_updates_begin_after_the_random_steps(tmp_path):
    train_expert(settings(steps=200), tmp_path / "a")
    train_expert(settings(steps=400), tmp_path / "b")
    at_first = expert.make_expert(
        [
            (layer.weight, layer.bias)
            for layer in expert._begin(_task(), settings()).state.actor.params
        ]
    )
    for one, other in ((at_first, tmp_path / "a"), (at_first, tmp_path / "b")):
        is_same = all(
            np.array_equal(mine, theirs)
            for mine, theirs in zip(one.weights, read_expert(other / EXPERT).weights, strict=True)
        )
        assert is_same == (other.name == "a")


def _task():
    environment = expert.make_environment("Pendulum-v1")
    task = expert._task_of(environment, "Pendulum-v1")
    environment.close()
    return task


def test_another_training_in_the_folder_is_not_touched(tmp_path):
    train_expert(settings(steps=200), tmp_path)
    before = (tmp_path / EXPERT).read_bytes()
    with pytest.raises(RunError, match="Another training"):
        train_expert(settings(steps=200, seed=1), tmp_path)
    for change in ({"steps": 400}, {"environment": "MountainCarContinuous-v0"}):
        with pytest.raises(RunError, match="Another training"):
            train_expert(settings(**({"steps": 200} | change)), tmp_path)
    assert (tmp_path / EXPERT).read_bytes() == before
    assert json.loads((tmp_path / SUMMARY).read_text())["settings"]["seed"] == 0


def test_something_else_in_the_folder_is_not_touched(tmp_path):
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(RunError, match=r"something else in this folder: letters.txt"):
        train_expert(settings(steps=200), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["letters.txt"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"steps": 610}, "steps has to be a multiple of block"),
        ({"check_every": 150}, "check_every has to be a multiple of block"),
        ({"keep_every": 260}, "keep_every has to be a multiple of check_every"),
        ({"learner": {"inputs": "standardised"}}, "learner.inputs"),
    ],
)
def test_numbers_have_to_fit(change, problem):
    with pytest.raises(ConfigError, match=problem):
        settings(**change)


def test_a_setting_of_the_learner_leaves_the_others_as_they_were():
    chosen = settings(learner={"hidden": [8]}).learner
    assert (chosen.inputs, chosen.discount) == ("raw", 0.99)
