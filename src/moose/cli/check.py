"""``moose check``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from moose.cli.options import AsJson, Fix, Quiet, print_json, progress_for

if TYPE_CHECKING:
    from moose.data.findings import Finding

FOUND_ERRORS = 2
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def check_command(
    files: Annotated[
        list[str], typer.Argument(help="CSV, Parquet or NPZ files, or folders of them.")
    ],
    task: Annotated[Path, typer.Option(help="The task file.")],
    fix: Fix = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Look for everything that is wrong or odd in a log; exit with 2 if it cannot be used as it is.

    Nothing is changed. A fix that is asked for is taken into account: what it mends is no error.

    For example:

    - `moose check plant.csv --task plant.yaml`

    - `moose check data/ --task plant.yaml --fix gaps=split --fix missing=interpolate:3 --json`
    """
    from moose.data.assemble import check_tables
    from moose.data.findings import unfixed
    from moose.data.schema import asked_for
    from moose.tasks.intake import with_fixes
    from moose.tasks.task_file import make_schema, read_task_file

    content = with_fixes(read_task_file(task), fix or ())
    findings = check_tables(files, make_schema(content, str(task)), progress=progress_for(quiet))
    fixes = asked_for(content.fixes)
    remaining = unfixed(findings, fixes)
    if as_json:
        counts: Counter[str] = Counter(finding.severity for finding in findings)
        print_json(
            {
                "usable": not remaining,
                "counts": {severity: counts[severity] for severity in _STYLES},
                "fixes": fixes,
                "findings": [
                    finding.as_tree()
                    | {"fixed": finding not in remaining and _is_mended(finding, fixes)}
                    for finding in findings
                ],
            }
        )
    else:
        print_findings(findings, fixes)
    if remaining:
        raise typer.Exit(FOUND_ERRORS)


def print_findings(findings: list[Finding], fixes: dict[str, str]) -> None:
    """Print findings for people: what, where, how often, what to do."""
    console = Console(soft_wrap=True, highlight=False)
    for finding in findings:
        mark = "fixed" if _is_mended(finding, fixes) else finding.severity
        line = Text(f"{mark:8}", style=_STYLES.get(mark, "green"))
        line.append(f"{finding.code}: {finding.what}")
        if finding.count > 1:
            line.append(f" ({finding.count:,} times)")
        console.print(line)
        value = "" if finding.value is None else f", value {finding.value}"
        console.print(f"        {finding.place}{value}", markup=False)
        console.print(f"        {finding.advice}", markup=False, style="dim")
    counts: Counter[str] = Counter(finding.severity for finding in findings)
    mended = sum(_is_mended(finding, fixes) for finding in findings)
    summary = ", ".join(f"{counts[severity]} {severity}s" for severity in _STYLES)
    console.print(f"{summary}; {mended} mended by the fixes asked for")


def _is_mended(finding: Finding, fixes: dict[str, str]) -> bool:
    return bool(finding.fix) and finding.fix.partition("=")[0] in fixes
