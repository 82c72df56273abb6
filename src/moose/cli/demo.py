"""``moose demo``: the whole story on one data set, in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from moose.cli.options import AsJson, Cache, Quiet, print_json, progress_for


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for runs and pictures.")] = Path("demo"),
    episodes: Annotated[
        int, typer.Option(help="Episodes that each controller plays.", min=2, max=100_000)
    ] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the episodes.", min=0, max=2**31 - 1)] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of LION, such as search.updates=50."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    cache: Cache = None,
) -> None:
    """Make a data set, train LION on it, and measure it beside reference controllers.

    An interrupted demonstration goes on where it was.

    For example:

    - `moose demo`

    - `moose demo --out /tmp/demo --episodes 5000 --json`
    """
    from moose.experiments.demo import render, run_demo

    result = run_demo(
        out,
        episodes=episodes,
        seed=seed,
        overrides=settings or (),
        cache=cache,
        progress=progress_for(quiet),
    )
    if as_json:
        print_json(result)
    else:
        Console(soft_wrap=True).print(render(result))
