"""A trained policy as a folder: weights, scaling and the task it belongs to.

The manifest tells the network's shape, so that loading needs nothing but the folder; no code runs
on load, and a damaged or altered file is refused by name.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp

from moose.checkpoint import TENSORS, read_tensors, save_tree
from moose.data.normalize import Statistics
from moose.errors import StorageError
from moose.models.actor import Actor
from moose.models.networks import Dense
from moose.storage import read_manifest

_FORMAT = ("moose-policy", 1)


@dataclass(frozen=True)
class Policy:
    """A policy and the name of its task.

    Attributes:
        task: The task's name.
        actor: The network and the scale of its inputs.
    """

    task: str
    actor: Actor


def save_policy(policy: Policy, path: Path, *, overwrite: bool = False) -> None:
    """Write a policy as a folder, whole or not at all."""
    network = policy.actor.network
    sizes = [layer.weight.shape[0] for layer in network] + [network[-1].bias.shape[0]]
    save_tree(
        path,
        policy.actor,
        format_name=_FORMAT[0],
        schema_version=_FORMAT[1],
        content={"task": policy.task, "sizes": sizes, "signals": len(policy.actor.scale.mean)},
        overwrite=overwrite,
    )


def load_policy(path: Path) -> Policy:
    """Read a policy that :func:`save_policy` wrote."""
    manifest = read_manifest(path, *_FORMAT)
    try:
        sizes = [int(size) for size in manifest["sizes"]]
        empty = jnp.zeros(int(manifest["signals"]))
        like = Actor(
            network=tuple(
                Dense(jnp.zeros((inputs, outputs)), jnp.zeros(outputs))
                for inputs, outputs in itertools.pairwise(sizes)
            ),
            scale=Statistics(empty, empty, empty, empty),
        )
        task = str(manifest["task"])
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(
            "The manifest does not describe a policy.",
            where=str(path),
            advice="restore the folder or train again",
        ) from error
    return Policy(task, read_tensors(path / TENSORS, like))
