"""Checkpoints, lines and fitted models: what is kept, dropped, set aside and shared."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

from moose.errors import RunError, StorageError
from moose.experiments.journal import RunJournal, require_finite
from moose.experiments.run_folder import read_lines
from toys import assert_same_bits


def make_state(number=0.5):
    return {"weight": jnp.full((2, 3), number), "count": jnp.int32(7)}


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def journal(tmp_path, warnings):
    return RunJournal(tmp_path / "run", tmp_path / "cache", warnings.append)


def reopened(tmp_path, warnings=None):
    """What a resumed process gets."""
    warn = (warnings if warnings is not None else []).append
    return RunJournal(tmp_path / "run", tmp_path / "cache", warn)


def metrics(first, count):
    return {"loss": np.arange(first, first + count, dtype=np.float32)}


def steps(folder, stage, name="metrics.jsonl"):
    return [line["step"] for line in read_lines(folder / name) if line["stage"] == stage]


# Checkpoints and lines


def test_a_state_comes_back_with_its_step(tmp_path, journal):
    assert journal.restore("policy", make_state())[1] == 0
    journal.keep("policy", 4, make_state(0.25))
    journal.keep("policy", 8, make_state(0.1))
    state, done = reopened(tmp_path).restore("policy", make_state())
    assert done == 8
    assert_same_bits(state, make_state(0.1))
    assert journal.restore("models", make_state())[1] == 0


def test_lines_say_stage_step_and_numbers(tmp_path, journal):
    journal.record("models", 0, {"loss": np.float32([0.1, 2]), "norm": np.float32([3, 4])})
    journal.record_evaluation("policy", 0, [{"returns": [-1.5]}])
    assert read_lines(tmp_path / "run" / "metrics.jsonl") == [
        {"stage": "models", "step": 0, "loss": float(np.float32(0.1)), "norm": 3.0},
        {"stage": "models", "step": 1, "loss": 2.0, "norm": 4.0},
    ]
    assert read_lines(tmp_path / "run" / "evaluations.jsonl") == [
        {"stage": "policy", "step": 0, "returns": [-1.5]}
    ]


def test_lines_after_the_checkpoint_are_dropped(tmp_path, journal):
    run = tmp_path / "run"
    journal.record("models", 0, metrics(0, 3))
    journal.record_evaluation("policy", 0, [{}])
    journal.record("policy", 0, metrics(0, 4))
    journal.record_evaluation("policy", 4, [{}])
    journal.keep("policy", 4, make_state())
    journal.record("policy", 4, metrics(4, 4))
    journal.record_evaluation("policy", 8, [{}])
    resumed = reopened(tmp_path)
    assert steps(run, "policy") == [0, 1, 2, 3, 4, 5, 6, 7]
    resumed.restore("policy", make_state())
    assert steps(run, "policy") == [0, 1, 2, 3]
    assert steps(run, "policy", "evaluations.jsonl") == [0, 4]
    assert steps(run, "models") == [0, 1, 2]


def test_without_a_checkpoint_a_stage_begins_anew(tmp_path, journal):
    journal.record("models", 0, metrics(0, 2))
    journal.record_evaluation("policy", 0, [{}])
    journal.record("policy", 0, metrics(0, 4))
    journal.restore("policy", make_state())
    assert steps(tmp_path / "run", "policy") == []
    assert steps(tmp_path / "run", "policy", "evaluations.jsonl") == []
    assert steps(tmp_path / "run", "models") == [0, 1]


@pytest.mark.parametrize("torn", [b'{"stage": "models", "st', b"\0\0\0\0\n", b"\xff\xfe"])
def test_a_line_cut_in_two_is_dropped_before_another_follows(tmp_path, journal, torn):
    journal.record("models", 0, metrics(0, 2))
    with open(tmp_path / "run" / "metrics.jsonl", "ab") as stream:
        stream.write(torn)
    reopened(tmp_path).record("models", 2, metrics(2, 1))
    assert steps(tmp_path / "run", "models") == [0, 1, 2]


@pytest.mark.parametrize("damage", ["missing file", "other shape", "other stage", "no step"])
def test_a_checkpoint_that_cannot_be_trusted_is_set_aside(tmp_path, journal, warnings, damage):
    path = tmp_path / "run" / "checkpoints" / "policy"
    journal.record("policy", 0, metrics(0, 2))
    journal.keep("policy", 2, make_state(0.25))
    like = make_state()
    if damage == "missing file":
        (path / "tensors.safetensors").unlink()
    elif damage == "other shape":
        like["weight"] = jnp.zeros((3, 3))
    elif damage == "other stage":
        journal.keep("models", 2, make_state())
        shutil.rmtree(path)
        path.with_name("models").rename(path)
    else:
        journal.keep("policy", 0, make_state())
    state, done = journal.restore("policy", like)
    assert done == 0
    assert state is like
    assert steps(tmp_path / "run", "policy") == []
    aside = path.with_name("policy.damaged-0")
    assert aside.is_dir()
    (warning,) = warnings
    assert str(aside) in warning


def test_what_is_set_aside_replaces_nothing(tmp_path, journal):
    place = tmp_path / "run" / "checkpoints"
    for number in (0, 2):
        (place / f"policy.damaged-{number}").mkdir()
        (place / f"policy.damaged-{number}" / "precious").touch()
    for number in (1, 3):
        journal.keep("policy", 1, make_state())
        (place / "policy" / "manifest.json").write_text("")
        journal.restore("policy", make_state())
        assert (place / f"policy.damaged-{number}" / "manifest.json").exists()
    assert len(list(place.glob("*/precious"))) == 2


def test_leftovers_of_killed_processes_are_swept_up(tmp_path, journal):
    places = [tmp_path / "run", tmp_path / "run" / "checkpoints", tmp_path / "cache" / "fitted"]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        (place / ".tmp-policy-12345678").mkdir()
        (place / ".tmp-policy-12345678" / "tensors.safetensors").touch()
    reopened(tmp_path)
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Cannot read or write here"):
        RunJournal(tmp_path / "file", tmp_path / "cache")


def test_a_full_disk_is_told_by_name_and_does_no_harm(tmp_path, journal, monkeypatch):
    journal.record("models", 0, metrics(0, 2))
    file = tmp_path / "run" / "metrics.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(StorageError, match="No space left") as caught:
            journal.record("models", 2, metrics(2, 2))
    assert caught.value.where == str(file)
    file.write_bytes(file.read_bytes()[:-5])  # what a full disk leaves
    reopened(tmp_path).restore("models", make_state())
    assert read_lines(file) == []


def full_disk(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Seeds that are trained together


def test_each_seed_gets_its_own_lines(tmp_path):
    places = [tmp_path / "run" / "seed-0", tmp_path / "run" / "seed-3"]
    journal = RunJournal(tmp_path / "run", tmp_path / "cache", seed_folders=places)
    journal.record("policy", 5, {"loss": np.float32([[1, 2], [3, 4]])})
    journal.record_evaluation("policy", 7, [{"returns": [1.0]}, {"returns": [2.0]}])
    for i, place in enumerate(places):
        lines = read_lines(place / "metrics.jsonl")
        assert [line["loss"] for line in lines] == [1.0 + i, 3.0 + i]
        assert [line["step"] for line in lines] == [5, 6]
        assert read_lines(place / "evaluations.jsonl")[0]["returns"] == [1.0 + i]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_seeds_share_their_checkpoint_and_drop_lines_alike(tmp_path):
    places = [tmp_path / "run" / "seed-0", tmp_path / "run" / "seed-3"]
    journal = RunJournal(tmp_path / "run", tmp_path / "cache", seed_folders=places)
    journal.record("policy", 0, {"loss": np.ones((2, 2), np.float32)})
    journal.keep("policy", 2, {"weight": jnp.ones((2, 4))})
    journal.record("policy", 2, {"loss": np.ones((2, 2), np.float32)})
    text = (places[1] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (places[1] / "metrics.jsonl").write_text("".join(text[:3]))  # died between the two seeds
    state, done = journal.restore("policy", {"weight": jnp.zeros((2, 4))})
    assert done == 2
    assert_same_bits(state, {"weight": jnp.ones((2, 4))})
    assert [steps(place, "policy") for place in places] == [[0, 1], [0, 1]]


# Fitted models


def fit(journal, number=0.25, digest="abc", calls=None):
    def make():
        if calls is not None:
            calls.append(number)
        return make_state(number)

    return journal.once("models", digest, make_state(), make)


def test_what_was_fitted_once_is_shared_with_other_runs(tmp_path, journal):
    calls = []
    first = fit(journal, calls=calls)
    other = RunJournal(tmp_path / "other", tmp_path / "cache")
    assert_same_bits(fit(other, 0.75, calls=calls), first)
    assert calls == [0.25]
    assert_same_bits(fit(other, 0.75, digest="abd", calls=calls), make_state(0.75))
    assert calls == [0.25, 0.75]


FITTER = """
import sys, time
from pathlib import Path
import jax.numpy as jnp
from moose.experiments.journal import RunJournal

folder, name = Path(sys.argv[1]), sys.argv[2]
journal = RunJournal(folder / name, folder / "cache")

def make():
    print("fits", flush=True)
    (folder / name / "fitting").touch()
    sys.stdin.readline()
    return {"weight": jnp.full((2, 3), 0.25)}

def meanwhile():
    print("does something else", flush=True)

like = {"weight": jnp.zeros((2, 3))}
result = journal.once("models", "abc", like, make, meanwhile=meanwhile)
print("got", float(result["weight"][0, 0]), flush=True)
"""


def fitter(tmp_path, name):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", FITTER, str(tmp_path), name], **pipes)


@pytest.mark.parametrize("is_killed", [False, True])
def test_of_two_processes_one_fits_and_the_other_waits(tmp_path, is_killed):
    first = fitter(tmp_path, "one")
    assert first.stdout.readline() == "fits\n"
    second = fitter(tmp_path, "two")
    assert second.stdout.readline() == "does something else\n"
    time.sleep(0.3)
    assert not (tmp_path / "two" / "fitting").exists()
    if is_killed:  # then the other one has to do it
        first.kill()
        assert second.stdout.readline() == "fits\n"
        assert second.communicate("go\n")[0] == "got 0.25\n"
    else:
        assert first.communicate("go\n")[0] == "got 0.25\n"
        assert second.communicate()[0] == "got 0.25\n"
    first.communicate()


def test_a_damaged_fitted_model_is_made_again(tmp_path, journal, warnings):
    fit(journal)
    tensors = tmp_path / "cache" / "fitted" / "models-abc" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    calls = []
    assert_same_bits(fit(journal, calls=calls), make_state(0.25))
    assert calls == [0.25]
    assert (tmp_path / "cache" / "fitted" / "models-abc.damaged-0").is_dir()
    assert len(warnings) == 1
    assert_same_bits(fit(journal, 0.75, calls=calls), make_state(0.25))
    assert calls == [0.25]


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(tmp_path, warnings):
    (tmp_path / "cache").touch()
    journal = RunJournal(tmp_path / "run", tmp_path / "cache", warnings.append)
    assert_same_bits(fit(journal), make_state(0.25))
    (warning,) = warnings
    assert "cannot share what was fitted as 'models'" in warning


def test_what_is_not_finite_is_not_shared(tmp_path, journal):
    with pytest.raises(RunError, match="'models' holds numbers that are not finite"):
        fit(journal, float("nan"))
    assert not list((tmp_path / "cache").rglob("models-*"))


def test_finite_numbers_of_all_types_pass():
    tree = {"a": jnp.ones(3), "b": np.int32(4), "c": jnp.array(True), "d": None}
    require_finite(tree, "all", "here")
    with pytest.raises(RunError, match="Training went astray: all holds") as caught:
        require_finite(tree | {"e": np.float32([1, np.inf])}, "all", "here")
    assert caught.value.where == "here"
