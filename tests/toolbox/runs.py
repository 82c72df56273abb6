"""Tiny real trainings in processes of their own, which may be killed; see ``crash_driver``."""

from __future__ import annotations

import atexit
import dataclasses
import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax

from moose.experiments.run_folder import Request
from moose.experiments.runner import make_request
from moose.models.actor import DialActor
from moose.models.networks import init_network
from moose.policies.policy import load_policy, save_policy

FOLDER = Path(os.environ["MOOSE_TEST_FOLDER"])
DRIVER = Path(__file__).with_name("crash_driver.py")

TINY = {
    "dynamics": {"members": 2, "hidden": [8], "epochs": 2, "batch_size": 50},
    # Wider than the models, so that its checkpoint is the first that a small disk has no room for.
    "support": {"width": 12, "epochs": 1, "batch_size": 50},
    "search": {"hidden": [8], "updates": 2, "start_states": 3, "horizon": 4, "checks": 2},
}
TINY_CLONE = {"hidden": [8], "updates": 20, "checks": 10}
JUDGED_QUICKLY = (
    *("folds=2", "dynamics.epochs=1", "dynamics.hidden=[8]", "dynamics.batch_size=50"),
    *("support.epochs=1", "support.width=8", "behaviour.updates=5", "behaviour.hidden=[8]"),
    *("comparison.num_starts=4", "comparison.horizon=6"),
)
"""Settings of a judgement that says nothing, but soon."""
ROOM_FOR_MODELS_ONLY = (
    45_000  # bytes: more than a checkpoint of the models, less than the support's
)

# What is asked here is whether runs end alike, which those of a hasty compiler do as well. Its
# last bits are others than those that users have, so that its data sets are kept apart.
HASTY = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
    "MOOSE_CACHE": str(FOLDER / "hasty-cache"),
}


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    """Exit code, or minus the signal."""
    seconds: float
    out: str
    errors: str
    killed: tuple[int, ...] | list[int] = ()
    """Which workers of the grid were killed."""


def moose(*words, **manner) -> Ended:
    """Run the command line in a new process; ``manner`` is what :mod:`crash_driver` offers."""
    request = {"argv": [str(word) for word in words], **manner}
    return Ended(**_ask(json.dumps(request, default=str)))


def train(out, cache, *words, **manner) -> Ended:
    """Begin a tiny training in ``out``, or go on with the one that is there."""
    if (Path(out) / "manifest.json").exists():
        return moose("train", "--resume", out, "--cache", cache, "--quiet", **manner)
    tiny = (*tiny_words(), "--evaluation-episodes", 2)
    return moose("train", log(), *tiny, "--out", out, "--cache", cache, "--quiet", *words, **manner)


def give_dial(run) -> None:
    """Give the policy of a run a dial: what it learned at 0, an untrained network at 1."""
    place = Path(run) / "policy"
    policy = load_policy(place)
    behaviour = policy.actor.network
    inputs, outputs = behaviour[0].weight.shape[0], behaviour[-1].bias.shape[0]
    search = init_network(jax.random.key(1), (inputs + 1, 6, outputs))
    actor = DialActor(behaviour, search, policy.actor.scale, 0.5)
    shutil.rmtree(place)
    save_policy(dataclasses.replace(policy, actor=actor), place)


def grid_file(folder, name="tiny", *, seeds=(0,), clones=(0, 1)) -> Path:
    """A grid of tiny trainings: two algorithms on one data set."""
    data = {"data": [str(log())]}
    moose_choice = {"name": "moose", "settings": TINY}
    clone = {"name": "clone", "preset": "quick", "settings": TINY_CLONE}
    blocks = [
        data | {"algorithms": [clone], "seeds": list(clones)},
        data | {"algorithms": [moose_choice], "seeds": list(seeds)},
    ]
    file = Path(folder) / f"{name}.yaml"
    file.write_text(json.dumps({"name": name, "evaluation_episodes": 2, "blocks": blocks}))
    return file


def run_grid(file, out, cache, *words, **manner) -> Ended:
    """Run a grid with two workers of one thread each, or go on with it."""
    common = ("--workers", 2, "--threads", 1, "--quiet")
    return moose("grid", "run", file, "--out", out, "--cache", cache, *common, *words, **manner)


@functools.cache
def undisturbed_grid() -> Path:
    """The folder of a grid that nobody disturbed; its file is ``tiny.yaml`` beside it."""

    def make(place):
        ended = run_grid(grid_file(place), place / "grid", place / "cache")
        assert ended.code == 0, ended.errors

    return _once("undisturbed-grid", make) / "grid"


def outcome(folder) -> dict[str, bytes]:
    """All that has to be the same, bit for bit: policies, metrics and evaluations."""
    names = ("metrics.jsonl", "evaluations.jsonl", "tensors.safetensors")
    files = [file for name in names for file in Path(folder).rglob(name)]
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in files
        if "checkpoints" not in file.parts
    }


@functools.cache
def undisturbed(*words) -> Path:
    """The folder of a run that nobody disturbed; its cache is ``cache`` beside it."""

    def make(place):
        ended = train(place / "run", place / "cache", *words)
        assert ended.code == 0, ended.errors

    return _once(" ".join(["undisturbed", *map(str, words)]).replace(" ", "-"), make) / "run"


@functools.cache
def judged() -> Path:
    """The folder of an undisturbed run that was judged; its cache is ``cache`` beside it."""

    def make(place):
        for name in ("run", "cache"):
            shutil.copytree(undisturbed().parent / name, place / name)
        words = [word for change in JUDGED_QUICKLY for word in ("--set", change)]
        ended = moose("judge", place / "run", "--cache", place / "cache", "--quiet", *words)
        assert ended.code == 0, ended.errors
        assert "verdict: " in ended.out

    return _once("judged", make) / "run"


@functools.cache
def log() -> Path:
    """A data set of four short episodes."""

    def make(place):
        size = ("--episodes", 4, "--steps", 60, "--quiet")
        assert moose("data", "make", "ib/bad-0.2", *size, "--out", place / "log").code == 0

    return _once("log", make) / "log"


@functools.cache
def tiny_file() -> Path:
    """The settings of a tiny training."""

    def make(place):
        (place / "tiny.yaml").write_text(json.dumps(TINY))

    return _once("settings", make) / "tiny.yaml"


def tiny_request(**changes) -> Request:
    """The request of a tiny training."""
    request = {"data": str(log()), "evaluation_episodes": 2} | changes
    return make_request(algorithm="moose", file=tiny_file(), **request)


def tiny_words() -> tuple[str, ...]:
    """What to say for a tiny training."""
    return ("--algorithm", "moose", "--config", str(tiny_file()))


def _once(name, make) -> Path:
    """A folder that all processes of a parallel test run share, made by whoever comes first."""
    place = FOLDER / name
    with open(FOLDER / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "done").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            make(place)
            (place / "done").touch()
    return place


def _ask(line: str) -> dict:
    driver = _driver()
    driver.stdin.write(line + "\n")
    driver.stdin.flush()
    return json.loads(driver.stdout.readline())


@functools.cache
def _driver() -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    driver = subprocess.Popen([sys.executable, DRIVER], env=os.environ | HASTY, **pipes)
    assert json.loads(driver.stdout.readline()) == {"ready": True}
    atexit.register(_end, driver)
    return driver


def _end(driver):
    driver.stdin.close()
    driver.wait(timeout=60)
    driver.stdout.close()
