"""Options that several commands share."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from moose.progress import Progress, make_progress


@dataclass
class _Debug:
    is_on: bool = False


DEBUG = _Debug()
"""Whether to show tracebacks: set once by the main command, read by its error handler."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache", help="Cache folder (default: $MOOSE_CACHE or the user's cache folder)."
    ),
]


Fix = Annotated[
    list[str] | None,
    typer.Option(
        "--fix",
        help="What to do about findings, such as gaps=split or missing=interpolate:3; "
        "may be repeated.",
    ),
]


def progress_for(is_quiet: bool) -> Progress:
    """Progress on standard error, so that standard output stays clean for results."""
    return make_progress(sys.stderr, is_quiet=is_quiet)


def warn(text: str) -> None:
    """Say on standard error that something is amiss but mended."""
    typer.echo(f"warning: {text}", err=True)


def print_json(content: Any) -> None:
    """Print one JSON document on standard output."""
    typer.echo(json.dumps(content, indent=2, allow_nan=False))
