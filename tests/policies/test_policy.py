"""A policy as a folder: what is saved comes back, and what is damaged or forged is refused."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.checkpoint import save_tree
from moose.data.normalize import measure
from moose.errors import ConfigError, DataError, StorageError
from moose.models.actor import (
    KINDS,
    DecodedActor,
    SampledActor,
    SampledDecodedActor,
    act,
    choose_action,
    init_actor,
    kind_of,
)
from moose.models.networks import init_network
from moose.policies.policy import Policy, load_policy, save_policy
from moose.tasks.industrial_benchmark import make_task
from policies import make_toy_policy
from toys import assert_same_bits

TASK = make_task()


@pytest.fixture(scope="module")
def policy():
    frames = np.random.default_rng(0).uniform(0, 100, (50, 6)).astype(np.float32)
    return Policy(TASK.name, init_actor(TASK, measure(frames), (7, 5), jax.random.key(1)))


def make_actor(name):
    """An actor of a kind, with networks of odd sizes."""
    scale = measure(np.random.default_rng(0).uniform(0, 100, (50, 6)).astype(np.float32))
    networks = {
        "network": (180, 7, 3 if name == "network" else 6),
        "critic": (183, 5, 1),
        "decoder": (186, 4, 4, 3),
        "perturbation": (183, 6, 3),
        "behaviour": (180, 5, 3),
        "search": (181, 8, 4, 3),
    }
    keys = jax.random.split(jax.random.key(1), len(networks))
    made = {n: init_network(k, sizes) for k, (n, sizes) in zip(keys, networks.items(), strict=True)}
    numbers = {"samples": 9, "limit": 0.05, "position": 0.3}
    kind = KINDS[name]
    return kind.actor(
        **{n: made[n] for n in kind.networks}, scale=scale, **{n: numbers[n] for n in kind.numbers}
    )


@pytest.fixture
def saved(tmp_path, policy):
    save_policy(policy, tmp_path / "policy")
    return tmp_path / "policy"


def test_a_policy_comes_back_bit_for_bit(saved, policy):
    loaded = load_policy(saved)
    assert loaded.task == TASK.name
    assert_same_bits(loaded.actor, policy.actor)
    assert_same_bits(load_policy(str(saved)).actor, policy.actor)


@pytest.mark.parametrize("name", KINDS)
def test_any_kind_comes_back_and_acts_as_before(tmp_path, name):
    policy = Policy(TASK.name, make_actor(name))
    save_policy(policy, tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert type(loaded.actor) is type(policy.actor)
    assert_same_bits(loaded.actor, jax.tree.map(jnp.asarray, policy.actor))
    window = np.random.default_rng(1).uniform(0, 100, (30, 6)).astype(np.float32)
    key = jax.random.key(3)
    found = loaded.act(window, key)
    np.testing.assert_array_equal(found, policy.act(window, key))
    np.testing.assert_array_equal(found, act(policy.actor, TASK, jnp.asarray(window), key))
    assert np.abs(found).max() <= 1


def test_who_draws_samples_needs_a_key_and_listens_to_it():
    window = np.random.default_rng(1).uniform(0, 100, (30, 6))
    for name in KINDS:
        policy = Policy(TASK.name, make_actor(name))
        actions = [policy.act(window, jax.random.key(i)) for i in range(3)]
        if policy.is_stochastic:
            with pytest.raises(ConfigError, match="random key"):
                policy.act(window)
        else:
            actions.append(policy.act(window))
        assert policy.is_stochastic == any(not np.array_equal(actions[0], a) for a in actions)
    stochastic = {SampledActor, SampledDecodedActor}
    assert {k.actor for k in KINDS.values() if k.is_stochastic} == stochastic
    assert not kind_of(make_actor("decoded")).is_stochastic
    assert isinstance(make_actor("decoded"), DecodedActor)


def test_a_policy_of_the_first_version_is_still_read(tmp_path, policy):
    content = {"task": TASK.name, "sizes": [180, 7, 5, 3], "signals": 6}
    kind = {"format_name": "moose-policy", "schema_version": 1}
    save_tree(tmp_path / "old", policy.actor, content=content, **kind)
    assert_same_bits(load_policy(tmp_path / "old").actor, policy.actor)


def test_it_acts_as_in_training(policy):
    window = np.random.default_rng(1).uniform(0, 100, (30, 6))
    action = policy.act(window)
    assert action.shape == (3,)
    assert action.dtype == np.float32
    expected = choose_action(policy.actor, TASK, jnp.asarray(window, jnp.float32))
    np.testing.assert_array_equal(action, expected)
    assert np.abs(action).max() <= 1
    np.testing.assert_array_equal(policy.act(window.tolist()), action)


@pytest.mark.parametrize("shape", [(6,), (29, 6), (30, 5), (2, 30, 6)])
def test_a_history_of_another_shape_is_refused(policy, shape):
    with pytest.raises(DataError, match=r"this task's is \(30, 6\)"):
        policy.act(np.zeros(shape))


def test_a_history_with_holes_gives_a_finite_action(policy):
    window = np.random.default_rng(1).uniform(0, 100, (30, 6)).astype(np.float32)
    whole = policy.act(window)
    holed = window.copy()
    holed[3, 2] = np.nan
    scale = policy.actor.scale
    holed_by_hand = window.copy()
    holed_by_hand[3, 2] = (scale.minimum[2] + scale.maximum[2]) / 2
    np.testing.assert_allclose(policy.act(holed), policy.act(holed_by_hand), atol=1e-6)
    assert not np.array_equal(policy.act(holed), whole)
    for wild in (np.nan, np.inf, -np.inf, 1e30, -1e30):
        action = policy.act(np.full((30, 6), wild))
        assert np.isfinite(action).all()
        assert np.abs(action).max() <= 1


def test_a_policy_of_an_unknown_task_loads_and_does_not_act(tmp_path, policy):
    content = {"task": "toaster", "sizes": [180, 7, 5, 3], "signals": 6}
    kind = {"format_name": "moose-policy", "schema_version": 1}
    save_tree(tmp_path / "policy", policy.actor, content=content, **kind)
    with pytest.raises(ConfigError, match="no task 'toaster'"):
        load_policy(tmp_path / "policy").act(np.zeros((30, 6)))


def test_a_policy_knows_a_task_that_the_program_does_not(tmp_path):
    policy = make_toy_policy()
    save_policy(policy, tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert loaded.facts == policy.facts
    assert loaded.origin == policy.origin
    assert_same_bits(loaded.familiarity, jax.tree.map(jnp.asarray, policy.familiarity))
    window = np.random.default_rng(1).normal(size=(2, 3))
    np.testing.assert_array_equal(loaded.act(window), policy.act(window))
    save_policy(loaded, tmp_path / "again")
    for file in sorted((tmp_path / "policy").iterdir()):
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_a_policy_is_not_overwritten_unasked(saved, policy):
    with pytest.raises(StorageError, match="exists already"):
        save_policy(policy, saved)
    save_policy(dataclasses.replace(policy, origin={"seed": 3}), saved, overwrite=True)
    assert load_policy(saved).origin == {"seed": 3}


@pytest.mark.parametrize("file", ["tensors.safetensors", "manifest.json"])
def test_a_changed_byte_is_noticed(saved, file):
    content = bytearray((saved / file).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / file).write_bytes(content)
    with pytest.raises((StorageError, DataError)):
        load_policy(saved)


def test_missing_things_are_told(saved, tmp_path):
    with pytest.raises(StorageError):
        load_policy(tmp_path / "nowhere")
    with pytest.raises(DataError, match="not a policy"):
        load_policy(tmp_path)
    (saved / "tensors.safetensors").unlink()
    with pytest.raises(StorageError, match="missing"):
        load_policy(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes": None},
        {"sizes": [180]},
        {"sizes": [180, 0, 3]},
        {"sizes": [180, "7", 3]},
        {"sizes": [True, True]},
        {"sizes": {"a": 1}},
        {"sizes": [180, 10**15, 3]},  # must not be made before it is believed
        {"sizes": [180, 3]},
        {"signals": 10**15},
        {"signals": -1},
        {"signals": 5},
        {"task": 3},
    ],
)
def test_a_manifest_that_lies_is_refused(tmp_path, policy, changes):
    content = {"task": TASK.name, "sizes": [180, 7, 5, 3], "signals": 6} | changes
    save_tree(
        tmp_path / "policy",
        policy.actor,
        format_name="moose-policy",
        schema_version=1,
        content=content,
    )
    with pytest.raises(StorageError):
        load_policy(tmp_path / "policy")


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "toaster"},
        {"kind": None},
        {"kind": ["sampled"]},
        {"kind": "network"},  # has other networks
        {"networks": {"network": [180, 7, 6]}},
        {"networks": {"network": [180, 7, 6], "critic": [183, 5, 1], "more": [1, 1]}},
        {"networks": {"network": [180, 7, 6], "critic": [183, 10**15, 1]}},
        {"networks": [[180, 7, 6]]},
        {"numbers": {}},
        {"numbers": None},
        {"numbers": {"samples": 0}},
        {"numbers": {"samples": 10**15}},  # would fill the memory when acting
        {"numbers": {"samples": 2.5}},
        {"numbers": {"samples": True}},
        {"numbers": {"samples": 9, "limit": 0.1}},
    ],
)
def test_a_manifest_of_the_second_version_that_lies_is_refused(tmp_path, changes):
    content = {
        "task": TASK.name,
        "kind": "sampled",
        "networks": {"network": [180, 7, 6], "critic": [183, 5, 1]},
        "numbers": {"samples": 9},
        "signals": 6,
    }
    kind = {"format_name": "moose-policy", "schema_version": 2}
    actor = make_actor("sampled")
    save_tree(tmp_path / "true", actor, content=content, **kind)
    load_policy(tmp_path / "true")
    save_tree(tmp_path / "false", actor, content=content | changes, **kind)
    with pytest.raises(StorageError):
        load_policy(tmp_path / "false")


def test_tensors_that_the_manifest_does_not_list_are_refused(tmp_path, policy):
    content = {"task": TASK.name, "sizes": [180, 7, 5, 3], "signals": 6}
    kind = {"format_name": "moose-policy", "schema_version": 1}
    save_tree(tmp_path / "policy", policy.actor._replace(scale=None), content=content, **kind)
    with pytest.raises(StorageError, match=r"fewer than its manifest says|missing"):
        load_policy(tmp_path / "policy")
    manifest = json.loads((tmp_path / "policy" / "manifest.json").read_text())
    assert set(manifest["files"]) == {"tensors.safetensors"}
