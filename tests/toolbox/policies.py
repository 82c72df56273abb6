"""Small policies of a toy task, with a support model, as they are saved."""

from __future__ import annotations

import json

import jax
import numpy as np
from safetensors.numpy import load, save

from moose.data.normalize import measure
from moose.models.actor import DecodedActor, DialActor, SampledActor, init_actor
from moose.models.networks import init_network
from moose.models.support import NOVELTY_QUANTILES, Familiarity, SupportSettings, init_support
from moose.policies.policy import Policy, facts_of
from moose.storage import MANIFEST, write_manifest
from toys import make_toy_log, make_toy_task

ORIGIN = {"algorithm": "moose", "seed": 0, "data": {"fingerprint": "f00d"}}


def make_toy_policy(
    kind="network", *, hidden=(5, 4), history=2, sees="window", has_support=True, seed=1
):
    """Untrained networks on the scale of a toy log; a support model whose errors are made up."""
    task = make_toy_task(history=history)
    log = make_toy_log(task)
    scale = measure(log.observations)
    key, more, third = jax.random.split(jax.random.key(seed), 3)
    features, actions = history * 3, 2
    if kind == "network":
        actor = init_actor(task, scale, hidden, key)
    elif kind == "decoded":
        decoder = init_network(key, (features + 2 * actions, *hidden, actions))
        shift = init_network(more, (features + actions, *hidden, actions))
        actor = DecodedActor(decoder, shift, scale, 0.05)
    elif kind == "dial":
        behaviour = init_network(key, (features, *hidden, actions))
        search = init_network(more, (features + 1, *hidden[::-1], actions))
        actor = DialActor(behaviour, search, scale, 0.5)
    else:
        network = init_network(key, (features, *hidden, 2 * actions))
        critic = init_network(more, (features + actions, *hidden, 1))
        actor = SampledActor(network, critic, scale, 4)
    familiarity = None
    if has_support:
        settings = SupportSettings(width=6, sees=sees)
        errors = np.sort(np.random.default_rng(seed).exponential(size=len(NOVELTY_QUANTILES)))
        support = init_support(log, task, settings, third)
        familiarity = Familiarity(support, errors.astype(np.float32))
    return Policy("toy", actor, facts_of(task), familiarity, ORIGIN)


def float64_reference(policy, windows, position=None):
    """Actions and novelty in float64, written once more from the documentation.

    A dial stands where the policy has it, unless another position is given.
    """
    actor, facts = policy.actor, policy.facts
    low, high = (np.asarray(v, np.float64) for v in (actor.scale.minimum, actor.scale.maximum))
    width = np.where(high > low, high - low, actor.scale.deviation)
    frames = np.asarray(windows, np.float64)
    frames = np.where(np.isnan(frames), (low + high) / 2, frames)
    frames = np.clip(frames, low - 3 * width, high + 3 * width)
    mean, deviation = (np.asarray(v, np.float64) for v in (actor.scale.mean, actor.scale.deviation))
    features = ((frames - mean) / deviation).reshape(len(frames), -1)
    if isinstance(actor, DecodedActor):
        latents = np.zeros((len(features), 4))
        decoded = np.tanh(_network(actor.decoder, np.hstack([features, latents])))
        shift = np.tanh(_network(actor.perturbation, np.hstack([features, decoded])))
        box = np.clip(decoded + actor.limit * shift, -1, 1)
    elif isinstance(actor, DialActor):
        share = actor.position if position is None else position
        column = np.full((len(features), 1), share)
        found = np.tanh(_network(actor.search, np.hstack([features, column])))
        box = (1 - share) * np.tanh(_network(actor.behaviour, features)) + share * found
    else:
        box = np.tanh(_network(actor.network, features))
    bottom, top = np.array(facts.action_low), np.array(facts.action_high)
    actions = np.clip((bottom + top) / 2 + box * (top - bottom) / 2, bottom, top)
    return actions, None if policy.familiarity is None else _novelty(policy, frames, actions)


def _novelty(policy, frames, actions):
    (autoencoder, scales), errors = policy.familiarity
    seen = (autoencoder.encoder.weight.shape[0] - actions.shape[1]) // frames.shape[2]
    frame, action = (
        [np.asarray(v, np.float64) for v in (each.mean, each.deviation)] for each in scales
    )
    states = ((frames[:, :seen] - frame[0]) / frame[1]).reshape(len(frames), -1)
    pairs = np.hstack([states, (actions - action[0]) / action[1]])
    latents = _network((autoencoder.encoder, autoencoder.mean_head), pairs)
    error = np.mean((_network(autoencoder.decoder, latents) - pairs) ** 2, axis=1)
    errors = np.asarray(errors, np.float64)
    score = np.interp(error, [0, *errors], [0, *NOVELTY_QUANTILES])
    return score + np.maximum(error / errors[-1] - 1, 0)


def _network(layers, inputs):
    for i, (weight, bias) in enumerate(layers):
        inputs = inputs @ np.asarray(weight, np.float64) + np.asarray(bias, np.float64)
        inputs = np.maximum(inputs, 0) if i < len(layers) - 1 else inputs
    return inputs


def wild_windows(policy, count, seed=0):
    """Histories of all sorts: like the data, far from them, at the limits of float32, holes."""
    rng = np.random.default_rng(seed)
    scale = policy.actor.scale
    shape = (count, *policy.facts.window_shape)
    spread = 10.0 ** rng.uniform(-2, 3, (count, 1, 1))
    windows = scale.mean + scale.deviation * spread * rng.normal(size=shape)
    holes = rng.uniform(size=shape) < rng.choice([0.0, 0.1, 0.5, 1.0], (count, 1, 1))
    wild = rng.choice([np.nan, np.inf, -np.inf, 1e30, -1e30, 3.4e38, 1e-40, 0.0, -0.0], shape)
    is_wild = rng.uniform(size=(count, 1, 1)) < 0.3
    return np.where(holes & is_wild, wild, windows).astype(np.float32)


def forge(folder, target, change=lambda manifest: None, tensors=None):
    """A copy whose manifest was changed and sealed again, as only a forger would."""
    target.mkdir()
    for each in folder.iterdir():
        if each.name != MANIFEST:
            (target / each.name).write_bytes(each.read_bytes())
    for name, alter in (tensors or {}).items():
        found = load((target / name).read_bytes())
        alter(found)
        (target / name).write_bytes(save(found))
    content = json.loads((folder / MANIFEST).read_text())
    content.pop("manifest_sha256")
    change(content)
    name, version = content.pop("format"), content.pop("schema_version")
    write_manifest(target, name, version, content)
    return target


def set_tensor(name, index, value):
    """What changes one number of a file's tensors."""

    def alter(tensors):
        tensors[name] = tensors[name].copy()
        tensors[name][index] = value

    return alter
