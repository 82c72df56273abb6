"""``moose export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from moose.cli.options import AsJson, print_json


def export_command(
    policy: Annotated[
        Path, typer.Argument(help="A finished run, a policy's folder or a .moose file.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    form: Annotated[
        Literal["moose", "onnx", "c"],
        typer.Option(
            "--format", help="moose: all that the folder has; onnx: one graph; c: one C99 file."
        ),
    ] = "moose",
    position: Annotated[
        float | None,
        typer.Option(
            help="Where the dial of the policy is to stand, from 0 (what the log did) to 1 (all "
            "that was found); by default where it is."
        ),
    ] = None,
    dial: Annotated[
        bool,
        typer.Option(
            "--dial", help="Let the position be set later: an input in onnx, a function in c."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a policy as one file, for use where it was not trained.

    For example:

    - `moose export runs/first --out policy.moose`

    - `moose export policy.moose --format onnx --out policy.onnx`

    - `moose export policy.moose --format c --out policy.c`

    - `moose export policy.moose --position 0.7 --out bolder.moose`
    """
    from moose.experiments.run_folder import find_policy
    from moose.policies.export import export_policy

    result = export_policy(find_policy(policy), out, form, position=position, is_turnable=dial)
    if as_json:
        print_json(result)
    else:
        typer.echo(f"{result['format']}: {out} ({result['bytes']:,} bytes)")
        if "position" in result:
            how = "can be turned" if result["is_turnable"] else "fixed"
            typer.echo(f"dial: at {result['position']:g}, {how}")
        typer.echo(f"sha256: {result['sha256']}")
