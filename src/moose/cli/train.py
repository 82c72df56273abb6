"""``moose train``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from moose.cli.options import AsJson, Cache, Fix, Quiet, print_json, progress_for, warn
from moose.errors import ConfigError

_SETTLED_AT_THE_START = (
    *("algorithm", "preset", "config", "settings", "seed", "seeds", "seeds_mode"),
    *("out", "evaluation_episodes", "fix"),
)
_OPTION_NAMES = {"settings": "--set"}
_SAMPLED = (
    "This policy will draw samples to act: it can be evaluated and judged, but not exported, "
    "replayed or served.\nFor one that can: --set acting=deterministic"
)


def train_command(
    context: typer.Context,
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATA | TASK.yaml FILES...]",
            help="A data set's folder, a name from 'moose data list', or a task file and a log.",
        ),
    ] = None,
    algorithm: Annotated[
        str, typer.Option(help="lion, moose, clone, ddpg, bcq, bear or brac.")
    ] = "lion",
    preset: Annotated[
        str | None,
        typer.Option(help="Which of its presets (default: of lion fast, of all others paper)."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings put over the preset.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="One setting, such as search.updates=200; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    seeds: Annotated[
        str | None, typer.Option(help="Several seeds, such as 0..9 or 0,3,5, each with its run.")
    ] = None,
    seeds_mode: Annotated[
        Literal["auto", "together", "in-turn"],
        typer.Option(help="Several seeds as one program, in turn, or as memory allows."),
    ] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run (default: one below runs/).")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    evaluation_episodes: Annotated[
        int, typer.Option(help="Episodes of each evaluation in the true plant; 0 for none.", min=0)
    ] = 10,
    fix: Fix = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    cache: Cache = None,
) -> None:
    """Train a policy from a data set or a plant's log, or go on with an interrupted run.

    For example:

    - `moose train ib/bad-0.2 --preset quick --out runs/first`

    - `moose train --resume runs/first`

    - `moose train ib/bad-0.2 --algorithm moose --preset paper --out runs/paper`

    - `moose train plant.yaml data/*.csv --fix gaps=split --preset quick --out runs/plant`

    - `moose train ib/bad-0.2 --set search.updates=200 --seeds 0..9 --out runs/ten`
    """
    data = _data_set(source or [], fix or [], cache, quiet) if source else None
    if data is None and resume is None:
        raise ConfigError(
            "Say which data set to train on, or which run to resume.",
            where="moose train",
            advice="moose train ib/bad-0.2 --out runs/first   or   moose train --resume runs/first",
        )
    given = [name for name in _SETTLED_AT_THE_START if _is_given(context, name)]
    if resume is not None and given:
        options = ", ".join(
            _OPTION_NAMES.get(name, f"--{name}").replace("_", "-") for name in given
        )
        raise ConfigError(
            f"A run is resumed as it began: {options} cannot be changed.",
            where=str(resume),
            advice="leave them out, or start a new run in another folder",
        )
    if seeds is not None and _is_given(context, "seed"):
        raise ConfigError(
            "Both --seed and --seeds are given.", where="moose train", advice="give one of them"
        )
    if seeds is None and _is_given(context, "seeds_mode"):
        raise ConfigError(
            "--seeds-mode says how to train several seeds, but there is only one.",
            where="moose train",
            advice="give several, such as --seeds 0..9, or leave it out",
        )
    from moose.experiments import runner

    progress = progress_for(quiet)
    if resume is not None:
        folder = resume
    else:
        from moose.experiments.seeds import parse_seeds

        request = runner.make_request(
            str(data),
            algorithm=algorithm,
            preset=preset,
            file=config,
            overrides=settings or (),
            seed=seed,
            evaluation_episodes=evaluation_episodes,
        )
        folder = runner.begin_run(
            request,
            out,
            seeds=None if seeds is None else parse_seeds(seeds),
            mode=seeds_mode,
            cache=cache,
            progress=progress,
        )
        if request.config.get("acting") == "sampled" and not (quiet or as_json):
            typer.echo(_SAMPLED, err=True)
    was_finished = runner.is_finished(folder)
    try:
        runner.resume_run(
            folder, data=data if resume else None, cache=cache, progress=progress, warn=warn
        )
    except KeyboardInterrupt:
        from moose.experiments.run_folder import resume_command

        typer.echo(f"To go on: {resume_command(folder)}", err=True)
        raise
    _tell(folder, was_finished, as_json)


def _data_set(source: list[str], fixes: list[str], cache: Path | None, quiet: bool) -> str:
    """The data set's name or folder; a plant's log becomes a data set in the cache first."""
    if not source[0].endswith((".yaml", ".yml")):
        if len(source) > 1 or fixes:
            raise ConfigError(
                "Several files and fixes belong to a log, which needs a task file.",
                where="moose train",
                advice="put the task file first: moose train plant.yaml data/*.csv",
            )
        return source[0]
    from moose.config import digest
    from moose.data.files import save_dataset
    from moose.envs.recipes import cache_folder
    from moose.tasks.intake import load_plant

    dataset, findings = load_plant(source[0], source[1:], fixes=fixes, progress=progress_for(quiet))
    for finding in findings:
        if finding.severity == "warning":
            warn(f"{finding.what} ({finding.place})")
    # The same numbers under another task are another data set.
    name = f"plant-{digest(dataset.fingerprint, dataset.provenance['task'])}"
    folder = (cache or cache_folder()) / "datasets" / name
    save_dataset(dataset, folder, overwrite=True)
    return str(folder)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name not in {"DEFAULT", "DEFAULT_MAP"}


def _tell(folder: Path, was_finished: bool, as_json: bool) -> None:
    from moose.experiments.run_folder import POLICY, read_run, seed_folders

    manifest = read_run(folder)
    places = seed_folders(folder, manifest)
    policies = {str(seed): str(place / POLICY) for seed, place in places.items()}
    if as_json:
        result: dict[str, Any] = {"run": str(folder), "was_finished": was_finished}
        print_json(result | {"policies": policies})
        return
    if was_finished:
        typer.echo("This run is finished already; there was nothing left to do.")
    typer.echo(f"run:    {folder}")
    for seed, policy in policies.items():
        typer.echo(f"policy: {policy}" + (f"  (seed {seed})" if len(policies) > 1 else ""))
    is_own_plant = "task" in manifest.data.provenance
    command = "judge" if is_own_plant else "evaluate"
    typer.echo(f"to see what it is worth: moose {command} {shlex.quote(str(folder))}")
    if "position" in manifest.request.config:  # of an algorithm with a dial
        first = next(iter(places.values()))
        typer.echo(f"to choose where its dial stands: moose tune {shlex.quote(str(first))}")
