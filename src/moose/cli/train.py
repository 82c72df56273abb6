"""``moose train`` and ``moose evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from moose.cli.options import AsJson, Cache, Quiet, print_json, progress_for
from moose.errors import ConfigError


def train_command(
    data: Annotated[
        str | None, typer.Argument(help="A data set's folder, or a name from 'moose data list'.")
    ] = None,
    algorithm: Annotated[str, typer.Option(help="Which algorithm.")] = "moose",
    preset: Annotated[str, typer.Option(help="Which of its presets.")] = "paper",
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings put over the preset.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, such as search.updates=200.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    evaluation_episodes: Annotated[
        int, typer.Option(help="Episodes of each evaluation in the true plant; 0 for none.")
    ] = 10,
    quiet: Quiet = False,
    as_json: AsJson = False,
    cache: Cache = None,
) -> None:
    """Train a policy from a data set, or go on with an interrupted run.

    Examples: `moose train ib/bad-0.2 --preset quick --seed 0 --out runs/x`,
    `moose train --resume runs/x`,
    `moose train ib/bad-0.2 --set search.return_weight=0.1 --out runs/y`
    """
    from moose.experiments import runner

    if (data is None) == (resume is None):
        raise ConfigError(
            "Say either which data set to train on, or which run to resume.",
            where="moose train",
            advice="moose train ib/bad-0.2 --out runs/x   or   moose train --resume runs/x",
        )

    def warn(text: str) -> None:
        typer.echo(f"warning: {text}", err=True)

    progress = progress_for(quiet)
    if resume is not None:
        folder = resume
        runner.resume_run(folder, cache=cache, progress=progress, warn=warn)
    else:
        assert data is not None  # noqa: S101 (checked above)
        request = runner.make_request(
            data,
            algorithm=algorithm,
            preset=preset,
            file=config,
            overrides=settings or (),
            seed=seed,
            evaluation_episodes=evaluation_episodes,
        )
        folder = out if out is not None else runner.default_folder(request)
        runner.start_run(request, folder, cache=cache, progress=progress, warn=warn)
    result: dict[str, Any] = {"run": str(folder), "policy": str(folder / "policy")}
    if as_json:
        print_json(result)
    else:
        typer.echo(f"run:    {folder}\npolicy: {folder / 'policy'}")
