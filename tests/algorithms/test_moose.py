"""MOOSE against its equations, its known answers and its promises."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.algorithms import moose
from moose.config import build_settings, merge
from moose.data.normalize import Statistics
from moose.data.split import split_episodes
from moose.models.actor import Actor, choose_action, init_actor
from moose.models.dynamics import fit_ensemble, init_members, measure_scales, ready
from moose.models.rollout import Imagined
from moose.models.supervised import make_table
from moose.models.support import (
    fit_support,
    frames_seen,
    init_autoencoder,
    measure_support_scales,
    num_latents,
)
from toys import (
    MemoryJournal,
    altered,
    assert_close,
    assert_same_bits,
    differ,
    make_toy_log,
    make_toy_task,
    toy_physics_numpy,
    toy_reward_numpy,
)

SMALL = {
    "dynamics": {"members": 3, "hidden": [8], "epochs": 2, "batch_size": 40, "learning_rate": 1e-2},
    "support": {"width": 8, "epochs": 2, "batch_size": 40, "learning_rate": 1e-2},
    "search": {"hidden": [6], "updates": 4, "checks": 2, "start_states": 4, "horizon": 5},
}


def make_config(**changes):
    return build_settings(moose.Config, merge(SMALL, changes))


def member_of(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


# The objective, written once more in NumPy


def reference_loss(actor, members, autoencoder, given, task, config, starts, noise):
    """L(θ) straight from the equations: loops over models, start states and time.

    ``members`` are the weight-normalised networks; ``noise`` is [H, K, N, L]. Returns the loss and
    what the test wants to know of the way there.
    """
    search = config.search
    horizon, discount = search.horizon or task.horizon, search.discount or task.discount
    num_members, num_starts = len(members.dynamics[0].bias), len(starts)
    scales, columns = given.scales, list(task.predicted)
    returns = np.zeros((num_members, num_starts))
    penalties = np.zeros((num_members, num_starts))
    raw_returns = np.zeros((num_members, num_starts))
    seen = {"clipped": 0, "free": 0, "lever": 0}
    for k, i in itertools.product(range(num_members), range(num_starts)):
        dynamics = weight_normalised(member_of(members.dynamics, k))
        window = np.array(starts[i])
        for t in range(horizon):
            box = np.tanh(mlp(actor.network, standard(window, actor.scale).ravel()))
            low, high = np.array(task.action_low), np.array(task.action_high)
            action = low + (box + 1.0) * (high - low) / 2.0
            # Penalty of the pair, before the step.
            frames = window[: frames_seen(task, config.support)]
            pair = np.concatenate(
                [
                    standard(frames, given.support_scales.frame).ravel(),
                    standard(action, given.support_scales.action),
                ]
            )
            draw = noise[t, k, i] if search.latent == "sample" else 0.0
            penalties[k, i] += np.mean((pair - reconstruct(autoencoder, pair, draw)) ** 2)
            # The step.
            inputs = np.concatenate(
                [standard(window, scales.frame).ravel(), standard(action, scales.action)]
            )
            predicted = mlp(dynamics, inputs) * scales.target.deviation + scales.target.mean
            if task.target == "delta":
                predicted = predicted + window[0, columns]
            bounded = within(predicted, scales.predicted)
            frame = toy_physics_numpy(window[0], action, bounded)
            # The reward, standardised.
            if task.reward is not None:
                reward = toy_reward_numpy(window[0], action, frame)
            else:
                network = weight_normalised(member_of(members.reward, k))
                output = mlp(network, np.concatenate([inputs, standard(frame, scales.frame)]))[0]
                unclipped = output * scales.reward.deviation + scales.reward.mean
                reward = within(unclipped, scales.reward)
            raw_returns[k, i] += discount**t * reward
            returns[k, i] += discount**t * standard(reward, scales.reward)
            window = np.vstack([frame, window[:-1]])
            seen["clipped"] += int((bounded != predicted).any())
            seen["free"] += int((bounded == predicted).all())
            seen["lever"] += int(abs(frame[2]) == 0.8)
    if search.reduction == "mean":
        returns, penalties = returns / horizon, penalties / horizon
    eta, weight = search.pessimism, search.return_weight
    expected_return = np.mean(eta * returns.min(axis=0) + (1 - eta) * returns.mean(axis=0))
    loss = -weight * expected_return + (1 - weight) * penalties.mean()
    seen["worst"] = len(np.unique(returns.argmin(axis=0)))
    metrics = {
        "loss": loss,
        "imagined_return": raw_returns.mean(),
        "model_spread": raw_returns.std(axis=0).mean(),
        "penalty": penalties.mean(),
    }
    return loss, metrics, seen


def standard(values, scale):
    return (values - scale.mean) / scale.deviation


def within(values, scale):
    return np.minimum(np.maximum(values, scale.minimum), scale.maximum)


def weight_normalised(layers):
    return [
        (layer.direction / np.sqrt(np.sum(layer.direction**2, axis=0)) * layer.gain, layer.bias)
        for layer in layers
    ]


def mlp(layers, inputs):
    for weight, bias in layers[:-1]:
        inputs = np.maximum(inputs @ weight + bias, 0.0)
    weight, bias = layers[-1]
    return inputs @ weight + bias


def reconstruct(autoencoder, pair, draw):
    hidden = np.maximum(pair @ autoencoder.encoder.weight + autoencoder.encoder.bias, 0.0)
    mean = hidden @ autoencoder.mean_head.weight + autoencoder.mean_head.bias
    head = autoencoder.log_deviation_head
    log_deviation = np.clip(hidden @ head.weight + head.bias, -4.0, 15.0)
    return mlp(autoencoder.decoder, mean + np.exp(log_deviation) * draw)


def make_case(task, config, seed=0):
    """Random float64 networks, wide enough for clipping to happen, and the data's scales."""
    log = make_toy_log(task, unfinished=(1,))
    scales, support_scales = measure_scales(log, task), measure_support_scales(log)
    shapes = jax.eval_shape(
        lambda key: (
            init_actor(task, scales.frame, config.search.hidden, key).network,
            init_members(task, config.dynamics, key),
            init_autoencoder(task, config.support, key),
        ),
        jax.random.key(0),
    )
    rng = np.random.default_rng(seed)
    network, members, autoencoder = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape) * (0.8 if leaf.ndim > 1 else 0.5), shapes
    )
    members = members._replace(
        dynamics=tuple(layer._replace(gain=3.0 * layer.gain) for layer in members.dynamics)
    )
    autoencoder = jax.tree.map(lambda leaf: 0.5 * leaf, autoencoder)
    rows = log.observation_rows[[3, 40, 95, 120]]
    starts = log.observations[rows[:, None] - np.arange(task.history)]
    scales, support_scales, starts = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64), (scales, support_scales, starts)
    )
    given = moose.Given(make_table(log), scales, support_scales, jnp.arange(3))
    return Actor(network, scales.frame), members, autoencoder, given, starts


# Every pair of values of two settings occurs (history 1 and 3, what the support sees, γ too).
CASES = [
    # target, reward known, latent, reduction, rematerialised, λ, history, sees, η, actions
    ("direct", True, "mean", "mean", False, 0.01, 3, "window", 0.5, 2),
    ("direct", True, "sample", "sum", True, 1.0, 1, "frame", 1.0, 1),
    ("direct", False, "mean", "sum", True, 0.0, 3, "frame", 0.0, 1),
    ("direct", False, "sample", "mean", False, 0.01, 1, "window", 0.5, 2),
    ("delta", True, "mean", "sum", False, 1.0, 3, "window", 0.0, 2),
    ("delta", True, "sample", "mean", True, 0.0, 3, "window", 0.5, 1),
    ("delta", False, "mean", "mean", True, 1.0, 1, "frame", 1.0, 2),
    ("delta", False, "sample", "sum", False, 0.01, 3, "frame", 0.5, 1),
    ("direct", False, "mean", "mean", False, 1.0, 3, "frame", 0.5, 1),
    ("delta", True, "sample", "sum", True, 0.01, 1, "window", 1.0, 2),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_loss_and_gradient_are_those_of_the_equations(case):
    target, is_known, latent, reduction, is_rematerialised, weight, history, sees, eta, size = case
    task = make_toy_task(target=target, is_reward_known=is_known, history=history, num_actions=size)
    config = make_config(
        support={"sees": sees},
        search={
            "latent": latent,
            "reduction": reduction,
            "is_rematerialised": is_rematerialised,
            "return_weight": weight,
            "pessimism": eta,
        },
    )
    key = jax.random.key(11)
    with jax.enable_x64(True):
        shape = (3, 4, num_latents(task, config.support))
        keys = [jax.random.fold_in(key, t) for t in range(5)]
        noise = np.stack([jax.random.normal(k, shape, jnp.float64) for k in keys])

    # Networks with which the test sees both sides of every kink that it means to.
    for seed in range(30):
        actor, members, autoencoder, given, starts = make_case(task, config, seed)

        def reference(actor, rest=(members, autoencoder, given, task, config, starts, noise)):
            return reference_loss(actor, *rest)

        expected, expected_metrics, seen = reference(actor)
        if min(seen["clipped"], seen["free"], seen["lever"]) > 4 and seen["worst"] > 1:
            break
    else:
        pytest.fail("no such networks found")

    with jax.enable_x64(True):
        # Compiled once and run once: the less the compiler tries, the sooner it is done.
        @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
        def value_and_gradient(network, members, autoencoder):
            knowledge = moose.Knowledge(ready(members), autoencoder, key)

            def loss(network):
                return moose.policy_loss(
                    actor._replace(network=network), knowledge, given, task, config, starts, key
                )

            return jax.value_and_grad(loss, has_aux=True)(network)

        (loss, metrics), gradient = value_and_gradient(actor.network, members, autoencoder)
    np.testing.assert_allclose(loss, expected, rtol=1e-10)
    assert metrics.keys() == expected_metrics.keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(value, expected_metrics[name], rtol=1e-10, err_msg=name)

    leaves, structure = jax.tree.flatten(actor.network)
    flat = np.concatenate([leaf.ravel() for leaf in leaves])
    found = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(gradient)])
    borders = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def loss_at(numbers):
        parts = np.split(numbers, borders)
        network = structure.unflatten(
            [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        )
        return reference(actor._replace(network=network))[0]

    # All parameters would take a while in NumPy: some, and a few directions through all of them.
    rng = np.random.default_rng(0)
    directions = [
        *(np.eye(len(flat))[rng.permutation(len(flat))[:4]]),
        *rng.normal(size=(3, len(flat))),
    ]
    for direction in directions:
        step = 1e-6 * direction
        slope = (loss_at(flat + step) - loss_at(flat - step)) / 2e-6
        np.testing.assert_allclose(found @ direction, slope, rtol=1e-6, atol=1e-8)
    assert np.abs(found).max() > 1e-6
