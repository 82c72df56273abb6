"""The command line: a thin door that turns words into calls and errors into advice.

Nothing here imports JAX at the top, so that ``--help`` and ``--version`` answer at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from moose.cli import (
    check,
    data,
    demo,
    diagnose,
    evaluate,
    export,
    grid,
    judge,
    replay,
    serve,
    task,
    train,
    tune,
)
from moose.cli.options import DEBUG
from moose.errors import UserError
from moose.version import __version__

USER_ERROR = 2
INTERRUPTED = 130

app = typer.Typer(
    name="moose",
    help="From a plant's logs to a controller: offline model-based reinforcement learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo_command)
app.command("train")(train.train_command)
app.command("evaluate")(evaluate.evaluate_command)
app.command("diagnose")(diagnose.diagnose_command)
app.command("judge")(judge.judge_command)
app.command("tune")(tune.tune_command)
app.command("report")(judge.report_command)
app.command("check")(check.check_command)
app.command("export")(export.export_command)
app.command("replay")(replay.replay_command)
app.command("serve")(serve.serve_command)
app.add_typer(data.app, name="data")
app.add_typer(grid.app, name="grid")
app.add_typer(task.app, name="task")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"moose {__version__}")
        raise typer.Exit


@app.callback()
def _moose(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and stop.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where in the program an error came from.")
    ] = False,
) -> None:
    DEBUG.is_on = debug


def main() -> None:
    """Run the command line; user errors exit with 2, an interruption with 130."""
    errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    try:
        app(prog_name="moose")
    except UserError as error:
        if DEBUG.is_on:
            errors.print_exception()
        errors.print(f"Error: {error}")
        sys.exit(USER_ERROR)
    except SystemExit as stop:  # how typer ends, whatever the reason
        if stop.code == INTERRUPTED:
            errors.print("Interrupted; nothing was left half-written.")
        raise
