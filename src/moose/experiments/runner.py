"""Training runs from request to policy: begin, go on after an interruption, finish.

    request = make_request("ib/bad-0.2", preset="quick")
    folder = begin_run(request, Path("runs/first"))     # from now on it can be resumed
    policies = resume_run(folder)                       # one for each seed

Beginning writes the manifest and trains nothing; :func:`resume_run` does all the work, so that a
run which was never interrupted takes the same way as one that was.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from moose.algorithms.registry import DEFAULT_ALGORITHM, find_algorithm
from moose.config import build_settings, load_settings, merge, settings_tree
from moose.data.dataset import Dataset
from moose.envs import catalog
from moose.envs.recipes import cache_folder
from moose.errors import DataError, RunError, StorageError, UserError
from moose.experiments.evaluate import make_observer
from moose.experiments.journal import RunJournal, Warn, require_finite, set_aside
from moose.experiments.run_folder import (
    POLICY,
    DataRecord,
    Manifest,
    Mode,
    Request,
    locked,
    read_run,
    require_free,
    resume_command,
    run_digest,
    seed_folders,
    write_run,
)
from moose.experiments.seeds import SeedProgress, choose_mode, require_distinct
from moose.models.support import Familiarity
from moose.policies.policy import Policy, facts_of, load_policy, save_policy
from moose.progress import SILENT, Progress
from moose.storage import MANIFEST
from moose.tasks.registry import task_of
from moose.types import Key
from moose.version import __version__


def make_request(
    data: str,
    *,
    algorithm: str = DEFAULT_ALGORITHM,
    preset: str | None = None,
    settings: Sequence[Mapping[str, Any]] = (),
    file: Path | None = None,
    overrides: Sequence[str] = (),
    seed: int = 0,
    evaluation_episodes: int = 10,
) -> Request:
    """Check names and settings and write them out in full.

    Args:
        data: A data set's name or folder.
        algorithm: The algorithm's name.
        preset: One of its presets; by default its first.
        settings: Trees of settings put over the preset, one after the other.
        file: A YAML file of settings put over both.
        overrides: Texts ``a.b=c`` put over all of them.
        seed: Seed of all randomness in training.
        evaluation_episodes: Episodes of each evaluation.

    Returns:
        The request.
    """
    known = find_algorithm(algorithm)
    preset = known.default_preset if preset is None else preset
    base = functools.reduce(merge, settings, known.preset(preset))
    config = load_settings(known.config, base=base, file=file, overrides=overrides)
    tree = {
        # A run may be resumed from another working directory.
        "data": os.path.abspath(data) if Path(data).is_dir() else data,
        "algorithm": algorithm,
        "preset": preset,
        "config": settings_tree(config),
        "seed": seed,
        "evaluation_episodes": evaluation_episodes,
    }
    return build_settings(Request, tree, source="what was asked for")


def begin_run(
    request: Request,
    folder: Path | None = None,
    *,
    seeds: Sequence[int] | None = None,
    mode: Mode | Literal["auto"] = "auto",
    cache: Path | None = None,
    progress: Progress = SILENT,
) -> Path:
    """Begin a run: find its data and write down what is to be done.

    Args:
        request: What to do.
        folder: The run's folder, empty or new; by default one below ``runs/`` named by its digest.
        seeds: Several seeds, each of which gets a run folder of its own below this one.
        mode: Train them together, in turn, or together if they are known to fit into memory.
        cache: Cache of data sets and fitted models; the user's own by default.
        progress: Whom to tell, should the data have to be made.

    Returns:
        The run's folder, for :func:`resume_run`.
    """
    if folder is not None:
        require_free(folder)  # before the work, and again when nobody else can get in between
    dataset = catalog.find_dataset(request.data, cache=cache, progress=progress)
    task = task_of(dataset.provenance)
    task.require(dataset)
    if task.definition is not None:  # a plant of the user's own: there is no simulator
        request = request.model_copy(update={"evaluation_episodes": 0})
    if seeds is not None:
        require_distinct(seeds)
        request = request.model_copy(update={"seed": seeds[0]})
        if mode == "auto":
            config = build_settings(find_algorithm(request.algorithm).config, request.config)
            mode = choose_mode(len(seeds), config, task, dataset)
    group = None if seeds is None else tuple(seeds)
    manifest = Manifest(
        request=request,
        digest=run_digest(request, dataset.fingerprint, group),
        data=DataRecord(
            fingerprint=dataset.fingerprint,
            transitions=dataset.num_transitions,
            episodes=dataset.num_episodes,
            provenance=dataset.provenance,
        ),
        versions=versions_here(),
        seeds=group,
        mode=None if group is None or mode == "auto" else mode,
    )
    folder = _default_folder(manifest) if folder is None else folder
    require_free(folder)
    with locked(folder):
        require_free(folder)
        write_run(folder, manifest)
    return folder


def resume_run(
    folder: Path,
    *,
    data: str | None = None,
    cache: Path | None = None,
    progress: Progress = SILENT,
    warn: Warn = lambda text: None,
) -> tuple[Policy, ...]:
    """Go on with a run from its last checkpoint, until it is finished.

    Args:
        folder: The run's folder.
        data: Where the data set is now, if it has moved since.
        cache: Cache of data sets and fitted models; the user's own by default.
        progress: Whom to tell.
        warn: Called with a sentence when something is amiss but mended.

    Returns:
        The trained policy of each seed.
    """
    manifest = read_run(folder)
    if manifest.is_part_of_group:
        raise RunError(
            "This run is one of several seeds, which are resumed as one.",
            where=str(folder),
            advice=f"{resume_command(Path(os.path.abspath(folder)).parent)}",
        )
    with locked(folder):
        places = seed_folders(folder, manifest)
        is_done = [_has_sound_policy(place, warn) for place in places.values()]
        if not all(is_done):
            dataset = _find_data(folder, manifest, data, cache, progress)
            _compare_versions(manifest, warn)
            _train_seeds(folder, manifest, dataset, cache or cache_folder(), progress, warn)
        return tuple(load_policy(place / POLICY) for place in places.values())


def start_run(
    request: Request,
    folder: Path | None = None,
    *,
    seeds: Sequence[int] | None = None,
    mode: Mode | Literal["auto"] = "auto",
    cache: Path | None = None,
    progress: Progress = SILENT,
    warn: Warn = lambda text: None,
) -> tuple[Policy, ...]:
    """:func:`begin_run` and :func:`resume_run` in one."""
    begun = begin_run(request, folder, seeds=seeds, mode=mode, cache=cache, progress=progress)
    return resume_run(begun, cache=cache, progress=progress, warn=warn)


def continue_run(
    request: Request, folder: Path, *, progress: Progress = SILENT
) -> tuple[Policy, ...]:
    """Begin a run unless its folder has been begun, then go on with it: for scripts of many."""
    if not (folder / MANIFEST).exists():
        begin_run(request, folder, progress=progress)
    return resume_run(folder, progress=progress)


def is_finished(folder: Path) -> bool:
    """Whether every seed of a run has its policy, and can be read."""
    try:
        for place in seed_folders(folder, read_run(folder)).values():
            load_policy(place / POLICY)
    except (StorageError, DataError):
        return False
    return True


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


def versions_here() -> dict[str, str]:
    """The same for what this process trains: with its devices, which it takes possession of."""
    found, devices = versions(), jax.local_device_count()
    return found if devices == 1 else found | {"threads": f"{found['threads']}, {devices} devices"}


def _train_seeds(
    folder: Path,
    manifest: Manifest,
    dataset: Dataset,
    cache: Path,
    progress: Progress,
    warn: Warn,
) -> None:
    """Train what is still missing: one seed, several together, or several in turn."""
    request, places = manifest.request, seed_folders(folder, manifest)
    if manifest.seeds is None:
        journal = RunJournal(folder, cache, warn)
        _train(request, dataset, places, key_of(request.seed), journal, progress)
        return
    for seed, place in places.items():
        if not (place / MANIFEST).exists():
            write_run(place, _manifest_of_seed(manifest, seed))
    if manifest.mode == "together":
        journal = RunJournal(folder, cache, warn, seed_folders=list(places.values()))
        keys = jnp.stack([key_of(seed) for seed in manifest.seeds])
        _train(request, dataset, places, keys, journal, progress)
        return
    for seed, place in places.items():
        if not (place / POLICY).exists():
            journal = RunJournal(place, cache, warn)
            seed_progress = SeedProgress(progress, seed)
            _train(request, dataset, {seed: place}, key_of(seed), journal, seed_progress)


def _train(
    request: Request,
    dataset: Dataset,
    places: Mapping[int, Path],
    key: Key,
    journal: RunJournal,
    progress: Progress,
) -> None:
    """Fit, observe and save the policies of one seed, or of several that have an axis of keys."""
    algorithm = find_algorithm(request.algorithm)
    config = build_settings(algorithm.config, request.config)
    task = task_of(dataset.provenance)
    fitted = algorithm.fit(
        dataset,
        task,
        config,
        key,
        progress=progress,
        journal=journal,
        observe=make_observer(
            dataset, task, journal, episodes=request.evaluation_episodes, is_seeded=bool(key.ndim)
        ),
    )
    known: Iterable[Familiarity | None] = itertools.repeat(None)
    if algorithm.familiarity is not None:
        known = algorithm.familiarity(fitted, dataset, task, config)
    for i, ((seed, place), familiarity) in enumerate(zip(places.items(), known, strict=False)):
        actor = jax.tree.map(lambda leaf, i=i: leaf[i], fitted.actor) if key.ndim else fitted.actor
        require_finite(actor, "the policy", f"stage '{POLICY}', last step")
        if not (place / POLICY).exists():
            origin = _origin(request.model_copy(update={"seed": seed}), dataset)
            policy = Policy(task.name, actor, facts_of(task), familiarity, origin)
            save_policy(policy, place / POLICY)


def _origin(request: Request, dataset: Dataset) -> dict[str, Any]:
    """What a policy's manifest says about where it comes from."""
    return {
        "algorithm": request.algorithm,
        "preset": request.preset,
        "seed": request.seed,
        "config": request.config,
        "data": {
            "name": Path(request.data).name if os.path.isabs(request.data) else request.data,
            "fingerprint": dataset.fingerprint,
            "transitions": dataset.num_transitions,
            "episodes": dataset.num_episodes,
        },
        "digest": run_digest(request, dataset.fingerprint, None),
        "versions": versions_here(),
    }


def key_of(seed: int) -> Key:
    """The key of all randomness in the training of a seed."""
    # The generator is named, so that the bits do not depend on a global setting.
    return jax.random.key(seed, impl="threefry2x32")


def _manifest_of_seed(group: Manifest, seed: int) -> Manifest:
    request = group.request.model_copy(update={"seed": seed})
    changes = {
        "request": request,
        "digest": run_digest(request, group.data.fingerprint, None),
        "seeds": None,
        "mode": None,
        "is_part_of_group": True,
    }
    return group.model_copy(update=changes)


def _default_folder(manifest: Manifest) -> Path:
    """A folder below ``runs/`` that no other request and no other data would get."""
    data = manifest.request.data
    name = Path(data).name if os.path.isabs(data) else data
    label = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "data"
    return Path("runs") / f"{manifest.request.algorithm}-{label}-{manifest.digest}"


def _has_sound_policy(place: Path, warn: Warn) -> bool:
    path = place / POLICY
    if not path.exists():
        return False
    try:
        load_policy(path)
    except UserError as error:
        set_aside(path, error, warn)
        return False
    return True


def _find_data(
    folder: Path, manifest: Manifest, moved_to: str | None, cache: Path | None, progress: Progress
) -> Dataset:
    source = moved_to or manifest.request.data
    advice = f"if it has moved, say where to: {resume_command(folder, 'FOLDER')}"
    try:
        dataset = catalog.find_dataset(source, cache=cache, progress=progress)
    except UserError as error:
        raise RunError(
            f"The data set of this run cannot be had: {error.what}",
            where=error.where if error.where != "data set" else source,
            advice=f"restore it; {advice}",
        ) from error
    if dataset.fingerprint != manifest.data.fingerprint:
        raise RunError(
            "The data set is not the one that this run began with: its fingerprint differs.",
            where=source,
            advice=f"restore it, or start a new run; {advice}",
        )
    if dataset.provenance.get("task") != manifest.data.provenance.get("task"):
        raise RunError(
            "The data set carries another task than this run began with.",
            where=source,
            advice=f"import it with the same task file, or start a new run; {advice}",
        )
    return dataset


def _compare_versions(manifest: Manifest, warn: Warn) -> None:
    for name, version in versions_here().items():
        before = manifest.versions.get(name)
        if before != version:
            warn(
                f"{name} was {before} when this run began and is {version} now: "
                "the result may differ in the last bits"
            )
