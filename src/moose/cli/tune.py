"""``moose tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from moose.cli.options import AsJson, Cache, Quiet, print_json, progress_for, warn
from moose.cli.serve import LOCAL, make_service, require_service, run_service


def tune_command(
    run: Annotated[
        Path,
        typer.Argument(
            help="The folder of a finished run whose policy has a dial; of several seeds, one."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="How to measure, such as selection.starts=any; may be repeated."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure anew, even if that was done before.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Then show it on a page of this machine, at /dial.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the page.", min=1, max=65535)] = 8765,
    as_json: AsJson = False,
    quiet: Quiet = False,
    cache: Cache = None,
) -> None:
    """Find out from the log alone where to put the dial of a policy.

    Models are fitted for this purpose, and the policy is imagined in them at every position of its
    dial, beside what the log did and never changing anything. What was found is left in the run's
    folder as tuning.json, and shown again by the next call without --set, whatever it was measured
    with; --fresh measures anew. Of the reasons + speaks for the advice, − against what promises
    more, and ! is a caution; * is the advised row.

    For example:

    - `moose tune runs/dial`

    - `moose tune runs/dial --serve`

    - `moose tune runs/dial --set selection.distrust=0.1 --json`
    """
    if serve:
        require_service()
    from moose.experiments.tuning import next_steps, render, tune_run, tune_settings

    tuned = tune_run(
        run,
        tune_settings(settings) if settings else None,
        cache=cache,
        progress=progress_for(quiet),
        warn=warn,
        is_fresh=fresh,
    )
    if as_json:
        print_json(tuned.content)
    else:
        Console(soft_wrap=True, highlight=False).print(render(tuned.content))
        for line in next_steps(tuned):
            typer.echo(line)
    if serve:
        app = make_service(tuned.folder, LOCAL)
        run_service(app, LOCAL, port, f"the dial is at http://{LOCAL}:{port}/dial; serving")
