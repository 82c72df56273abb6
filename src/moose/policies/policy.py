"""A trained policy as a folder: weights, scaling and the task it belongs to.

The manifest tells the network's shape, so that loading needs nothing but the folder; no code runs
on load, and a damaged or altered file is refused by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from moose.checkpoint import TENSORS, read_tensors, save_tree
from moose.data.normalize import Statistics
from moose.errors import DataError, StorageError
from moose.models.actor import Actor, choose_action
from moose.models.networks import Dense
from moose.storage import read_manifest
from moose.tasks.registry import find_task

_FORMAT = ("moose-policy", 1)
_BYTES = 4  # of a float32


@dataclass(frozen=True)
class Policy:
    """A policy and the name of its task.

    Attributes:
        task: The task's name.
        actor: The network and the scale of its inputs.
        definition: The text of the task's file, for a task that is not part of the program.
    """

    task: str
    actor: Actor
    definition: str | None = None

    def act(self, window: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """The action for a history of observations, both in the plant's own units.

        Args:
            window: ``[F, n]``: the last F observations, the newest first. Before there are that
                many, repeat the first one.

        Returns:
            The action ``[d]``, within the task's bounds.
        """
        task = find_task(self.task, self.definition)
        frames = np.asarray(window, np.float32)
        shape = (task.history, len(task.observation_names))
        problem = ""
        if frames.shape != shape:
            problem = f"The history has the shape {frames.shape}; this task's is {shape}."
        elif not np.isfinite(frames).all():
            problem = "A number in the history is not finite."
        if problem:
            raise DataError(
                problem,
                where=f"task '{task.name}': {', '.join(task.observation_names)}",
                advice="give the newest observation first and repeat the oldest if there are fewer",
            )
        return np.asarray(choose_action(self.actor, task, jnp.asarray(frames)))


def save_policy(policy: Policy, path: Path, *, overwrite: bool = False) -> None:
    """Write a policy as a folder, whole or not at all."""
    network = policy.actor.network
    sizes = [layer.weight.shape[0] for layer in network] + [network[-1].bias.shape[0]]
    save_tree(
        path,
        policy.actor,
        format_name=_FORMAT[0],
        schema_version=_FORMAT[1],
        content={
            "task": policy.task,
            "definition": policy.definition,
            "sizes": sizes,
            "signals": len(policy.actor.scale.mean),
        },
        overwrite=overwrite,
    )


def load_policy(path: Path) -> Policy:
    """Read a policy that :func:`save_policy` wrote.

    Args:
        path: The policy's folder.

    Returns:
        The policy.

    Raises:
        StorageError: The folder is missing, damaged or altered.
        DataError: The folder is something else.
    """
    path = Path(path)
    manifest = read_manifest(path, *_FORMAT)
    sizes, signals = _sizes_in(manifest), _count_in(manifest.get("signals"))
    task = manifest.get("task")
    if sizes is None or signals is None or not isinstance(task, str):
        raise StorageError(
            "The manifest does not describe a policy.",
            where=str(path),
            advice="restore the folder or train again",
        )
    # Asked of the file first, so that a forged size cannot fill the memory.
    numbers = sum((n + 1) * m for n, m in itertools.pairwise(sizes)) + 4 * signals
    if not (path / TENSORS).is_file() or numbers * _BYTES > (path / TENSORS).stat().st_size:
        raise StorageError(
            f"The policy's weights are fewer than its manifest says: {numbers} numbers.",
            where=str(path / TENSORS),
            advice="restore the folder or train again",
        )
    empty = jnp.zeros(signals)
    like = Actor(
        network=tuple(Dense(jnp.zeros((n, m)), jnp.zeros(m)) for n, m in itertools.pairwise(sizes)),
        scale=Statistics(empty, empty, empty, empty),
    )
    definition = manifest.get("definition")
    return Policy(
        task, read_tensors(path / TENSORS, like), None if definition is None else str(definition)
    )


def _sizes_in(manifest: Mapping[str, Any]) -> list[int] | None:
    found = manifest.get("sizes")
    sizes = [_count_in(size) for size in found] if isinstance(found, list) else []
    whole = [size for size in sizes if size is not None]
    return whole if len(whole) == len(sizes) >= 2 else None


def _count_in(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return value if is_count else None
