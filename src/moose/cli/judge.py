"""``moose judge`` and ``moose report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from moose.cli.options import AsJson, Cache, Quiet, print_json, progress_for, warn

Run = Annotated[
    Path, typer.Argument(help="The folder of a finished run; of several seeds, one of them.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="How to judge, such as comparison.starts=any; may be repeated."),
]
Position = Annotated[
    float | None,
    typer.Option(
        help="Where to put the policy's dial, from 0 to 1 (default: where it is).", min=0, max=1
    ),
]


def judge_command(
    run: Run,
    position: Position = None,
    settings: Changes = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    cache: Cache = None,
) -> None:
    """Judge a policy from its log alone: is it worth a trial in the plant?

    Models are fitted for this purpose, and the policy is imagined in them beside the cloned
    behaviour and holding still. The judgement is left in the run's folder as judgement.json.

    For example:

    - `moose judge runs/first`

    - `moose judge runs/first --position 0.5`

    - `moose judge runs/first --set comparison.starts=any --json`
    """
    from moose.experiments.judgement import judge_run, judge_settings, render

    chosen = judge_settings(_changes(settings, position))
    content = judge_run(run, chosen, cache=cache, progress=progress_for(quiet), warn=warn).content
    if as_json:
        print_json(content)
    else:
        Console(soft_wrap=True, highlight=False).print(render(content))


def report_command(
    run: Run,
    out: Annotated[
        Path | None, typer.Option(help="The file to write (default: report.html in the run).")
    ] = None,
    position: Position = None,
    settings: Changes = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    cache: Cache = None,
) -> None:
    """Tell a run on one page: one HTML file that works offline, the verdict first.

    The judgement that is there is shown; a run without one, or with --set or --position one that
    was judged otherwise, is judged first. Of a benchmark's run the page also has the true returns.

    For example:

    - `moose report runs/first`

    - `moose report runs/first --out first.html`
    """
    from moose.experiments.judgement import judge_settings
    from moose.experiments.report import write_report

    changes = _changes(settings, position)
    path, content = write_report(
        run,
        out,
        judge_settings(changes) if changes else None,
        cache=cache,
        progress=progress_for(quiet),
        warn=warn,
    )
    if as_json:
        print_json({"report": str(path), "verdict": content["verdict"]})
        return
    typer.echo(f"verdict: {content['verdict']}")
    typer.echo(f"report:  {path}")


def _changes(settings: list[str] | None, position: float | None) -> list[str]:
    """Settings of a judgement as texts; the dial's position is one of them."""
    return [*(settings or ()), *(() if position is None else (f"position={position!r}",))]
