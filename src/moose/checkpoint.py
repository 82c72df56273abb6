"""Pytrees of arrays as safetensors: no code on load, names and shapes checked.

A tree is stored as one tensor a leaf, named by its path. To load it, the reader gives a tree of
the same structure; whatever does not fit it is refused by name. Integrity comes from the manifest
of the folder the file lies in (:func:`moose.storage.write_manifest`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from moose.errors import StorageError
from moose.storage import TENSORS, atomic_folder, read_manifest, write_manifest

TreeT = TypeVar("TreeT")


def save_tree(
    path: Path,
    tree: object,
    *,
    format_name: str,
    schema_version: int,
    content: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a tree of arrays and its manifest as a folder, whole or not at all.

    Args:
        path: The folder.
        tree: The pytree.
        format_name: What the folder is, for its manifest.
        schema_version: Version of that format.
        content: What else the manifest should say.
        overwrite: Replace a folder of this format.
    """
    with atomic_folder(path, replaces=format_name if overwrite else None) as folder:
        write_tensors(folder / TENSORS, tree)
        write_manifest(folder, format_name, schema_version, content or {})


def load_tree(
    path: Path, like: TreeT, *, format_name: str, schema_version: int
) -> tuple[TreeT, dict[str, Any]]:
    """Read what :func:`save_tree` wrote, into the structure of ``like``.

    Args:
        path: The folder.
        like: A tree of the same structure, shapes and dtypes.
        format_name: What the folder has to be.
        schema_version: The newest version that can be read.

    Returns:
        The tree, on the device, and the manifest.
    """
    manifest = read_manifest(path, format_name, schema_version)
    return read_tensors(path / TENSORS, like), manifest


def write_tensors(file: Path, tree: object) -> None:
    """Write one safetensors file (not atomic: use inside an atomic folder)."""
    Path(file).write_bytes(save_tensors(_named_leaves(tree)))


def read_tensors(file: Path, like: TreeT) -> TreeT:
    """Read one safetensors file into the structure of ``like``."""
    try:
        found = load_tensors(Path(file).read_bytes())
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"Cannot read the tensors: {error}.",
            where=str(file),
            advice="the file is damaged; restore it or remake it",
        ) from error
    return fill_tree(found, like, file)


def fill_tree(found: Mapping[str, np.ndarray[Any, Any]], like: TreeT, file: Path) -> TreeT:
    """Arrays by name as a tree of the structure of ``like``; whatever does not fit is refused."""
    expected = _named_leaves(like)
    for name in sorted(expected.keys() | found.keys()):
        want, have = expected.get(name), found.get(name)
        if want is None or have is None:
            problem = "is missing" if have is None else "is not expected"
        elif (want.shape, want.dtype) != (have.shape, have.dtype):
            problem = f"is {have.dtype}{have.shape}, expected {want.dtype}{want.shape}"
        else:
            continue
        raise StorageError(
            f"The tensor '{name}' {problem}.",
            where=str(file),
            advice="the file belongs to another configuration or version",
        )
    leaves = [jax.device_put(found[name]) for name in expected]
    tree: TreeT = jax.tree.unflatten(jax.tree.structure(like), leaves)
    return tree


def _named_leaves(tree: object) -> dict[str, np.ndarray[Any, Any]]:
    paths = jax.tree_util.tree_leaves_with_path(tree)
    # Not ascontiguousarray, which makes a list of a single number: a count would change its shape.
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf, order="C")
        for path, leaf in paths
    }
