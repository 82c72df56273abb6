"""Policies as files for elsewhere: one door for all formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from moose.policies.artifact import read_artifact, write_bundle
from moose.policies.c_source import write_c
from moose.policies.onnx import write_onnx
from moose.policies.plain import load_policy
from moose.storage import sha256_of

Format = Literal["moose", "onnx", "c"]


def export_policy(source: Path, out: Path, form: Format = "moose") -> dict[str, Any]:
    """Write a policy in another form, after checking it.

    Args:
        source: A policy's folder or ``.moose`` file.
        out: The file to write or replace.
        form: ``moose`` for one file with everything, ``onnx`` or ``c`` for the policy and its
            novelty as something that runs elsewhere.

    Returns:
        What was written, as plain JSON values.

    Raises:
        ConfigError: The policy draws samples, and the format has none.
    """
    if form == "moose":
        write_bundle(source, out)
    elif form == "onnx":
        write_onnx(load_policy(source), out)
    else:
        write_c(load_policy(source), read_artifact(source).examples or {}, out)
    return {
        "format": form,
        "file": str(out),
        "bytes": out.stat().st_size,
        "sha256": sha256_of(out),
    }
