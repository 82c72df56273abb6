"""A policy with a dial as a file at another position. Without JAX."""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors.numpy import save as save_tensors

from moose.policies.artifact import FORMAT, read_artifact, write_bundle
from moose.policies.bundle import EXAMPLES, bundle, read_members
from moose.policies.examples import answered_again
from moose.policies.plain import load_policy
from moose.storage import MANIFEST, atomic_file, manifest_text
from moose.version import __version__


def write_turned(source: Path, file: Path, position: float) -> None:
    """Write a policy as a ``.moose`` file with its dial at another position, after checking it.

    The weights stay as they are. The manifest tells the new position, and in its origin the one
    where the algorithm had left the dial; the examples are answered again. Where the dial stands
    there already the file is a copy, byte for byte.

    Args:
        source: The policy's folder or ``.moose`` file.
        file: The file to write or replace.
        position: From 0 to 1.

    Raises:
        ConfigError: There is no such position, or the policy has no dial.
    """
    controller = load_policy(source)
    turned = controller.at(position)
    if turned.position == controller.position:
        write_bundle(source, file)
        return
    members, examples = read_members(source), read_artifact(source).examples or {}
    members[EXAMPLES] = save_tensors(answered_again(turned, examples))
    files = {
        name: hashlib.sha256(content).hexdigest()
        for name, content in members.items()
        if name != MANIFEST
    }
    content = {**turned.manifest, "saved_by": f"moose {__version__}"}
    members[MANIFEST] = manifest_text(*FORMAT, content, files)
    with atomic_file(file) as temporary:
        temporary.write_bytes(bundle(members))
        load_policy(temporary)  # so that nothing is written that could not be read
