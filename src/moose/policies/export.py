"""Policies as files for elsewhere: one door for all formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from moose.errors import ConfigError
from moose.policies.artifact import read_artifact, write_bundle
from moose.policies.c_source import write_c
from moose.policies.dial import KIND, no_dial, position_in, require_position
from moose.policies.examples import answered_again
from moose.policies.onnx import write_onnx
from moose.policies.plain import load_policy
from moose.policies.turning import write_turned
from moose.storage import sha256_of

Format = Literal["moose", "onnx", "c"]


def export_policy(
    source: Path,
    out: Path,
    form: Format = "moose",
    *,
    position: float | None = None,
    is_turnable: bool = False,
) -> dict[str, Any]:
    """Write a policy in another form, after checking it.

    Args:
        source: A policy's folder or ``.moose`` file.
        out: The file to write or replace.
        form: ``moose`` for one file with everything, ``onnx`` or ``c`` for the policy and its
            novelty as something that runs elsewhere.
        position: Where the policy's dial is to stand; None leaves it where it is.
        is_turnable: Make the position an input, in ``onnx`` and ``c``.

    Returns:
        What was written, as plain JSON values.

    Raises:
        ConfigError: The policy draws samples, and the format has none; it has no dial, and one is
            to be turned; there is no such position.
    """
    artifact = read_artifact(source)
    manifest, stands = artifact.manifest, position_in(artifact.manifest)
    if position is not None or is_turnable:
        if manifest.get("kind") != KIND:
            raise no_dial(manifest.get("kind"), str(source))
        stands = stands if position is None else require_position(position)
    if form == "moose":
        if is_turnable:
            raise ConfigError(
                "The dial of a .moose file can always be turned, without being asked for.",
                where="--dial with the format 'moose'",
                advice="leave --dial out; moose.load_policy(file).at(position) turns it, and "
                "--position writes it at another position",
            )
        if stands is None or position is None:
            write_bundle(source, out)
        else:
            write_turned(source, out, stands)
    else:
        controller, examples = load_policy(source), artifact.examples or {}
        if controller.position != stands and stands is not None:
            controller = controller.at(stands)
            examples = answered_again(controller, examples)
        if form == "onnx":
            write_onnx(controller, out, is_turnable=is_turnable)
        else:
            write_c(controller, examples, out, is_turnable=is_turnable)
    dial = {"position": stands, "is_turnable": is_turnable or form == "moose"}
    return {
        "format": form,
        "file": str(out),
        "bytes": out.stat().st_size,
        "sha256": sha256_of(out),
    } | ({} if stands is None else dial)
