"""``moose evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from moose.cli.options import AsJson, Cache, Quiet, print_json, progress_for, warn


def evaluate_command(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    episodes: Annotated[
        int, typer.Option(help="Episodes that each policy plays.", min=2, max=100_000)
    ] = 1000,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps of an episode (default: as in training).", min=1, max=100_000),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the resets.", min=0, max=2**31 - 1)] = 0,
    position: Annotated[
        float | None,
        typer.Option(
            help="Where to put the policy's dial, from 0 to 1 (default: where it is).", min=0, max=1
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(help="Play in this environment instead: gym/Pendulum-v1, mujoco/hopper, …"),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    cache: Cache = None,
) -> None:
    """Play the final policy of a run in the true plant, beside what it has to beat.

    For example:

    - `moose evaluate runs/first`

    - `moose evaluate runs/ten --episodes 5000 --json`

    - `moose evaluate runs/dial --position 0.5`

    - `moose evaluate runs/mine --env gym/Pendulum-v1`
    """
    from moose.experiments.evaluate import evaluate_run, render

    result = evaluate_run(
        run,
        episodes=episodes,
        steps=steps,
        seed=seed,
        position=position,
        environment=env,
        cache=cache,
        progress=progress_for(quiet),
        warn=warn,
    )
    if as_json:
        print_json(result)
    else:
        Console(soft_wrap=True).print(render(result))
