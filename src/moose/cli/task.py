"""``moose task``: write and check task files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moose.cli.options import AsJson, Quiet, print_json, progress_for
from moose.errors import StorageError

app = typer.Typer(help="Write and check task files.", no_args_is_help=True)


@app.command("init")
def init_command(
    files: Annotated[list[str], typer.Argument(help="Files or folders of the log.")],
    out: Annotated[Path, typer.Option(help="The task file to write.")] = Path("plant.yaml"),
    name: Annotated[str | None, typer.Option(help="What to call the plant.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it exists.")
    ] = False,
) -> None:
    """Write a commented draft of a task file from a log: guessed roles, ranges, interval.

    For example:

    - `moose task init plant.csv`

    - `moose task init data/ --out boiler.yaml --name boiler`
    """
    if out.exists() and not overwrite:
        raise StorageError(
            "There is a file already.",
            where=str(out),
            advice="choose another name with --out, or replace it with --overwrite",
        )
    from moose.storage import atomic_file
    from moose.tasks.draft import draft_task

    text = draft_task(files, name)
    with atomic_file(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    typer.echo(f"draft: {out}")
    typer.echo("read it line by line, mend it, then: moose task check " + str(out))


@app.command("check")
def check_command(
    task: Annotated[Path, typer.Argument(help="The task file.")],
    files: Annotated[
        list[str] | None, typer.Argument(help="Files of the log, to compare columns with.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Check a task file: settings, formulas and, if files are given, whether it fits them.

    For example:

    - `moose task check plant.yaml`

    - `moose task check plant.yaml data/*.csv`
    """
    from moose.data.findings import unfixed
    from moose.data.schema import asked_for
    from moose.tasks.task_file import make_schema, make_task, read_task_file

    content = read_task_file(task)
    known = make_task(content, str(task))
    summary = {
        "name": known.name,
        "observations": list(known.observation_names),
        "learned": list(known.predicted_names),
        "actions": {
            name: [low, high]
            for name, low, high in zip(
                known.action_names, known.action_low, known.action_high, strict=True
            )
        },
        "reward": "a formula" if known.reward is not None else "learned from its column",
        "holds": known.hold_action is not None,
        "history": known.history,
    }
    findings = []
    if files:
        from moose.data.assemble import check_tables

        schema = make_schema(content, str(task))
        findings = check_tables(files, schema, progress=progress_for(quiet))
    errors = unfixed(findings, asked_for(content.fixes))
    if as_json:
        print_json(summary | {"findings": [finding.as_tree() for finding in findings]})
    else:
        for key, value in summary.items():
            shown = value
            if isinstance(value, dict):
                shown = ", ".join(f"{n} [{low:g}, {high:g}]" for n, (low, high) in value.items())
            elif isinstance(value, list):
                shown = ", ".join(value)
            typer.echo(
                f"{key + ':':14}{'yes' if shown is True else 'no' if shown is False else shown}"
            )
        if files:
            from moose.cli.check import print_findings

            print_findings(findings, asked_for(content.fixes))
    if errors:
        raise typer.Exit(2)
