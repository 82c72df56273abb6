"""``moose train`` and ``moose evaluate`` as a user meets them: words in, advice out."""

from __future__ import annotations

import inspect
import json
import shutil
import signal

import pytest

from moose.algorithms.registry import ALGORITHMS, DEFAULT_ALGORITHM
from moose.cli.train import train_command
from moose.experiments.run_folder import read_run
from moose.experiments.runner import make_request
from runs import log, moose, outcome, tiny_words, train, undisturbed


def test_a_training_says_where_everything_is(tmp_path):
    ended = train(tmp_path / "run", undisturbed().parent / "cache")
    assert ended.code == 0
    assert ended.out.splitlines() == [
        f"run:    {tmp_path / 'run'}",
        f"policy: {tmp_path / 'run' / 'policy'}",
        f"to see what it is worth: moose evaluate {tmp_path / 'run'}",
    ]
    assert ended.errors == ""


def test_progress_goes_to_standard_error_with_the_numbers_that_matter(tmp_path):
    run = tmp_path / "run"
    words = (*tiny_words(), "--evaluation-episodes", 0, "--cache", tmp_path / "cache")
    ended = moose("train", log(), *words, "--out", run, "--json")
    assert ended.code == 0, ended.errors
    policies = {"0": str(run / "policy")}
    result = {"run": str(run), "was_finished": False, "policies": policies}
    assert json.loads(ended.out) == result
    lines = [json.loads(line) for line in ended.errors.splitlines()]
    assert list(dict.fromkeys(line["stage"] for line in lines)) == ["models", "support", "policy"]
    numbers = {"loss", "imagined_return", "model_spread", "penalty", "gradient_norm"}
    assert numbers <= lines[-1]["numbers"].keys()
    assert not (run / "evaluations.jsonl").exists()


@pytest.mark.parametrize(("acting", "is_told"), [("sampled", True), ("deterministic", False)])
def test_a_policy_that_will_draw_samples_is_told_of_before_the_work(tmp_path, acting, is_told):
    words = ("--algorithm", "bcq", "--preset", "quick", "--set", f"acting={acting}")
    small = ("--set", "updates=1", "--set", "checks=1", "--evaluation-episodes", 0)
    ended = moose("train", log(), *words, *small, "--out", tmp_path / "run")
    assert ended.code == 0, ended.errors
    first = ended.errors.splitlines()[0]
    assert first.startswith("This policy will draw samples to act") == is_told
    assert ("--set acting=deterministic" in ended.errors) == is_told


@pytest.mark.parametrize("words", [(), ("--seeds", "0,3", "--seeds-mode", "in-turn")])
def test_a_finished_run_has_nothing_left_to_do(words):
    folder = undisturbed(*words)
    before = outcome(folder)
    ended = moose("train", "--resume", folder)
    assert ended.code == 0
    assert ended.out.startswith("This run is finished already; there was nothing left to do.\n")
    assert ended.errors == ""
    assert outcome(folder) == before
    assert json.loads(moose("train", "--resume", folder, "--json").out)["was_finished"]


def test_an_interrupted_run_says_how_to_go_on_even_with_moved_data(tmp_path):
    run, cache, data = tmp_path / "a run", tmp_path / "cache", tmp_path / "data"
    shutil.copytree(log(), data)
    words = (*tiny_words(), "--evaluation-episodes", 2, "--cache", cache, "--quiet")
    manner = {"signal": signal.SIGINT, "when": run / "metrics.jsonl"}
    ended = moose("train", data, *words, "--out", run, **manner)
    assert ended.code == 130
    assert f"To go on: moose train --resume '{run}'\n" in ended.errors
    assert "Interrupted; nothing was left half-written." in ended.errors
    assert not (run / "policy").exists()
    data.rename(tmp_path / "moved")
    ended = moose("train", tmp_path / "moved", "--resume", run, "--cache", cache, "--quiet")
    assert ended.code == 0, ended.errors
    assert outcome(run) == outcome(undisturbed())


def test_several_seeds_are_listed():
    folder = undisturbed("--seeds", "0,3", "--seeds-mode", "in-turn")
    assert read_run(folder).seeds == (0, 3)
    lines = moose("train", "--resume", folder).out.splitlines()
    assert f"policy: {folder / 'seed-0' / 'policy'}  (seed 0)" in lines
    assert f"policy: {folder / 'seed-3' / 'policy'}  (seed 3)" in lines


@pytest.mark.parametrize(
    ("words", "complaints"),
    [
        ([], ["Say which data set to train on, or which run to resume."]),
        (["ib/bed-0.2"], ["'ib/bed-0.2' is neither a folder", "did you mean 'ib/bad-0.2'?"]),
        (["ib/bad-0.2", "--preset", "quik"], ["no preset 'quik'", "did you mean 'quick'?"]),
        (["ib/bad-0.2", "--preset", "paper"], ["no preset 'paper'", "add --algorithm moose or "]),
        (["ib/bad-0.2", "--algorithm", "mose"], ["no algorithm 'mose'", "did you mean 'moose'?"]),
        (
            ["ib/bad-0.2", "--set", "search.updats=1", "--set", "models=2", "--set", "held_out=x"],
            ["3 settings are wrong:", "did you mean 'updates'?", "- models: ", "- held_out: "],
        ),
        (["ib/bad-0.2", "--set", "search.updates"], ["not of the form name=value"]),
        (["ib/bad-0.2", "--config", "none.yaml"], ["Cannot read the configuration file"]),
        (["ib/bad-0.2", "--seed", "-1"], ["seed: "]),
        (["ib/bad-0.2", "--seeds", "3..1"], ["runs backwards", "--seeds 0..9"]),
        (["ib/bad-0.2", "--seeds", "0..3", "--seed", "0"], ["Both --seed and --seeds"]),
        (["ib/bad-0.2", "--seeds-mode", "together"], ["there is only one", "--seeds 0..9"]),
        (["--resume", "nowhere"], ["This folder does not exist.", "nowhere"]),
        (
            ["--resume", "x", "--seed", "0", "--set", "a=1", "--seeds-mode", "auto"],
            ["A run is resumed as it began: --set, --seed, --seeds-mode cannot be changed."],
        ),
    ],
)
def test_mistakes_are_told_with_advice(tmp_path, words, complaints):
    ended = moose("train", *words, "--cache", tmp_path, "--quiet")
    assert ended.code == 2
    assert ended.errors.startswith("Error: ")
    for complaint in complaints:
        assert complaint in ended.errors
    assert ended.out == ""


def test_the_command_and_python_train_the_same_by_default():
    parameters = inspect.signature(train_command).parameters
    assert parameters["algorithm"].default == DEFAULT_ALGORITHM == "lion"
    known = parameters["algorithm"].annotation
    assert all(name in str(known) for name in ALGORITHMS)
    assert make_request("ib/bad-0.2").preset == "fast"


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    ended = moose("train", log(), *tiny_words(), "--out", undisturbed())
    assert ended.code == 2
    assert "This folder holds a run already." in ended.errors
    assert f"moose train --resume {undisturbed()}" in ended.errors
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file", tmp_path / "file" / "run"):
        ended = moose("train", log(), *tiny_words(), "--out", out)
        assert ended.code == 2
        assert f"where:      {out}" in ended.errors
        assert "what to do: " in ended.errors


# Evaluation


def test_an_evaluation_stands_beside_what_has_to_be_beaten():
    folder = undisturbed("--seeds", "0,3", "--seeds-mode", "in-turn")
    ended = moose("evaluate", folder, "--episodes", 20, "--json", "--quiet")
    assert ended.code == 0, ended.errors
    result = json.loads(ended.out)
    assert result["protocol"] == {"episodes": 20, "steps": 100, "discount": 0.97, "seed": 0}
    rows = {row["name"]: row for row in result["controllers"]}
    assert list(rows) == [
        *("policy, seed 0", "policy, seed 3", "policy, all seeds"),
        *("hold", "data", "behaviour, expected"),
    ]
    assert rows["hold"]["mean"] == pytest.approx(-64.9, abs=0.5)
    assert rows["behaviour, expected"]["mean"] == pytest.approx(-275.5)
    assert (rows["data"]["episodes"], rows["data"]["cut_episodes"]) == (4, 4)
    seeds = [rows["policy, seed 0"]["mean"], rows["policy, seed 3"]["mean"]]
    assert rows["policy, all seeds"]["mean"] == pytest.approx(sum(seeds) / 2)
    assert all(row["percentile_10"] < row["mean"] for row in list(rows.values())[:5])
    assert result["tail"]["values"] == 2
    text = moose("evaluate", folder, "--episodes", 20, "--quiet").out
    assert f"{rows['policy, all seeds']['mean']:.2f}" in text
    assert f"{result['tail']['percentile_10']:.2f}" in text


def test_an_evaluation_needs_a_finished_run_but_not_its_data(tmp_path):
    run, data = tmp_path / "run", tmp_path / "data"
    shutil.copytree(log(), data)
    words = (*tiny_words(), "--evaluation-episodes", 0, "--quiet")
    cache = undisturbed().parent / "cache"
    assert moose("train", data, *words, "--out", run, "--cache", cache).code == 0
    shutil.rmtree(data)
    few = ("--episodes", 20, "--steps", 3, "--quiet", "--json")
    ended = moose("evaluate", run, *few)
    assert ended.code == 0, ended.errors
    assert "warning: leaving out the data's own return" in ended.errors
    result = json.loads(ended.out)
    assert [row["name"] for row in result["controllers"]] == ["policy", "hold"]
    assert result["tail"] is None
    shutil.rmtree(run / "policy")
    ended = moose("evaluate", run, *few)
    assert ended.code == 2
    assert "not finished" in ended.errors
    assert f"moose train --resume {run}" in ended.errors
