"""Small networks against their definitions, in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.models.networks import (
    Dense,
    NormedDense,
    apply_dense,
    apply_network,
    init_network,
    init_normed_network,
    plain,
)
from toys import differ

SIZES = (5, 7, 4, 2)


def network_numpy(layers, inputs):
    for index, (weight, bias) in enumerate(layers):
        inputs = inputs @ np.asarray(weight) + np.asarray(bias)
        inputs = np.maximum(inputs, 0.0) if index < len(layers) - 1 else inputs
    return inputs


def test_a_network_is_affine_layers_with_relu_between():
    network = init_network(jax.random.key(0), SIZES)
    inputs = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    np.testing.assert_allclose(
        apply_network(network, inputs), network_numpy(network, inputs), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5), (2, 3, 5)])
def test_leading_axes_are_kept(shape):
    network = init_network(jax.random.key(0), SIZES)
    inputs = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    with jax.numpy_rank_promotion("raise"):
        outputs = apply_network(network, jnp.asarray(inputs))
    assert outputs.shape == (*shape[:-1], 2)
    expected = network_numpy(network, inputs.reshape(-1, 5)).reshape(outputs.shape)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def test_initial_weights_are_uniform_within_their_bound():
    first, last = init_network(jax.random.key(3), (100, 400, 300))
    for layer, inputs in ((first, 100), (last, 400)):
        for numbers in layer:
            assert np.abs(numbers).max() <= inputs**-0.5
        assert np.std(layer.weight) == pytest.approx(inputs**-0.5 / np.sqrt(3), rel=0.01)
        assert np.mean(layer.weight) == pytest.approx(0.0, abs=1e-3)
    assert differ(init_network(jax.random.key(0), SIZES), init_network(jax.random.key(1), SIZES))


@pytest.mark.parametrize("sizes", [(3, 2), (180, 64, 3), (70, 59)])
def test_initial_weights_are_those_of_jax(sizes):
    """However the numbers are drawn, a seed means what it has always meant."""
    key = jax.random.key(3)
    layers = init_network(key, sizes)
    traced = jax.jit(lambda key: init_network(key, sizes))(key)
    keys = jax.random.split(key, len(layers))
    for layer, same, own in zip(layers, traced, keys, strict=True):
        bound = layer.weight.shape[0] ** -0.5
        for drawn, again, its_key in zip(layer, same, jax.random.split(own), strict=True):
            expected = jax.random.uniform(its_key, drawn.shape, minval=-bound, maxval=bound)
            np.testing.assert_array_equal(drawn, expected)
            np.testing.assert_allclose(again, expected, rtol=0, atol=1e-7)


def test_layers_of_the_same_size_differ():
    first, second = init_network(jax.random.key(0), (6, 6, 6))
    assert differ(first, second)


def test_weight_normalisation_is_its_definition():
    rng = np.random.default_rng(2)
    layer = NormedDense(
        direction=jnp.asarray(rng.normal(size=(4, 3)), jnp.float32),
        gain=jnp.asarray([2.0, -0.5, 0.0]),
        bias=jnp.asarray(rng.normal(size=3), jnp.float32),
    )
    (dense,) = plain((layer,))
    for output in range(3):
        direction = np.asarray(layer.direction)[:, output].astype(np.float64)
        expected = float(layer.gain[output]) * direction / np.sqrt(np.sum(direction**2))
        np.testing.assert_allclose(dense.weight[:, output], expected, rtol=1e-6)
        # The length of a weight is its gain, whatever the direction's length.
        length = np.linalg.norm(dense.weight[:, output])
        assert length == pytest.approx(abs(float(layer.gain[output])), rel=1e-6)
    np.testing.assert_array_equal(dense.bias, layer.bias)
    scaled = plain((layer._replace(direction=7.0 * layer.direction),))[0]
    np.testing.assert_allclose(scaled.weight, dense.weight, rtol=1e-6)


def test_a_normed_network_starts_as_the_plain_one():
    key = jax.random.key(4)
    for normed, dense in zip(
        plain(init_normed_network(key, SIZES)), init_network(key, SIZES), strict=True
    ):
        np.testing.assert_allclose(normed.weight, dense.weight, rtol=1e-6)
        np.testing.assert_array_equal(normed.bias, dense.bias)


def test_the_gradient_of_a_direction_is_orthogonal_to_it():
    # The mark of weight normalisation: only the gain changes a weight's length.
    network = init_normed_network(jax.random.key(5), SIZES)
    inputs = jnp.asarray(np.random.default_rng(3).normal(size=(8, 5)), jnp.float32)
    gradients = jax.grad(lambda n: jnp.sum(apply_network(plain(n), inputs) ** 2))(network)
    for layer, gradient in zip(network, gradients, strict=True):
        assert np.abs(gradient.direction).max() > 1e-3
        along = np.sum(np.asarray(layer.direction * gradient.direction), axis=0)
        np.testing.assert_allclose(along, 0.0, atol=1e-4)


def test_one_dense_layer_is_linear():
    layer = Dense(jnp.asarray([[1.0, 2.0], [3.0, 4.0]]), jnp.asarray([0.5, -0.5]))
    np.testing.assert_allclose(apply_dense(layer, jnp.asarray([1.0, -1.0])), [-1.5, -2.5])
