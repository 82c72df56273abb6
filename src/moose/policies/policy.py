"""A trained policy and its folder: weights, scaling, the task's facts and where it comes from.

This is the side that needs JAX: saving what was trained, and loading it for training's own use. A
controller in operation is :func:`moose.policies.plain.load_policy`, which reads the same files
(:mod:`moose.policies.artifact`) without JAX.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from moose.checkpoint import fill_tree, write_tensors
from moose.data.normalize import Statistics
from moose.errors import ConfigError, DataError, StorageError
from moose.models.actor import KINDS, AnyActor, DialActor, Kind, act, kind_name, kind_of
from moose.models.networks import Dense, Network, on_device
from moose.models.support import (
    NOVELTY_QUANTILES,
    Autoencoder,
    Familiarity,
    Support,
    SupportScales,
    reconstruction_error,
    support_inputs,
)
from moose.policies.artifact import FORMAT, Artifact, clamp_of, read_artifact, scaling_of
from moose.policies.bundle import EXAMPLES, SUPPORT
from moose.policies.dial import no_dial, require_position, turned_origin
from moose.policies.examples import POSITIONS, check_examples
from moose.policies.facts import TaskFacts, box_of, task_tree
from moose.policies.parts import growing_curve, parts_of, score_on
from moose.policies.plain import Controller
from moose.storage import TENSORS, atomic_folder, write_manifest
from moose.tasks.registry import find_task
from moose.tasks.task import Task
from moose.types import Key
from moose.version import __version__

_NUM_EXAMPLES = 6


@dataclass(frozen=True)
class Policy:
    """A policy and all that should travel with it.

    Attributes:
        task: The task's name.
        actor: Its networks and the scale of their inputs.
        facts: What it knows of its task; None of a policy saved by an early version.
        familiarity: The support model, if the algorithm has one.
        origin: Where it comes from: algorithm, settings, data, versions, as plain JSON values.
    """

    task: str
    actor: AnyActor
    facts: TaskFacts | None = None
    familiarity: Familiarity | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_stochastic(self) -> bool:
        """Whether it draws samples to act, and so needs a key."""
        return kind_of(self.actor).is_stochastic

    @property
    def position(self) -> float | None:
        """Where its dial stands, from 0 to 1; None of a policy without a dial."""
        return self.actor.position if isinstance(self.actor, DialActor) else None

    @property
    def known_facts(self) -> TaskFacts:
        """Its own facts, or those of the task of that name."""
        return self.facts or facts_of(find_task(self.task))

    def at(self, position: float) -> Policy:
        """The same policy with its dial at another position.

        Args:
            position: From 0, which is the behaviour of the log, to 1, all that was found.

        Returns:
            The policy, whose origin tells where the algorithm had left the dial.

        Raises:
            ConfigError: There is no such position, or the policy has no dial.
        """
        if not isinstance(self.actor, DialActor):
            raise no_dial(kind_name(self.actor), f"policy of the task '{self.task}'")
        chosen = require_position(position)
        origin = turned_origin(self.origin, self.actor.position, chosen)
        return replace(self, actor=replace(self.actor, position=chosen), origin=origin)

    def act(self, window: npt.ArrayLike, key: Key | None = None) -> npt.NDArray[np.float32]:
        """The action for a history of observations, both in the plant's own units.

        Whatever is not a number or far outside of the data is clamped, as in
        :mod:`moose.policies.plain`.

        Args:
            window: ``[F, n]``: the last F observations, the newest first. Before there are that
                many, repeat the first one.
            key: A JAX random key, another one for every step; only a policy that draws samples
                needs it.

        Returns:
            The action ``[d]``, within the task's bounds.
        """
        facts = self.known_facts
        with np.errstate(over="ignore"):
            frames = np.asarray(window, np.float32)
        if frames.shape != facts.window_shape:
            raise DataError(
                f"The history has the shape {frames.shape}; this task's is {facts.window_shape}.",
                where=f"task '{facts.name}': {', '.join(facts.observation_names)}",
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
        action = act(self.actor, facts, _clamped(self.actor.scale, frames), used)
        box = box_of(facts)
        return np.asarray(
            jnp.clip(jnp.where(jnp.isnan(action), box.middle, action), box.low, box.high)
        )

    def novelty(self, window: npt.ArrayLike, action: npt.ArrayLike) -> float:
        """How unusual it is to take an action ``[d]`` after a history ``[F, n]``.

        See :meth:`moose.policies.plain.Controller.novelty`.
        """
        if self.familiarity is None:
            raise ConfigError(
                "This policy has no support model, so that nobody can tell what is new to it.",
                where=f"policy of the kind '{kind_name(self.actor)}'",
                advice="use a policy trained by LION or MOOSE",
            )
        support, errors = self.familiarity
        facts = self.known_facts
        inputs = support.autoencoder.encoder.weight.shape[0]
        frames = (inputs - len(facts.action_names)) // len(facts.observation_names)
        seen = _clamped(self.actor.scale, np.asarray(window, np.float32))[:frames]
        error = np.asarray(_error_of(support, seen, np.asarray(action, np.float32)))
        curve = growing_curve(np.asarray(errors), np.asarray(NOVELTY_QUANTILES, np.float32))
        return float(score_on(*curve, error))


def facts_of(task: Task) -> TaskFacts:
    """What a policy's folder says about its task."""
    return TaskFacts(
        name=task.name,
        observation_names=task.observation_names,
        action_names=task.action_names,
        action_low=task.action_low,
        action_high=task.action_high,
        history=task.history,
        discount=task.discount,
        observation_units=task.observation_units,
        action_units=task.action_units,
        action_rates=task.action_rates,
        hold_action=task.hold_action,
    )


def save_policy(policy: Policy, path: Path, *, overwrite: bool = False) -> None:
    """Write a policy as a folder, whole or not at all."""
    actor, kind, facts = policy.actor, kind_of(policy.actor), policy.known_facts
    content: dict[str, Any] = {
        "task": task_tree(facts),
        "scaling": scaling_of(_scale_tensors(actor.scale), facts),
        "kind": kind_name(actor),
        "is_stochastic": kind.is_stochastic,
        "networks": {name: _sizes_of(getattr(actor, name)) for name in kind.networks},
        "numbers": {n: each.type(getattr(actor, n)) for n, each in kind.numbers.items()},
        "signals": len(actor.scale.mean),
        "support": None,
        "origin": dict(policy.origin),
        "saved_by": f"moose {__version__}",
    }
    with atomic_folder(path, replaces=FORMAT[0] if overwrite else None) as folder:
        write_tensors(folder / TENSORS, actor)
        if policy.familiarity is not None:
            write_tensors(folder / SUPPORT, policy.familiarity)
            content["support"] = _support_tree(policy.familiarity.support.autoencoder)
        if not kind.is_stochastic:
            write_tensors(folder / EXAMPLES, _make_examples(policy, facts))
        write_manifest(folder, *FORMAT, content)


def load_policy(path: Path | str) -> Policy:
    """Read a policy that :func:`save_policy` wrote, of this version or an earlier one.

    Args:
        path: The policy's folder or ``.moose`` file.

    Returns:
        The policy.

    Raises:
        StorageError: The policy is missing, damaged or altered, or acts otherwise than when it was
            saved.
        DataError: This is something else.
    """
    path = Path(path)
    artifact = read_artifact(path)
    manifest, kind = artifact.manifest, _kind_in(artifact.manifest)
    numbers = _numbers_in(manifest, kind)
    if artifact.networks.keys() != {*kind.networks} or numbers is None:
        raise StorageError(
            "The manifest does not describe a policy.",
            where=str(path),
            advice="restore the folder or train again",
        )
    like = kind.actor(
        **{name: _empty_network(sizes) for name, sizes in artifact.networks.items()},
        scale=_empty_statistics(artifact.signals),
        **numbers,
    )
    actor = fill_tree(artifact.tensors, like, path / TENSORS)
    if artifact.facts is None:
        return Policy(manifest["task"], actor)
    if not kind.is_stochastic:
        check_examples(Controller(parts_of(artifact, path), manifest), artifact, path)
    origin = manifest.get("origin")
    return Policy(
        artifact.facts.name,
        actor,
        artifact.facts,
        _familiarity_in(artifact, path),
        origin if isinstance(origin, dict) else {},
    )


@jax.jit
def _error_of(support: Support, window: jax.Array, action: jax.Array) -> jax.Array:
    pair = support_inputs(support.scales, window, action)
    return reconstruction_error(support.autoencoder, pair)


def _clamped(scale: Statistics, frames: npt.NDArray[np.float32]) -> jax.Array:
    fill, low, high = clamp_of(_scale_tensors(scale))
    return on_device(np.clip(np.where(np.isnan(frames), fill, frames), low, high))


def _make_examples(policy: Policy, facts: TaskFacts) -> dict[str, Any]:
    """Histories within the data's range, beyond it and far beyond, and the policy's answers."""
    fill, low, high = clamp_of(_scale_tensors(policy.actor.scale))
    rng = np.random.default_rng(0)
    shape = (_NUM_EXAMPLES, *facts.window_shape)
    width = (high - low) * np.array([0.1, 0.1, 0.1, 0.2, 0.5, 1.0])[:, None, None]
    windows = (fill + width * rng.uniform(-0.5, 0.5, shape)).astype(np.float32)
    windows[-1].flat[:3] = np.nan, np.inf, -1e30
    actions = np.stack([policy.act(window) for window in windows])
    examples = {"windows": windows, "actions": actions}
    if policy.familiarity is not None:
        pairs = zip(windows, actions, strict=True)
        novelty = [policy.novelty(window, action) for window, action in pairs]
        examples["novelty"] = np.array(novelty, np.float32)
    if policy.position is not None:
        turned = [policy.at(position) for position in POSITIONS]
        examples["positions"] = np.array(POSITIONS, np.float32)
        examples["turned"] = np.stack([[each.act(w) for w in windows] for each in turned])
    return examples


def _scale_tensors(scale: Statistics) -> dict[str, Any]:
    names = ("mean", "deviation", "minimum", "maximum")
    return {f"scale/{name}": getattr(scale, name) for name in names}


def _support_tree(autoencoder: Autoencoder) -> dict[str, Any]:
    return {
        "encoder": _sizes_of((autoencoder.encoder, autoencoder.mean_head)),
        "decoder": _sizes_of(autoencoder.decoder),
        "quantiles": list(NOVELTY_QUANTILES),
    }


def _familiarity_in(artifact: Artifact, path: Path) -> Familiarity | None:
    if artifact.support is None or artifact.facts is None:
        return None
    sizes = artifact.manifest["support"]
    encoder, mean_head = _empty_network(sizes["encoder"])
    like = Familiarity(
        Support(
            Autoencoder(encoder, mean_head, mean_head, _empty_network(sizes["decoder"])),
            SupportScales(
                _empty_statistics(artifact.signals),
                _empty_statistics(len(artifact.facts.action_names)),
            ),
        ),
        _zeros(len(sizes["quantiles"])),
    )
    return fill_tree(artifact.support, like, path / SUPPORT)


def _empty_statistics(count: int) -> Statistics:
    empty = _zeros(count)
    return Statistics(empty, empty, empty, empty)


def _sizes_of(network: Network) -> list[int]:
    return [layer.weight.shape[0] for layer in network] + [network[-1].bias.shape[0]]


def _empty_network(sizes: list[int]) -> Network:
    return tuple(Dense(_zeros(n, m), _zeros(m)) for n, m in itertools.pairwise(sizes))


def _zeros(*shape: int) -> jax.Array:
    """As ``jnp.zeros``, which would be compiled for every shape."""
    return on_device(np.zeros(shape, np.float32))


def _kind_in(manifest: Mapping[str, Any]) -> Kind:
    name = manifest.get("kind")
    if not isinstance(name, str) or name not in KINDS:
        raise StorageError(
            f"The manifest names a kind of policy that is not known: {name!r}.",
            where="kind",
            advice=f"it should be one of: {', '.join(KINDS)}",
        )
    return KINDS[name]


def _numbers_in(manifest: Mapping[str, Any], kind: Kind) -> dict[str, Any] | None:
    """The kind's fixed numbers, or None if something else is there."""
    found = manifest.get("numbers", {})
    if not isinstance(found, Mapping) or found.keys() != kind.numbers.keys():
        return None
    for name, wanted in kind.numbers.items():
        number = found[name]
        if type(number) is not wanted.type or not wanted.low <= number <= wanted.high:
            return None
    return dict(found)
