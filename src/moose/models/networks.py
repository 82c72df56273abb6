"""Small networks as plain pytrees and pure functions.

A network is a tuple of layers. Weight-normalised layers are turned into plain ones once per use
(:func:`plain`), so that a rollout of a hundred steps does not normalise a hundred times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from moose.types import Key


class Dense(NamedTuple):
    """An affine layer."""

    weight: jax.Array
    """[inputs, outputs]"""
    bias: jax.Array
    """[outputs]"""


class NormedDense(NamedTuple):
    """An affine layer whose weight is ``gain · direction / ‖direction‖`` per output."""

    direction: jax.Array
    """[inputs, outputs]"""
    gain: jax.Array
    """[outputs]"""
    bias: jax.Array
    """[outputs]"""


_SHORTEST_ROW = 4096

Network = tuple[Dense, ...]
NormedNetwork = tuple[NormedDense, ...]


def init_network(key: Key, sizes: Sequence[int]) -> Network:
    """Layers of the given sizes, uniform in ±1/√inputs.

    Args:
        key: Random key.
        sizes: Inputs, hidden widths, outputs.

    Returns:
        The layers.
    """
    keys = jax.random.split(key, len(sizes) - 1)
    return tuple(
        _init_dense(layer_key, inputs, outputs)
        for layer_key, inputs, outputs in zip(keys, sizes[:-1], sizes[1:], strict=True)
    )


def init_normed_network(key: Key, sizes: Sequence[int]) -> NormedNetwork:
    """The same, weight-normalised; at the start it computes what the plain one would."""
    return normed(init_network(key, sizes))


def normed(network: Network) -> NormedNetwork:
    """The weight-normalised layers that compute what the plain ones do."""
    return tuple(
        NormedDense(weight, jnp.linalg.norm(weight, axis=0), bias) for weight, bias in network
    )


def plain(network: NormedNetwork) -> Network:
    """The plain layers that a weight-normalised network stands for."""
    return tuple(
        Dense(direction * (gain / jnp.linalg.norm(direction, axis=0))[None, :], bias)
        for direction, gain, bias in network
    )


def apply_network(network: Network, inputs: jax.Array) -> jax.Array:
    """Hidden layers with ReLU, a linear last layer; any leading axes."""
    *hidden, last = network
    for layer in hidden:
        inputs = jax.nn.relu(apply_dense(layer, inputs))
    return apply_dense(last, inputs)


def apply_to_pairs(network: Network, states: jax.Array, others: jax.Array) -> jax.Array:
    """A network of joined inputs (state, other), for several others to each state.

    The first layer's product with a state is made once, not once for each of its pairs.

    Args:
        network: The network; its first inputs are the state's.
        states: ``[..., n]``.
        others: ``[..., N, m]``, such as N actions in each state.

    Returns:
        ``[..., N, outputs]``.
    """
    first, *rest = network
    weight, split = first.weight, states.shape[-1]
    seen = apply_dense(Dense(weight[:split], first.bias), states)
    joined = seen[..., None, :] + others @ weight[split:]
    return apply_network(tuple(rest), jax.nn.relu(joined)) if rest else joined


def apply_dense(layer: Dense, inputs: jax.Array) -> jax.Array:
    """``inputs @ weight + bias`` with any leading axes."""
    outputs = inputs @ layer.weight
    return outputs + jnp.broadcast_to(layer.bias, outputs.shape)


def on_device(values: npt.NDArray[Any]) -> jax.Array:
    """As ``jnp.asarray``, which would be compiled for every shape."""
    array: jax.Array = jax.device_put(values)
    return array


def _init_dense(key: Key, inputs: int, outputs: int) -> Dense:
    weight_key, bias_key = jax.random.split(key)
    bound = inputs**-0.5
    return Dense(
        _uniform(weight_key, (inputs, outputs), bound), _uniform(bias_key, (outputs,), bound)
    )


def _uniform(key: Key, shape: tuple[int, ...], bound: float) -> jax.Array:
    """Numbers in ±bound: what ``jax.random.uniform`` gives, to the bit, and sooner.

    It is compiled anew for every shape, which takes longer than all else before a training. What
    is drawn depends on the key and its position only, so it is cut from one of few longer rows.
    """
    size = math.prod(shape)
    length = max(1 << (size - 1).bit_length(), _SHORTEST_ROW)
    row = jax.random.uniform(key, (length,), minval=-bound, maxval=bound)
    if isinstance(row, jax.core.Tracer):
        return row[:size].reshape(shape)
    return on_device(np.asarray(row)[:size].reshape(shape))
