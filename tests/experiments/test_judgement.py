"""Runs of any algorithm are judged by their log, by models that are fitted once."""

from __future__ import annotations

import io
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from listening import Listener
from moose.config import settings_tree
from moose.data.files import load_dataset, save_dataset
from moose.data.normalize import measure
from moose.data.split import split_episodes
from moose.errors import RunError
from moose.experiments import runner
from moose.experiments.groups import divide
from moose.experiments.judgement import (
    JUDGEMENT,
    JudgeSettings,
    as_function,
    judge_run,
    judge_settings,
    render,
    told_of_the_dial,
)
from moose.experiments.report import write_report
from moose.experiments.run_folder import read_run, run_digest, write_run
from moose.models.actor import SampledActor, act
from moose.models.networks import init_network
from runs import JUDGED_QUICKLY, TINY_CLONE, give_dial, judged, log, moose
from toys import make_toy_task

SETTINGS = judge_settings(JUDGED_QUICKLY)
WORDS = [word for change in JUDGED_QUICKLY for word in ("--set", change)]
VERDICTS = {"deploy candidate", "too far from data", "models too weak", "nothing gained"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny run of MOOSE on four short episodes, judged; its cache is beside it."""
    folder = tmp_path_factory.mktemp("judgement")
    shutil.copytree(judged().parent, folder, dirs_exist_ok=True)
    return folder / "run"


@pytest.fixture(scope="module")
def found(run):
    return json.loads((run / JUDGEMENT).read_text())


def test_a_judgement_is_left_in_the_run(found):
    assert found["settings"] == settings_tree(SETTINGS)
    assert found["verdict"] in VERDICTS
    assert set(found["controllers"]) == {"policy", "clone", "hold", "log"}
    assert set(found["gains"]) == {"clone", "hold", "log"}
    assert found["protocol"]["models"] == 4
    assert found["protocol"]["steps"] == 6
    assert "2 folds of episodes" in found["protocol"]["manner"]
    assert len(found["models"]["stretches"]["logged"]) == 8
    for one in found["controllers"].values():
        assert np.isfinite(one["return"])
        assert len(one["new_by_step"]) == 6
        assert len(one["signals"]["velocity"][1]) == 7
    difference = found["controllers"]["policy"]["return"] - found["controllers"]["clone"]["return"]
    assert found["gains"]["clone"]["mean"] == pytest.approx(difference, abs=1e-3)


def test_models_are_fitted_once_and_the_answer_stays(run, found):
    cache = run.parent / "cache"
    (run / JUDGEMENT).unlink()
    ended = moose("judge", run, "--cache", cache, *WORDS)
    assert ended.code == 0, ended.errors
    stages = {json.loads(line)["stage"] for line in ended.errors.splitlines()}
    assert stages == {"imagining"}
    assert json.loads((run / JUDGEMENT).read_text()) == found
    listener = Listener()
    known = judge_run(run, SETTINGS, cache=cache, progress=listener, is_fresh=False)
    assert known.content == found
    assert listener.stages == []


def test_another_algorithm_on_a_single_episode_is_judged(tmp_path):
    episode = load_dataset(log()).select_episodes([0])
    save_dataset(episode, tmp_path / "data")
    request = runner.make_request(
        str(tmp_path / "data"), algorithm="clone", settings=[TINY_CLONE], evaluation_episodes=0
    )
    runner.start_run(request, tmp_path / "run")
    ended = moose("judge", tmp_path / "run", "--quiet", "--json", *WORDS)
    assert ended.code == 0, ended.errors
    content = json.loads(ended.out)
    assert "2 folds of blocks of time" in content["protocol"]["manner"]
    assert content["settings"] == settings_tree(SETTINGS)


def test_a_dial_is_judged_where_it_is_put(run, found, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    give_dial(tmp_path / "run")
    words = (tmp_path / "run", "--cache", run.parent / "cache", "--quiet", *WORDS)
    content = json.loads(moose("judge", *words, "--json").out)
    assert content["position"] == 0.5
    assert content["controllers"]["policy"] != found["controllers"]["policy"]
    ended = moose("report", *words, "--position", 0)  # where it does what the run had learned
    assert ended.code == 0, ended.errors
    content = json.loads((tmp_path / "run" / JUDGEMENT).read_text())
    assert content["position"] == content["settings"]["position"] == 0
    expected = found["controllers"]["policy"]["return"]
    assert content["controllers"]["policy"]["return"] == pytest.approx(expected, rel=1e-4)
    assert "dial: 0" in (tmp_path / "run" / "report.html").read_text()
    ended = moose("judge", run, "--cache", run.parent / "cache", *WORDS, "--position", 0.3)
    assert ended.code == 2
    assert "no dial" in ended.errors


def test_who_goes_too_far_is_told_where_to_turn(found):
    far = found | {"verdict": "too far from data", "position": 0.9}
    assert told_of_the_dial(far) == ["dial: 0.9; nearer to the log: --position 0.68"]
    assert told_of_the_dial(far | {"verdict": "nothing gained"}) == ["dial: 0.9"]
    assert told_of_the_dial(found) == []


def test_people_are_told_the_same(found):
    console = Console(width=500, record=True, file=io.StringIO())
    console.print(render(found))
    shown = console.export_text()
    assert f"verdict: {found['verdict']}" in shown
    assert f"{found['controllers']['policy']['return']:.2f}" in shown
    assert all(reason["text"] in shown for reason in found["reasons"])


def test_what_is_not_named_stays_as_it_is():
    changed = judge_settings(["dynamics.epochs=3"])
    assert changed.dynamics == JudgeSettings().dynamics.model_copy(update={"epochs": 3})
    assert changed.support == JudgeSettings().support


def test_enough_held_out_episodes_are_all_that_models_see(run):
    dataset, manifest = load_dataset(log()), read_run(run)
    enough = SETTINGS.model_copy(update={"enough_held_out": 50})
    ((fitted, measured),) = divide(dataset, manifest, enough).pairs
    train, held_out = split_episodes(4, 0.1, 0)
    np.testing.assert_array_equal(fitted, held_out)
    np.testing.assert_array_equal(measured, train)
    folds = divide(dataset, manifest, SETTINGS).pairs
    assert len(folds) == 2
    for fitted, measured in folds:
        assert not set(fitted) & set(measured)
        assert {*fitted, *measured} == set(range(4))


def test_a_policy_of_samples_becomes_a_function():
    task = make_toy_task()
    keys = jax.random.split(jax.random.key(0))
    statistics = measure(np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32))
    actor = SampledActor(
        init_network(keys[0], (6, 8, 4)), init_network(keys[1], (8, 8, 1)), statistics, 3
    )
    choose = jax.jit(as_function(actor, task, jax.random.key(1)))
    window = jnp.asarray([[0.1, 0.2, 0.3], [0.0, 0.0, 0.1]])
    np.testing.assert_array_equal(choose(window), choose(window))
    direct = act(actor, task, window, jax.random.key(1))
    assert direct.shape == choose(window).shape
    # Other situations get other samples: the same mean network would move far less.
    near = np.stack([choose(window + 1e-4 * i) for i in range(8)])
    assert near.std(axis=0).max() > 0.01


def test_what_cannot_be_judged_is_said(run, tmp_path):
    with pytest.raises(RunError, match="no run"):
        judge_run(tmp_path, SETTINGS)
    shutil.copytree(run, tmp_path / "unfinished")
    shutil.rmtree(tmp_path / "unfinished" / "policy")
    with pytest.raises(RunError, match="not finished"):
        judge_run(tmp_path / "unfinished", SETTINGS)
    manifest = read_run(run)
    other = manifest.data.model_copy(update={"fingerprint": "0" * 64})
    changes = {"data": other, "digest": run_digest(manifest.request, other.fingerprint, None)}
    shutil.copytree(run, tmp_path / "altered")
    write_run(tmp_path / "altered", manifest.model_copy(update=changes))
    with pytest.raises(RunError, match="fingerprint differs"):
        judge_run(tmp_path / "altered", SETTINGS)


def test_a_judgement_that_is_there_is_kept_whatever_its_settings(run):
    before = (run / JUDGEMENT).read_bytes()
    listener = Listener()
    known = judge_run(run, cache=run.parent / "cache", progress=listener, is_fresh=False)
    assert known.content == json.loads(before)
    assert known.content["settings"] == settings_tree(SETTINGS)
    assert (run / JUDGEMENT).read_bytes() == before
    assert "imagining" not in listener.stages


@pytest.mark.parametrize("work", [judge_run, write_report])
def test_a_folder_that_is_not_there_is_named(work, tmp_path):
    with pytest.raises(RunError, match="folder does not exist") as error:
        work(tmp_path / "nothere")
    assert error.value.where == str(tmp_path / "nothere")
