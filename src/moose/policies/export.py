"""Policies as files for elsewhere: one door for all formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from moose.policies.artifact import write_bundle
from moose.storage import sha256_of

Format = Literal["moose"]


def export_policy(source: Path, out: Path, form: Format = "moose") -> dict[str, Any]:
    """Write a policy in another form, after checking it.

    Args:
        source: A policy's folder or ``.moose`` file.
        out: The file to write or replace.
        form: The format.

    Returns:
        What was written, as plain JSON values.
    """
    write_bundle(source, out)
    return {
        "format": form,
        "file": str(out),
        "bytes": out.stat().st_size,
        "sha256": sha256_of(out),
    }
