"""A trained policy as a folder: weights, scaling and the task it belongs to.

The manifest tells the kind of the policy and the shapes of its networks, so that loading needs
nothing but the folder; no code runs on load, and a damaged or altered file is refused by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from moose.checkpoint import TENSORS, read_tensors, save_tree
from moose.data.normalize import Statistics
from moose.errors import ConfigError, DataError, StorageError
from moose.models.actor import KINDS, AnyActor, Kind, act, kind_name, kind_of
from moose.models.networks import Dense, Network
from moose.storage import read_manifest
from moose.tasks.registry import find_task
from moose.types import Key

_FORMAT = ("moose-policy", 2)
_BYTES = 4  # of a float32
_LARGEST_NUMBER = 100_000  # of samples: more than anybody needs, fewer than fill the memory


@dataclass(frozen=True)
class Policy:
    """A policy and the name of its task.

    Attributes:
        task: The task's name.
        actor: Its networks and the scale of their inputs.
        definition: The text of the task's file, for a task that is not part of the program.
    """

    task: str
    actor: AnyActor
    definition: str | None = None

    @property
    def is_stochastic(self) -> bool:
        """Whether it draws samples to act, and so needs a key."""
        return kind_of(self.actor).is_stochastic

    def act(self, window: npt.ArrayLike, key: Key | None = None) -> npt.NDArray[np.float32]:
        """The action for a history of observations, both in the plant's own units.

        Args:
            window: ``[F, n]``: the last F observations, the newest first. Before there are that
                many, repeat the first one.
            key: A JAX random key, another one for every step; only a policy that draws samples
                needs it.

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
        if key is None and self.is_stochastic:
            raise ConfigError(
                "This policy draws samples to act, which needs a random key.",
                where=f"policy of the kind '{kind_name(self.actor)}'",
                advice="give key=jax.random.key(0), another number for every step, or train with "
                "--set acting=deterministic",
            )
        used = jax.random.key(0) if key is None else key  # which nobody looks at
        return np.asarray(act(self.actor, task, jnp.asarray(frames), used))


def save_policy(policy: Policy, path: Path, *, overwrite: bool = False) -> None:
    """Write a policy as a folder, whole or not at all."""
    actor, kind = policy.actor, kind_of(policy.actor)
    save_tree(
        path,
        actor,
        format_name=_FORMAT[0],
        schema_version=_FORMAT[1],
        content={
            "task": policy.task,
            "definition": policy.definition,
            "kind": kind_name(actor),
            "networks": {name: _sizes_of(getattr(actor, name)) for name in kind.networks},
            "numbers": {name: getattr(actor, name) for name in kind.numbers},
            "signals": len(actor.scale.mean),
        },
        overwrite=overwrite,
    )


def load_policy(path: Path) -> Policy:
    """Read a policy that :func:`save_policy` wrote, of this version or an earlier one.

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
    if manifest["schema_version"] == 1:  # which knew one kind of policy
        manifest |= {"kind": "network", "networks": {"network": manifest.get("sizes")}}
    kind = _kind_in(manifest)
    networks, numbers = _networks_in(manifest, kind), _numbers_in(manifest, kind)
    signals, task = _count_in(manifest.get("signals")), manifest.get("task")
    if not networks or numbers is None or signals is None or not isinstance(task, str):
        raise StorageError(
            "The manifest does not describe a policy.",
            where=str(path),
            advice="restore the folder or train again",
        )
    # Asked of the file first, so that a forged size cannot fill the memory.
    pairs = [pair for sizes in networks.values() for pair in itertools.pairwise(sizes)]
    total = sum((n + 1) * m for n, m in pairs) + 4 * signals
    if not (path / TENSORS).is_file() or total * _BYTES > (path / TENSORS).stat().st_size:
        raise StorageError(
            f"The policy's weights are fewer than its manifest says: {total} numbers.",
            where=str(path / TENSORS),
            advice="restore the folder or train again",
        )
    empty = jnp.zeros(signals)
    like = kind.actor(
        **{name: _empty_network(sizes) for name, sizes in networks.items()},
        scale=Statistics(empty, empty, empty, empty),
        **numbers,
    )
    definition = manifest.get("definition")
    return Policy(
        task, read_tensors(path / TENSORS, like), None if definition is None else str(definition)
    )


def _sizes_of(network: Network) -> list[int]:
    return [layer.weight.shape[0] for layer in network] + [network[-1].bias.shape[0]]


def _empty_network(sizes: list[int]) -> Network:
    return tuple(Dense(jnp.zeros((n, m)), jnp.zeros(m)) for n, m in itertools.pairwise(sizes))


def _kind_in(manifest: Mapping[str, Any]) -> Kind:
    name = manifest.get("kind")
    if not isinstance(name, str) or name not in KINDS:
        raise StorageError(
            f"The manifest names a kind of policy that is not known: {name!r}.",
            where="kind",
            advice=f"it should be one of: {', '.join(KINDS)}",
        )
    return KINDS[name]


def _networks_in(manifest: Mapping[str, Any], kind: Kind) -> dict[str, list[int]] | None:
    """The sizes of each of the kind's networks, or None if something else is there."""
    found = manifest.get("networks")
    if not isinstance(found, Mapping) or found.keys() != {*kind.networks}:
        return None
    sizes = {name: _sizes_in(found[name]) for name in kind.networks}
    whole = {name: each for name, each in sizes.items() if each is not None}
    return whole if len(whole) == len(sizes) else None


def _sizes_in(found: Any) -> list[int] | None:
    sizes = [_count_in(size) for size in found] if isinstance(found, list) else []
    whole = [size for size in sizes if size is not None]
    return whole if len(whole) == len(sizes) >= 2 else None


def _numbers_in(manifest: Mapping[str, Any], kind: Kind) -> dict[str, Any] | None:
    """The kind's fixed numbers, or None if something else is there."""
    found = manifest.get("numbers", {})
    if not isinstance(found, Mapping) or found.keys() != kind.numbers.keys():
        return None
    for name, wanted in kind.numbers.items():
        if type(found[name]) is not wanted or not 0 < found[name] <= _LARGEST_NUMBER:
            return None
    return dict(found)


def _count_in(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return value if is_count else None
