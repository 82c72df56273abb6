"""A policy on disk: a folder, or the same as one ``.moose`` file. Nothing here needs JAX.

    manifest.json          what it is: task, scaling, kind, origin, SHA-256 of the other files
    tensors.safetensors    weights and scales
    support.safetensors    the support model and the errors it makes on its own data (MOOSE)
    examples.safetensors   a few inputs and what the policy answered when it was saved

No code runs on load. Everything is read into memory once, checked there and used from there; what
is damaged, altered, too large or of an unknown kind is refused by name.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors

from moose.errors import StorageError
from moose.policies.bundle import EXAMPLES, MEMBERS, SUPPORT, bad_member, bundle, read_members
from moose.policies.facts import WIDENING, Floats, TaskFacts, count_in, facts_in, not_described
from moose.storage import MANIFEST, TENSORS, atomic_file, check_manifest

FORMAT = ("moose-policy", 3)

_LARGEST_HEADER = 1 << 20
_SAFE = float(np.finfo(np.float32).max) / 4
_STATISTICS = ("mean", "deviation", "minimum", "maximum")

Tensors = dict[str, Floats]


class Artifact(NamedTuple):
    """A policy's files, read and checked."""

    manifest: dict[str, Any]
    facts: TaskFacts | None
    """None in files of the first two versions, which have only the task's name."""
    networks: dict[str, list[int]]
    """Sizes of the layers of each network."""
    signals: int
    tensors: Tensors
    support: Tensors | None
    examples: Tensors | None


class Clamp(NamedTuple):
    """What an input is turned into before anything is computed from it."""

    fill: Floats
    """[n]: instead of NaN."""
    low: Floats
    high: Floats


def read_artifact(path: Path | str) -> Artifact:
    """Read a policy's folder or ``.moose`` file and check all that can be checked without acting.

    Args:
        path: The folder or the file.

    Returns:
        Manifest and tensors.

    Raises:
        StorageError: Something is missing, damaged, altered, too large or of a newer version.
        DataError: It is something else than a policy.
    """
    path = Path(path)
    members = read_members(path)
    manifest = check_manifest(members[MANIFEST], path / MANIFEST, *FORMAT)
    _check_members(members, manifest["files"], path)
    if manifest["schema_version"] == 1:  # which knew one kind of policy
        manifest |= {"kind": "network", "networks": {"network": manifest.get("sizes")}}
    networks, signals = _networks_in(manifest), count_in(manifest.get("signals"))
    if networks is None or signals is None:
        raise not_described(path)
    facts = None
    if manifest["schema_version"] >= 3:
        facts = facts_in(manifest.get("task"), path)
        if len(facts.observation_names) != signals:
            raise not_described(path)
    elif not isinstance(manifest.get("task"), str):
        raise not_described(path)
    tensors = _parse_tensors(members[TENSORS], path / TENSORS)
    _check_tensors(tensors, networks, signals, path / TENSORS)
    if facts is not None and manifest.get("scaling") != scaling_of(tensors, facts):
        raise StorageError(
            "The scaling in the manifest is not that of the tensors.",
            where=f"{path / MANIFEST}: scaling",
            advice="do not trust this policy; get it again from its source",
        )
    return Artifact(
        manifest,
        facts,
        networks,
        signals,
        tensors,
        _parse_tensors(members[SUPPORT], path / SUPPORT) if SUPPORT in members else None,
        _parse_tensors(members[EXAMPLES], path / EXAMPLES) if EXAMPLES in members else None,
    )


def write_bundle(source: Path, file: Path) -> None:
    """Write the policy in a folder or ``.moose`` file as a ``.moose`` file, after checking it."""
    read_artifact(source)
    with atomic_file(file) as temporary:
        temporary.write_bytes(bundle(read_members(source)))


def clamp_of(tensors: Mapping[str, Any]) -> Clamp:
    """The range of the data, widened on either side, from the tensors ``scale/…``.

    A width is the range of the data, or the deviation that a constant signal is given.
    """
    minimum, maximum, deviation = (
        np.asarray(tensors[f"scale/{name}"], np.float64)
        for name in ("minimum", "maximum", "deviation")
    )
    # With inputs in raw units the deviation is 1 whatever the data.
    width = np.where(maximum > minimum, maximum - minimum, deviation)
    low, high = minimum - WIDENING * width, maximum + WIDENING * width
    fill = minimum + (maximum - minimum) / 2
    return Clamp(*(np.clip(each, -_SAFE, _SAFE).astype(np.float32) for each in (fill, low, high)))


def scaling_of(tensors: Mapping[str, Any], facts: TaskFacts) -> dict[str, dict[str, float]]:
    """The scale of each signal for people to read."""
    columns = {name: np.asarray(tensors[f"scale/{name}"]) for name in _STATISTICS}
    return {
        signal: {name: float(column[i]) for name, column in columns.items()}
        for i, signal in enumerate(facts.observation_names)
    }


def _check_members(members: Mapping[str, bytes], files: Mapping[str, str], path: Path) -> None:
    for name in files:
        if name not in MEMBERS:
            raise bad_member(path, name, "is named in the manifest and does not belong there")
        if name not in members:
            raise bad_member(path, name, "is named in the manifest and missing")
    if TENSORS not in files:
        raise bad_member(path, TENSORS, "is missing in the manifest")
    for name, content in members.items():
        if name == MANIFEST:
            continue
        if name not in files:
            raise bad_member(path, name, "is not named in the manifest")
        if hashlib.sha256(content).hexdigest() != files[name]:
            raise StorageError(
                "The file's checksum differs from the manifest: it is damaged or was altered.",
                where=str(path / name),
                advice="restore the file or get the policy again",
            )


def _parse_tensors(data: bytes, where: Path) -> Tensors:
    try:
        if len(data) >= 8 and struct.unpack("<Q", data[:8])[0] > _LARGEST_HEADER:
            raise SafetensorError("the header is larger than any policy's")
        found = load_tensors(data)
    except (SafetensorError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise StorageError(
            f"Cannot read the tensors: {error}.",
            where=str(where),
            advice="the file is damaged; restore it or get the policy again",
        ) from error
    for name, values in found.items():
        if values.dtype != np.float32:
            raise StorageError(
                f"The tensor '{name}' is {values.dtype}, expected float32.",
                where=str(where),
                advice="the file belongs to another program or version",
            )
    return found


def _check_tensors(
    tensors: Tensors, networks: Mapping[str, Sequence[int]], signals: int, where: Path
) -> None:
    """Names and shapes as the manifest says, all numbers finite, scales that can be divided by."""
    shapes: dict[str, tuple[int, ...]] = {f"scale/{name}": (signals,) for name in _STATISTICS}
    for name, sizes in networks.items():
        for i, (n, m) in enumerate(itertools.pairwise(sizes)):
            shapes |= {f"{name}/{i}/weight": (n, m), f"{name}/{i}/bias": (m,)}
    require_shapes(tensors, shapes, where)
    if not (tensors["scale/deviation"] > 0).all():
        raise StorageError(
            "A deviation of the scaling is not above 0.",
            where=f"{where}: scale/deviation",
            advice="do not trust this policy; get it again from its source",
        )


def require_shapes(tensors: Tensors, shapes: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Raise a :class:`StorageError` unless these tensors are there, finite, and no others."""
    for name in sorted(tensors.keys() | shapes.keys()):
        if name not in tensors:
            problem = "is missing: the weights are fewer than the manifest says"
        elif name not in shapes:
            problem = "is not expected"
        elif tensors[name].shape != shapes[name]:
            problem = f"has the shape {tensors[name].shape}, the manifest says {shapes[name]}"
        elif not np.isfinite(tensors[name]).all():
            problem = "has a number that is not finite"
        else:
            continue
        raise StorageError(
            f"The tensor '{name}' {problem}.",
            where=str(where),
            advice="the file belongs to another policy or version; get the policy again",
        )


def _networks_in(manifest: Mapping[str, Any]) -> dict[str, list[int]] | None:
    found = manifest.get("networks")
    if not isinstance(found, Mapping) or not found:
        return None
    sizes = {str(name): _sizes_in(each) for name, each in found.items()}
    whole = {name: each for name, each in sizes.items() if each is not None}
    return whole if len(whole) == len(sizes) else None


def _sizes_in(found: Any) -> list[int] | None:
    sizes = [count_in(size) for size in found] if isinstance(found, list) else []
    whole = [size for size in sizes if size is not None]
    return whole if len(whole) == len(sizes) >= 2 else None
