"""Runs that end the same whatever happens to them, and say so when they cannot."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from moose.config import load_settings
from moose.errors import ConfigError, RunError, StorageError
from moose.experiments import run_folder, runner
from moose.experiments.replay import read_log, replay
from moose.policies.plain import load_policy as load_plain
from runs import ROOM_FOR_MODELS_ONLY, log, moose, outcome, tiny_request, train, undisturbed

KILLS = 20
VERSIONS = runner.versions()


def stages(folder):
    return {line["stage"] for line in run_folder.read_lines(folder / "metrics.jsonl")}


def test_a_run_leaves_what_the_documentation_says():
    folder = undisturbed()
    lines = run_folder.read_lines(folder / "metrics.jsonl")
    assert [(line["stage"], line["step"]) for line in lines] == [
        *(("models", 0), ("models", 1), ("support", 0), ("policy", 0), ("policy", 1))
    ]
    evaluations = run_folder.read_evaluations(folder)
    assert [line["step"] for line in evaluations] == [0, 1, 2]
    assert all(len(line["returns"]) == 2 for line in evaluations)
    visible = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}
    assert visible == {
        *("manifest.json", "metrics.jsonl", "evaluations.jsonl", "checkpoints", "policy")
    }
    manifest = run_folder.read_run(folder)
    assert manifest.request.data == str(log())
    assert manifest.data.episodes == 4
    assert manifest.versions == runner.versions()
    assert runner.is_finished(folder)


def test_the_policy_of_a_run_is_an_artifact():
    folder = undisturbed()
    manifest = run_folder.read_run(folder)
    controller = load_plain(folder / "policy")
    origin = controller.manifest["origin"]
    assert origin["digest"] == manifest.digest
    assert origin["data"]["fingerprint"] == manifest.data.fingerprint
    assert origin["config"] == manifest.request.config
    assert controller.facts.observation_names[0] == "setpoint"
    # By the data's own measure, the log is familiar.
    replayed, _ = replay(controller, read_log(str(log()), controller.facts))
    novelty = np.concatenate([episode.logged_novelty for episode in replayed])
    assert 0.3 < np.median(novelty) < 0.7
    assert np.mean(novelty <= 1.001) > 0.7  # all of the training episodes


# Interruptions


@pytest.mark.slow
def test_a_process_that_dies_at_any_write_changes_nothing(tmp_path):
    """It dies once right before every kind of write there is, and is resumed every time."""
    run, cache, seen = tmp_path / "run", tmp_path / "cache", tmp_path / "seen"
    seen.touch()
    deaths = 0
    while (ended := train(run, cache, roots=[run, cache], seen=seen)).code == 9:
        deaths += 1
    assert ended.code == 0, ended.errors
    assert outcome(run) == outcome(undisturbed())
    died_at = seen.read_text().splitlines()
    assert len(died_at) == len(set(died_at)) == deaths
    for step in ("write", "flush", "rename", "swap", "remove", "make folder", "remove folder"):
        assert any(label.startswith(step) for label in died_at), step
    for place in ("manifest.json", "metrics.jsonl", "evaluations.jsonl", ".tmp-policy"):
        assert f"rename 0:.tmp-{place.removeprefix('.tmp-')}" in died_at
    for stage in ("models", "support", "policy"):
        assert f"write 0:checkpoints/.tmp-{stage}/tensors.safetensors" in died_at
        assert f"rename 0:checkpoints/.tmp-{stage}" in died_at
    for kind in ("models", "support"):
        assert any(label.startswith(f"rename 1:fitted/.tmp-{kind}") for label in died_at)
    hidden = [file.name for file in tmp_path.rglob(".*") if file.name != ".lock"]
    assert hidden == []


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(tmp_path):
    rng = random.Random(0)  # noqa: S311
    undisturbed()  # the programs are compiled by now
    duration = train(tmp_path / "timed", tmp_path / "timed-cache").seconds
    kills = chains = 0
    while kills < KILLS:
        run, cache = tmp_path / f"run-{chains}", tmp_path / f"cache-{chains}"
        moments = (rng.uniform(0, duration) if kills < KILLS else None for _ in itertools.count())
        while (ended := train(run, cache, kill_after=next(moments))).code != 0:
            assert ended.code == -signal.SIGKILL, ended.errors
            kills += 1
        assert outcome(run) == outcome(undisturbed())
        chains += 1


@pytest.mark.parametrize(
    ("stage", "file"), [("models", "manifest.json"), ("policy", "tensors.safetensors")]
)
def test_a_damaged_checkpoint_is_set_aside(tmp_path, stage, file):
    run, cache = tmp_path / "run", tmp_path / "cache"
    shutil.copytree(undisturbed(), run)
    shutil.rmtree(run / "policy")
    damaged = run / "checkpoints" / stage / file
    damaged.write_bytes(damaged.read_bytes()[:-7])
    if stage == "policy":
        shutil.copytree(undisturbed().parent / "cache", cache)
    else:  # died while the models were fitted
        for later in ("support", "policy"):
            shutil.rmtree(run / "checkpoints" / later)
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run / "metrics.jsonl").write_text("".join(lines[:2]))
    ended = train(run, cache)
    assert ended.code == 0, ended.errors
    assert f"set aside {run / 'checkpoints' / stage}.damaged-0" in ended.errors
    assert (run / "checkpoints" / f"{stage}.damaged-0" / file).read_bytes()
    assert outcome(run) == outcome(undisturbed())


def test_a_damaged_policy_is_made_again(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(undisturbed(), run)
    assert runner.is_finished(run)
    (run / "policy" / "tensors.safetensors").write_bytes(b"")
    assert not runner.is_finished(run)
    ended = train(run, undisturbed().parent / "cache")
    assert ended.code == 0, ended.errors
    assert f"set aside {run / 'policy'}.damaged-0" in ended.errors
    assert "finished already" not in ended.out
    shutil.rmtree(run / "policy.damaged-0")
    assert outcome(run) == outcome(undisturbed())


def test_a_full_disk_is_told_and_does_no_harm(tmp_path):
    run, cache = tmp_path / "run", tmp_path / "cache"
    ended = train(run, cache, file_limit=ROOM_FOR_MODELS_ONLY)
    assert ended.code == 2
    assert "Error: Cannot read or write here: File too large." in ended.errors
    assert f"where:      {run / 'checkpoints' / 'support'}" in ended.errors
    assert "what to do: free some space" in ended.errors
    assert stages(run) == {"models", "support"}
    ended = train(run, cache)
    assert ended.code == 0, ended.errors
    assert outcome(run) == outcome(undisturbed())


# Fitted models


def test_models_are_fitted_once_for_several_policies(tmp_path):
    cache = undisturbed().parent / "cache"
    ended = train(tmp_path / "run", cache, "--set", "search.return_weight=0.5")
    assert ended.code == 0, ended.errors
    assert stages(tmp_path / "run") == {"policy"}
    assert outcome(tmp_path / "run") != outcome(undisturbed())


def test_a_damaged_fitted_model_is_fitted_again(tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(undisturbed().parent / "cache", cache)
    (models,) = (cache / "fitted").glob("models-*")
    tensors = bytearray((models / "tensors.safetensors").read_bytes())
    tensors[-1] ^= 1
    (models / "tensors.safetensors").write_bytes(tensors)
    ended = train(tmp_path / "run", cache)
    assert ended.code == 0, ended.errors
    assert f"set aside {models}.damaged-0" in ended.errors
    assert stages(tmp_path / "run") == {"models", "policy"}
    policy = Path("policy") / "tensors.safetensors"
    assert (tmp_path / "run" / policy).read_bytes() == (undisturbed() / policy).read_bytes()


# Divergence


def test_a_run_that_goes_astray_stops_with_the_metric_and_the_step(tmp_path):
    run, cache = tmp_path / "run", tmp_path / "cache"
    shutil.copytree(undisturbed().parent / "cache", cache)
    ended = train(run, cache, "--set", "support.learning_rate=1e30")
    assert ended.code == 2
    assert "Error: Training went astray: loss not finite or beyond its limit." in ended.errors
    assert "where:      stage 'support', step 0 (loss " in ended.errors
    assert "what to do: lower the learning rate" in ended.errors
    assert not (run / "policy").exists()
    assert stages(run) == set()
    assert len(list((cache / "fitted").glob("support-*"))) == 1  # that of the sound run


# Several seeds


@pytest.fixture(params=["together", "in-turn"])
def group(request):
    return request.param, undisturbed("--seeds", "0,3", "--seeds-mode", request.param)


def test_each_seed_of_a_group_has_a_run_folder(group):
    mode, folder = group
    manifest = run_folder.read_run(folder)
    assert (manifest.seeds, manifest.mode) == ((0, 3), mode)
    assert (folder / "checkpoints").exists() == (mode == "together")
    for seed in (0, 3):
        one = folder / f"seed-{seed}"
        assert run_folder.read_run(one).request.seed == seed
        assert stages(one) == {"models", "support", "policy"}
        assert [line["step"] for line in run_folder.read_evaluations(one)] == [0, 1, 2]
        assert (one / "policy").is_dir()
        assert (one / "checkpoints").exists() == (mode == "in-turn")


def test_seeds_in_turn_give_what_each_alone_would_give():
    group = undisturbed("--seeds", "0,3", "--seeds-mode", "in-turn")
    assert outcome(group / "seed-0") == outcome(undisturbed())
    assert outcome(group / "seed-3") == outcome(undisturbed("--seed", 3))


def test_seeds_together_give_what_each_alone_would_give_up_to_rounding():
    together = undisturbed("--seeds", "0,3", "--seeds-mode", "together")
    in_turn = undisturbed("--seeds", "0,3", "--seeds-mode", "in-turn")
    for seed in ("seed-0", "seed-3"):
        for tensors in ("tensors.safetensors", "support.safetensors"):
            policy = Path(seed) / "policy" / tensors
            ours, theirs = load_file(together / policy), load_file(in_turn / policy)
            assert ours.keys() == theirs.keys()
            for name in ours:
                np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6)
        for file in ("metrics.jsonl", "evaluations.jsonl"):
            one, other = (run_folder.read_lines(f / seed / file) for f in (together, in_turn))
            assert [line.keys() for line in one] == [line.keys() for line in other]
            for line, reference in zip(one, other, strict=True):
                assert line == {
                    name: value if isinstance(value, str) else pytest.approx(value, rel=1e-3)
                    for name, value in reference.items()
                }


@pytest.mark.slow
def test_a_group_that_dies_at_any_write_of_a_seed_changes_nothing(tmp_path):
    run, cache, seen = tmp_path / "run", tmp_path / "cache", tmp_path / "seen"
    seen.touch()
    words = ("--seeds", "0,3", "--seeds-mode", "together")
    watch = {"roots": [run], "seen": seen, "only": "(write|rename) 0:seed-3/"}
    while (ended := train(run, cache, *words, **watch)).code == 9:
        pass
    assert ended.code == 0, ended.errors
    assert {label.partition("seed-3/")[2] for label in seen.read_text().splitlines()} == {
        *(".tmp-manifest.json", "metrics.jsonl", "evaluations.jsonl"),
        *(".tmp-policy", ".tmp-policy/manifest.json", ".tmp-policy/tensors.safetensors"),
        *(".tmp-policy/support.safetensors", ".tmp-policy/examples.safetensors"),
    }
    assert outcome(run) == outcome(undisturbed(*words))


def test_a_killed_group_goes_on_with_the_seed_that_it_had_come_to(tmp_path):
    run, cache = tmp_path / "run", tmp_path / "cache"
    words = ("--seeds", "0,3", "--seeds-mode", "in-turn")
    when = run / "seed-3" / "metrics.jsonl"
    assert train(run, cache, *words, signal=signal.SIGKILL, when=when).code == -signal.SIGKILL
    before = (run / "seed-0" / "policy").stat().st_mtime_ns
    assert not runner.is_finished(run)
    ended = train(run, cache)
    assert ended.code == 0, ended.errors
    assert (run / "seed-0" / "policy").stat().st_mtime_ns == before
    assert outcome(run) == outcome(undisturbed(*words))


def test_a_seed_of_a_group_is_resumed_with_the_group(group):
    _, folder = group
    with pytest.raises(RunError, match="one of several seeds") as caught:
        runner.resume_run(folder / "seed-0")
    assert caught.value.advice == f"moose train --resume {folder}"


# What cannot go on


def test_two_processes_do_not_work_on_one_run(tmp_path):
    run = runner.begin_run(tiny_request(), tmp_path / "run")
    with run_folder.locked(run):
        ended = train(run, tmp_path / "cache")
    assert ended.code == 2
    assert "Another process works on this run (process " in ended.errors
    assert not (run / "metrics.jsonl").exists()


class BeganError(Exception):
    """Training began."""


@pytest.fixture
def untrained(monkeypatch):
    """Training only says that it began."""

    def begin(*arguments):
        raise BeganError

    monkeypatch.setattr(runner, "_train_seeds", begin)


@pytest.mark.usefixtures("untrained")
def test_the_data_may_be_missing_or_altered_or_moved(tmp_path):
    data, run = tmp_path / "data", tmp_path / "run"
    shutil.copytree(log(), data)
    runner.begin_run(tiny_request(data=str(data)), run)
    data.rename(tmp_path / "moved")
    with pytest.raises(RunError, match="cannot be had") as caught:
        runner.resume_run(run)
    assert caught.value.where == str(data)
    assert f"moose train FOLDER --resume {run}" in caught.value.advice
    size = ("--episodes", 4, "--steps", 60, "--seed", 1)
    assert moose("data", "make", "ib/bad-0.2", *size, "--out", data, "--quiet").code == 0
    with pytest.raises(RunError, match="not the one that this run began with"):
        runner.resume_run(run)
    (data / "manifest.json").write_text("{}")
    with pytest.raises(RunError, match="cannot be had"):
        runner.resume_run(run)
    with pytest.raises(BeganError):
        runner.resume_run(run, data=str(tmp_path / "moved"))


@pytest.mark.usefixtures("untrained")
def test_another_version_is_told(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(runner, "versions", lambda: VERSIONS | {"jax": "0.0.1"})
        runner.begin_run(tiny_request(), tmp_path / "run")
    warnings = []
    with pytest.raises(BeganError):
        runner.resume_run(tmp_path / "run", warn=warnings.append)
    (warning,) = warnings
    assert warning.startswith("jax was 0.0.1 when this run began and is ")


# Beginning


def test_a_request_is_written_out_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(log().parent)
    file = tmp_path / "settings.yaml"
    file.write_text("search: {updates: 7, horizon: 3}")
    request = runner.make_request(
        "log", algorithm="moose", preset="quick", file=file, overrides=["search.updates=9"], seed=5
    )
    assert request.data == str(log())  # a run may be resumed from elsewhere
    assert request.seed == 5
    config = request.config
    assert (config["search"]["updates"], config["search"]["horizon"]) == (9, 3)
    assert config["dynamics"]["hidden"] == [64, 64]
    assert load_settings(type(request), base=json.loads(request.model_dump_json())) == request


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"algorithm": "mose"}, "no algorithm 'mose'"),
        ({"preset": "papr"}, "no preset 'papr'"),
        ({"seed": -1}, "seed: .*greater than or equal to 0"),
        ({"evaluation_episodes": -1}, "evaluation_episodes: .*greater than or equal to 0"),
        ({"overrides": ["search.updats=3", "dynamic.epochs=1"]}, "2 settings are wrong"),
    ],
)
def test_a_wrong_request_is_refused(changes, complaint):
    with pytest.raises(ConfigError, match=complaint):
        runner.make_request("ib/bad-0.2", **changes)


def test_a_run_is_named_by_what_it_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = runner.begin_run(tiny_request())
    assert first == Path("runs") / f"moose-log-{run_folder.read_run(first).digest}"
    with pytest.raises(RunError, match="holds a run already"):
        runner.begin_run(tiny_request())
    names = {
        first,
        runner.begin_run(tiny_request(seed=1)),
        runner.begin_run(tiny_request(), seeds=(0, 1)),
        runner.begin_run(tiny_request(), seeds=(0, 2)),
        runner.begin_run(tiny_request(overrides=["search.updates=3"])),
    }
    assert len(names) == 5


def test_seeds_are_trained_together_if_they_fit(tmp_path, monkeypatch):
    for free, mode in ((10**10, "together"), (10**6, "in-turn"), (None, "in-turn")):
        monkeypatch.setattr("moose.experiments.seeds.free_memory", lambda free=free: free)
        run = runner.begin_run(tiny_request(), tmp_path / f"{free}", seeds=(0, 1))
        assert run_folder.read_run(run).mode == mode
    for seeds in ((), (1, 2, 1)):
        with pytest.raises(ConfigError):
            runner.begin_run(tiny_request(), tmp_path / "wrong", seeds=seeds)
    assert not (tmp_path / "wrong").exists()


def test_a_failed_start_leaves_nothing(tmp_path):
    with pytest.raises(ConfigError, match="neither a folder nor the name"):
        runner.begin_run(runner.make_request("ib/bed-0.2"), tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="not empty"):
        runner.begin_run(tiny_request(), tmp_path)
    with pytest.raises(StorageError, match="Not a directory"):
        runner.begin_run(tiny_request(), tmp_path / "file" / "run")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
