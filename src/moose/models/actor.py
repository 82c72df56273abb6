"""The deterministic policy network: raw history in, raw bounded action out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moose.data.normalize import Statistics, standardise
from moose.models.networks import Network, apply_network, init_network
from moose.tasks.task import Task, from_box
from moose.types import Key


class Actor(NamedTuple):
    """A policy network and the scale of its inputs."""

    network: Network
    scale: Statistics
    """Of a frame."""


def init_actor(task: Task, scale: Statistics, hidden: Sequence[int], key: Key) -> Actor:
    """An untrained policy of the right shapes."""
    sizes = (task.history * len(task.observation_names), *hidden, len(task.action_names))
    return Actor(init_network(key, sizes), scale)


def choose_action(actor: Actor, task: Task, window: jax.Array) -> jax.Array:
    """The raw action [d] for a raw history window [F, n]."""
    features = standardise(window, actor.scale).reshape(-1)
    return from_box(jnp.tanh(apply_network(actor.network, features)), task)
