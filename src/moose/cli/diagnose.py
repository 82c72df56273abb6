"""``moose diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from moose.cli.options import AsJson, Cache, Quiet, print_json, progress_for


def diagnose_command(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run of LION or MOOSE.")],
    plot: Annotated[
        Path | None, typer.Option(help="Write a picture here (.png, .svg or .pdf).")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    cache: Cache = None,
) -> None:
    """Measure a run's models on episodes they were not trained on; no simulator is needed.

    For example:

    - `moose diagnose runs/first`

    - `moose diagnose runs/first --plot models.png --json`
    """
    from moose.experiments import figures, run_figures
    from moose.experiments.diagnosis import diagnose_run, render

    if plot is not None:
        figures.picture_format(plot)
    result = diagnose_run(run, cache=cache, progress=progress_for(quiet))
    if plot is not None:
        run_figures.draw_model_fit(result, plot)
    if as_json:
        print_json(result)
    else:
        Console(soft_wrap=True).print(render(result))
