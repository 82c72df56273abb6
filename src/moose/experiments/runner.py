"""Training runs from request to policy: start, resume, evaluate."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from pydantic import Field

from moose.algorithms.registry import find_algorithm
from moose.config import Settings, build_settings, digest, load_settings, settings_tree
from moose.data.dataset import Dataset
from moose.envs import catalog
from moose.envs.plants import make_industrial_benchmark
from moose.envs.recipes import cache_folder
from moose.errors import RunError
from moose.evaluation.protocol import make_evaluator
from moose.experiments.run_folder import RunJournal, read_lines
from moose.models.actor import Actor, choose_action
from moose.policies.policy import Policy, load_policy, save_policy
from moose.progress import SILENT, Progress
from moose.storage import atomic_file, read_json, write_json
from moose.tasks.industrial_benchmark import make_task
from moose.tasks.task import Task
from moose.types import Act, Key, Params, Plant
from moose.version import __version__

_STAGE = "policy"
_MANIFEST_NAME = "manifest.json"
_EVALUATION_SEED = 20_000  # the resets of all evaluations; shared by all algorithms and seeds


class Request(Settings):
    """What a run is asked to do; with the data's fingerprint it determines the result."""

    data: str
    """A data set's name or folder."""
    algorithm: str = "moose"
    preset: str = "paper"
    config: dict[str, Any] = Field(default_factory=dict)
    """All settings of the algorithm, in full."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    evaluation_episodes: int = Field(default=10, ge=0)
    """Episodes of each evaluation in the true plant; 0 for none."""


def make_request(
    data: str,
    *,
    algorithm: str = "moose",
    preset: str = "paper",
    file: Path | None = None,
    overrides: Sequence[str] = (),
    seed: int = 0,
    evaluation_episodes: int = 10,
) -> Request:
    """Check names and settings and write them out in full.

    Args:
        data: A data set's name or folder.
        algorithm: The algorithm's name.
        preset: One of its presets.
        file: A YAML file of settings put over the preset.
        overrides: Texts ``a.b=c`` put over both.
        seed: Seed of all randomness in training.
        evaluation_episodes: Episodes of each evaluation.

    Returns:
        The request.
    """
    known = find_algorithm(algorithm)
    config = load_settings(known.config, base=known.preset(preset), file=file, overrides=overrides)
    return Request(
        data=data,
        algorithm=algorithm,
        preset=preset,
        config=settings_tree(config),
        seed=seed,
        evaluation_episodes=evaluation_episodes,
    )


def start_run(
    request: Request,
    folder: Path,
    *,
    cache: Path | None = None,
    progress: Progress = SILENT,
    warn: Callable[[str], None] = lambda text: None,
) -> Policy:
    """Begin a run in a new folder.

    Args:
        request: What to do.
        folder: The run's folder; must not hold a run yet.
        cache: Cache of data sets and fitted models; the user's own by default.
        progress: Whom to tell.
        warn: Called with a sentence when something is amiss but mended.

    Returns:
        The trained policy.
    """
    if (folder / _MANIFEST_NAME).exists():
        raise RunError(
            "This folder holds a run already.",
            where=str(folder),
            advice=f"go on with it by 'moose train --resume {folder}', or choose another folder",
        )
    dataset = catalog.find_dataset(request.data, cache=cache, progress=progress)
    manifest = {
        "format": "moose-run",
        "schema_version": 1,
        "request": settings_tree(request),
        "digest": digest(request, dataset.fingerprint),
        "data": {
            "fingerprint": dataset.fingerprint,
            "transitions": dataset.num_transitions,
            "episodes": dataset.num_episodes,
            "provenance": dataset.provenance,
        },
        "versions": versions(),
    }
    with atomic_file(folder / _MANIFEST_NAME) as temporary:
        write_json(temporary, manifest)
    return _train(request, dataset, folder, cache, progress, warn)


def resume_run(
    folder: Path,
    *,
    cache: Path | None = None,
    progress: Progress = SILENT,
    warn: Callable[[str], None] = lambda text: None,
) -> Policy:
    """Go on with an interrupted run from its last checkpoint; see :func:`start_run`."""
    manifest = read_run(folder)
    if (folder / _STAGE).exists():
        return load_policy(folder / _STAGE)
    request = build_settings(Request, manifest["request"], source=str(folder / _MANIFEST_NAME))
    dataset = catalog.find_dataset(request.data, cache=cache, progress=progress)
    if dataset.fingerprint != manifest["data"]["fingerprint"]:
        raise RunError(
            "The data set is not the one this run began with.",
            where=f"{folder}: {request.data}",
            advice="restore the data set, or start a new run",
        )
    for name, version in versions().items():
        if manifest["versions"].get(name) != version:
            warn(
                f"{name} was {manifest['versions'].get(name)} when this run began and is "
                f"{version} now: the result may differ in the last bits"
            )
    return _train(request, dataset, folder, cache, progress, warn)


def default_folder(request: Request) -> Path:
    """A folder below ``runs/`` named for the request, so that another request has another one."""
    label = request.data.rstrip("/").replace("/", "-")
    return Path("runs") / f"{request.algorithm}-{label}-{digest(request)}"


def read_run(folder: Path) -> dict[str, Any]:
    """The manifest of a run's folder."""
    if not (folder / _MANIFEST_NAME).is_file():
        raise RunError(
            "There is no run in this folder.",
            where=str(folder),
            advice="give the folder named by --out when the run began",
        )
    manifest = read_json(folder / _MANIFEST_NAME)
    if not isinstance(manifest, dict) or manifest.get("format") != "moose-run":
        raise RunError(
            "This folder's manifest is not that of a run.",
            where=str(folder / _MANIFEST_NAME),
            advice="give the folder named by --out when the run began",
        )
    return manifest


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """The evaluations made so far during a run."""
    return read_lines(folder / "evaluations.jsonl")


def versions() -> dict[str, str]:
    """What the bits of a result depend on besides its request."""
    packages = ("jax", "jaxlib", "numpy", "optax")
    return {
        "moose": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "machine": platform.machine(),
        "threads": os.environ.get("NPROC", str(os.cpu_count())),
    }


def find_task(dataset: Dataset) -> Task:
    """The task a data set belongs to, by its provenance."""
    if dataset.provenance.get("plant") == "industrial_benchmark":
        return make_task()
    raise RunError(
        "It is not known which plant this data set comes from.",
        where="data set's provenance",
        advice="use a data set from 'moose data list'",
    )


def find_plant(dataset: Dataset) -> Plant:
    """The true plant behind a benchmark data set, for evaluation."""
    recipe = dataset.provenance.get("recipe", {})
    return make_industrial_benchmark(float(recipe.get("setpoint", 70.0)))


def make_act(task: Task) -> Act:
    """The policy network as a function for playing in a plant."""

    def act(actor: Params, window: jax.Array, key: Key) -> jax.Array:
        return choose_action(actor, task, window)

    return act


def _train(
    request: Request,
    dataset: Dataset,
    folder: Path,
    cache: Path | None,
    progress: Progress,
    warn: Callable[[str], None],
) -> Policy:
    algorithm = find_algorithm(request.algorithm)
    config = build_settings(algorithm.config, request.config)
    task = find_task(dataset)
    journal = RunJournal(folder, cache or cache_folder(), warn)
    fitted = algorithm.fit(
        dataset,
        task,
        config,
        jax.random.key(request.seed),
        progress=progress,
        journal=journal,
        observe=_make_observer(request, dataset, task, journal),
    )
    policy = Policy(task=task.name, actor=fitted.actor)
    save_policy(policy, folder / _STAGE)
    return policy


def _make_observer(
    request: Request, dataset: Dataset, task: Task, journal: RunJournal
) -> Callable[[int, Actor], None] | None:
    """Play the policy in the true plant at every check; the same resets for all algorithms."""
    if request.evaluation_episodes == 0:
        return None
    measure = make_evaluator(
        find_plant(dataset),
        make_act(task),
        history=task.history,
        episodes=request.evaluation_episodes,
        steps=task.horizon,
        discount=task.discount,
    )

    def observe(step: int, actor: Actor) -> None:
        returns = np.asarray(measure(actor, evaluation_key(step)))
        journal.record_evaluation(_STAGE, step, {"returns": returns.tolist()})

    return observe


def evaluation_key(step: int) -> Key:
    """The resets of the evaluation after ``step`` updates."""
    return jax.random.fold_in(jax.random.key(_EVALUATION_SEED), step)
