"""Policies as they act: raw history in, raw bounded action out.

An actor is a pytree of networks, the scale of their inputs and perhaps a few fixed numbers. There
are several kinds, named in :data:`KINDS`; :func:`act` is how any of them acts. Those that draw
samples need a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moose.data.dataset import Dataset
from moose.data.normalize import Statistics, measure, standardise
from moose.models.action_vae import decode_before_tanh, decoded_samples, perturbed_actions
from moose.models.gaussian import clipped_gaussian, draw_before_tanh
from moose.models.networks import Network, apply_network, apply_to_pairs, init_network
from moose.tasks.task import Bounded, Task, from_box
from moose.types import Key


class Actor(NamedTuple):
    """A deterministic policy network and the scale of its inputs."""

    network: Network
    scale: Statistics
    """Of a frame."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SampledActor:
    """The best of several samples from a tanh-Gaussian policy, by a critic (BEAR).

    Attributes:
        network: Mean and log-deviation before tanh.
        critic: Q(s, a).
        scale: Of a frame.
        samples: Samples to choose from.
    """

    network: Network
    critic: Network
    scale: Statistics
    samples: int = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodedActor:
    """What the log is most likely to have done, and a small improvement (BCQ, latent 0).

    Attributes:
        decoder: Of the actions' autoencoder.
        perturbation: ξ(s, a).
        scale: Of a frame.
        limit: Φ, the largest perturbation.
    """

    decoder: Network
    perturbation: Network
    scale: Statistics
    limit: float = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SampledDecodedActor:
    """The best of several decoded and perturbed samples, by a critic (BCQ).

    Attributes:
        decoder: Of the actions' autoencoder.
        perturbation: ξ(s, a).
        critic: Q(s, a).
        scale: Of a frame.
        limit: Φ, the largest perturbation.
        samples: Samples to choose from.
    """

    decoder: Network
    perturbation: Network
    critic: Network
    scale: Statistics
    limit: float = field(metadata={"static": True})
    samples: int = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DialActor:
    """Between what the log did and what a search found, by a dial (LION).

    Attributes:
        behaviour: What the log did; tanh of its outputs.
        search: What was found; its last input is the dial's position.
        scale: Of a frame.
        position: λ, where the dial stands: 0 is the behaviour.
    """

    behaviour: Network
    search: Network
    scale: Statistics
    position: float = field(metadata={"static": True})


AnyActor = Actor | SampledActor | DecodedActor | SampledDecodedActor | DialActor


class Number(NamedTuple):
    """A fixed number of an actor: its type and what it may be."""

    type: type[int] | type[float]
    low: float
    high: float


class Kind(NamedTuple):
    """What is to be known of a kind of actor.

    Every actor has a ``scale``, the networks and the numbers named here, and nothing else.
    """

    actor: Callable[..., AnyActor]
    """Its class."""
    networks: tuple[str, ...]
    numbers: Mapping[str, Number]
    """Its fixed numbers."""
    is_stochastic: bool
    """Whether it draws samples, so that acting needs a key."""
    choose: Callable[[Any, jax.Array, Key], jax.Array]
    """``choose(actor, features [S], key) -> action [d]`` in the box [−1, 1]^d."""


def act(actor: AnyActor, task: Bounded, window: jax.Array, key: Key) -> jax.Array:
    """The raw action [d] for a raw history window [F, n]; a deterministic actor ignores the key."""
    features = standardise(window, actor.scale).reshape(-1)
    return from_box(kind_of(actor).choose(actor, features, key), task)


def choose_action(actor: Actor, task: Task, window: jax.Array) -> jax.Array:
    """The raw action [d] of a deterministic policy for a raw history window [F, n]."""
    features = standardise(window, actor.scale).reshape(-1)
    return from_box(jnp.tanh(apply_network(actor.network, features)), task)


def act_at(actor: DialActor, task: Bounded, window: jax.Array, position: jax.Array) -> jax.Array:
    """The raw action [d] of a policy with a dial at any position, for a window [F, n]."""
    features = standardise(window, actor.scale).reshape(-1)
    return from_box(mixed_action(actor, features, position), task)


def mixed_action(actor: DialActor, features: jax.Array, position: jax.Array) -> jax.Array:
    """The action (1 − λ) tanh b(s) + λ tanh f(s, λ), in the box [−1, 1]^d."""
    known = jnp.tanh(apply_network(actor.behaviour, features))
    inputs = jnp.concatenate([features, position[None]])
    found = jnp.tanh(apply_network(actor.search, inputs))
    return known + position * (found - known)


def kind_of(actor: AnyActor) -> Kind:
    """The kind of an actor."""
    return KINDS[kind_name(actor)]


def kind_name(actor: AnyActor) -> str:
    """The name of an actor's kind."""
    return next(name for name, kind in KINDS.items() if type(actor) is kind.actor)


def init_actor(task: Task, scale: Statistics, hidden: Sequence[int], key: Key) -> Actor:
    """An untrained deterministic policy of the right shapes."""
    return Actor(init_network(key, (num_features(task), *hidden, len(task.action_names))), scale)


def mode_actor(network: Network, scale: Statistics) -> Actor:
    """The mode tanh(mean) of a network whose outputs are means and, after them, as many others."""
    *hidden, last = network
    count = last.bias.shape[-1] // 2
    mean = last._replace(weight=last.weight[..., :count], bias=last.bias[..., :count])
    return Actor((*hidden, mean), scale)


def num_features(task: Task) -> int:
    """S: the numbers in a history window."""
    return task.history * len(task.observation_names)


def input_scale(dataset: Dataset, inputs: Literal["raw", "standardised"]) -> Statistics:
    """The scale of a policy's inputs: the data's, or one that leaves them as they are."""
    statistics = measure(dataset.observations[dataset.is_observed])
    if inputs == "standardised":
        return statistics
    zeros, ones = np.zeros_like(statistics.mean), np.ones_like(statistics.mean)
    return Statistics(zeros, ones, statistics.minimum, statistics.maximum)


def _choose_mode(actor: Actor, features: jax.Array, key: Key) -> jax.Array:
    return jnp.tanh(apply_network(actor.network, features))


def _choose_sample(actor: SampledActor, features: jax.Array, key: Key) -> jax.Array:
    gaussian = clipped_gaussian(apply_network(actor.network, features))
    actions = jnp.tanh(draw_before_tanh(gaussian, actor.samples, key))
    return _best(actor.critic, features, actions)


def _choose_decoded(actor: DecodedActor, features: jax.Array, key: Key) -> jax.Array:
    num_latents = actor.decoder[0].weight.shape[0] - features.shape[-1]
    latents = jnp.zeros((1, num_latents), features.dtype)
    decoded = jnp.tanh(decode_before_tanh(actor.decoder, features, latents))
    return perturbed_actions(actor.perturbation, features, decoded, actor.limit)[0]


def _choose_decoded_sample(actor: SampledDecodedActor, features: jax.Array, key: Key) -> jax.Array:
    decoded = decoded_samples(actor.decoder, features, actor.samples, key)
    actions = perturbed_actions(actor.perturbation, features, decoded, actor.limit)
    return _best(actor.critic, features, actions)


def _choose_at_dial(actor: DialActor, features: jax.Array, key: Key) -> jax.Array:
    if actor.position == 0:  # whatever the search says
        return jnp.tanh(apply_network(actor.behaviour, features))
    return mixed_action(actor, features, jnp.asarray(actor.position, features.dtype))


def _best(critic: Network, features: jax.Array, actions: jax.Array) -> jax.Array:
    """The action [d] of highest Q among those given [N, d]."""
    return actions[jnp.argmax(apply_to_pairs(critic, features, actions)[:, 0])]


_COUNT = Number(int, 1, 100_000)  # more than anybody needs, fewer than fill the memory
_LIMIT = Number(float, float(np.finfo(np.float32).tiny), 100_000)
_SHARE = Number(float, 0.0, 1.0)

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "network": Kind(Actor, ("network",), {}, False, _choose_mode),
        "sampled": Kind(
            SampledActor, ("network", "critic"), {"samples": _COUNT}, True, _choose_sample
        ),
        "decoded": Kind(
            DecodedActor, ("decoder", "perturbation"), {"limit": _LIMIT}, False, _choose_decoded
        ),
        "sampled-decoded": Kind(
            SampledDecodedActor,
            ("decoder", "perturbation", "critic"),
            {"limit": _LIMIT, "samples": _COUNT},
            True,
            _choose_decoded_sample,
        ),
        "dial": Kind(
            DialActor, ("behaviour", "search"), {"position": _SHARE}, False, _choose_at_dial
        ),
    }
)
"""All kinds of actors by name."""
