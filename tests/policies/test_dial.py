"""The dial: between behaviour and search, the same in JAX and NumPy, and hard to forge."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import numpy as np
import pytest

from moose.errors import ConfigError, DataError, StorageError
from moose.models import actor as actors
from moose.models.actor import Actor
from moose.policies import plain, policy
from moose.policies.bundle import EXAMPLES
from moose.policies.examples import POSITIONS
from moose.policies.parts import CHOOSE, NUMBERS
from moose.policies.plain import load_policy
from moose.policies.policy import save_policy
from moose.storage import MANIFEST
from policies import ORIGIN, float64_reference, forge, make_toy_policy, set_tensor, wild_windows


@pytest.fixture(scope="module")
def toy():
    return make_toy_policy("dial")


@pytest.fixture(scope="module")
def folder(toy, tmp_path_factory):
    path = tmp_path_factory.mktemp("dial") / "policy"
    save_policy(toy, path)
    return path


@pytest.fixture
def controller(folder):
    return load_policy(folder)


@pytest.mark.parametrize("position", [0, 0.1, 0.5, 0.99, 1])
def test_any_position_agrees_with_float64(toy, controller, position):
    windows = wild_windows(toy, 300)
    expected, novelty = float64_reference(toy, windows, position)
    turned = controller.at(position)
    actions = turned(windows)
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(turned.novelty(windows, actions), novelty, rtol=1e-4, atol=1e-4)
    for window, action in zip(windows[:20], expected[:20], strict=True):
        np.testing.assert_allclose(toy.at(position).act(window), action, rtol=0, atol=1e-5)


def test_the_positions_differ(toy, controller):
    windows = wild_windows(toy, 50)
    answers = [controller.at(position)(windows) for position in POSITIONS]
    for i, answer in enumerate(answers):
        assert not any(np.allclose(answer, other, atol=1e-3) for other in answers[:i])
    np.testing.assert_array_equal(controller.at(0.5)(windows), controller(windows))


def test_position_0_is_the_behaviour_bit_for_bit(toy, controller, tmp_path):
    alone = dataclasses.replace(toy, actor=Actor(toy.actor.behaviour, toy.actor.scale))
    save_policy(alone, tmp_path / "alone")
    save_policy(toy.at(0), tmp_path / "dial")
    windows = wild_windows(toy, 500)
    expected = load_policy(tmp_path / "alone")(windows)
    np.testing.assert_array_equal(controller.at(0)(windows), expected)
    np.testing.assert_array_equal(load_policy(tmp_path / "dial")(windows), expected)
    for window in windows[:20]:
        np.testing.assert_array_equal(toy.at(0).act(window), alone.act(window))


def test_at_position_0_nobody_asks_the_search(toy, controller):
    """So that it may answer anything."""
    windows = wild_windows(toy, 20)
    nothing = jax.tree.map(lambda leaf: np.nan * leaf, toy.actor.search)
    lost = dataclasses.replace(toy, actor=dataclasses.replace(toy.actor, search=nothing))
    parts = controller.parts
    networks = {
        **parts.networks,
        "search": tuple(tuple(map(np.asarray, layer)) for layer in nothing),
    }
    deaf = plain.Controller(dataclasses.replace(parts, networks=networks), controller.manifest)
    np.testing.assert_array_equal(deaf.at(0)(windows), controller.at(0)(windows))
    for window in windows:
        np.testing.assert_array_equal(lost.at(0).act(window), toy.at(0).act(window))
    middle = np.broadcast_to(parts.box.middle, (20, 2))
    np.testing.assert_array_equal(deaf.at(0.1)(windows), middle)


def test_turning(toy, folder, controller):
    assert (controller.position, toy.position) == (0.5, 0.5)
    frames = wild_windows(toy, 4)[:, 0]
    for frame in frames:
        controller.act(frame)
    turned = controller.at(np.float32(0.75))
    assert (turned.position, controller.position) == (0.75, 0.5)
    np.testing.assert_array_equal(turned.window, controller.window)
    turned.act(frames[0])
    np.testing.assert_array_equal(controller.window, frames[[3, 2]])  # each has its own from here
    assert turned.manifest["numbers"] == {"position": 0.75}
    assert controller.manifest["numbers"] == {"position": 0.5}
    for found in (turned.manifest["origin"], toy.at(0.75).origin):
        assert found == ORIGIN | {"turned_from": 0.5}
    for found in (turned.at(1).manifest["origin"], toy.at(0.75).at(1).origin):
        assert found == ORIGIN | {"turned_from": 0.5}  # where the algorithm had left it
    for found in (turned.at(0.5).manifest["origin"], toy.at(0.75).at(0.5).origin):
        assert found == ORIGIN
    assert math.copysign(1, controller.at(-0.0).position) == 1


@pytest.mark.parametrize(
    "position", [-0.01, 1.01, 2, float("nan"), float("inf"), "0.5", None, True, [0.5], 10**400]
)
def test_there_is_no_other_position(toy, controller, position):
    for each in (toy, controller):
        with pytest.raises(ConfigError, match="has no position") as error:
            each.at(position)
        assert "from 0" in error.value.advice


@pytest.mark.parametrize("kind", ["network", "decoded", "sampled"])
def test_others_have_no_dial(tmp_path, kind):
    found = [make_toy_policy(kind)]
    if kind != "sampled":
        save_policy(found[0], tmp_path / "policy")
        found.append(load_policy(tmp_path / "policy"))
    for each in found:
        assert each.position is None
        with pytest.raises(ConfigError, match=f"no dial: it is of the kind '{kind}'"):
            each.at(0.5)


def test_it_is_saved_where_it_stands(toy, tmp_path):
    save_policy(toy.at(0.9), tmp_path / "policy")
    windows = wild_windows(toy, 50)
    for load in (policy.load_policy, load_policy):
        loaded = load(tmp_path / "policy")
        assert loaded.position == 0.9
    np.testing.assert_array_equal(loaded(windows), loaded.at(0.9)(windows))
    manifest = json.loads((tmp_path / "policy" / MANIFEST).read_text())
    assert manifest["numbers"] == {"position": 0.9}
    assert manifest["origin"]["turned_from"] == 0.5


def test_both_sides_know_the_same_numbers():
    kinds = {name: kind for name, kind in actors.KINDS.items() if not kind.is_stochastic}
    assert kinds.keys() == NUMBERS.keys() == CHOOSE.keys()
    for name, kind in kinds.items():
        assert all(number.type is float for number in kind.numbers.values())
        ranges = {each: (number.low, number.high) for each, number in kind.numbers.items()}
        assert ranges == NUMBERS[name]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda m: m.update(numbers={"position": 2.0}), "position from 0 to 1"),
        (lambda m: m.update(numbers={"position": -0.1}), "position from 0 to 1"),
        (lambda m: m.update(numbers={"position": "0.5"}), "position from 0 to 1"),
        (lambda m: m.update(numbers={"position": None}), "position from 0 to 1"),
        (lambda m: m.update(numbers={"position": True}), "position from 0 to 1"),
        (lambda m: m.update(numbers={"position": 1}), "position from 0 to 1"),
        (lambda m: m.update(numbers={"position": [0.5]}), "position from 0 to 1"),
        (lambda m: m.update(numbers={"position": 0.5, "limit": 0.5}), "position from 0 to 1"),
        (lambda m: m.update(numbers={}), "position from 0 to 1"),
        (lambda m: m.update(numbers=[0.5]), "position from 0 to 1"),
        (lambda m: m.update(numbers=None), "position from 0 to 1"),
        (lambda m: m.pop("numbers"), "position from 0 to 1"),
        (lambda m: m.update(numbers={"position": 0.6}), "stored examples"),
        (lambda m: m.update(kind="network"), "do not fit the task"),
        (lambda m: m.update(kind=["dial"]), "kind of policy that is not known"),
        (lambda m: m["networks"].pop("search"), "not expected"),
        (lambda m: m["networks"].update(search=m["networks"]["behaviour"]), "the manifest says"),
    ],
)
def test_a_forged_manifest_is_refused(folder, tmp_path, change, complaint):
    forged = forge(folder, tmp_path / "forged", change)
    with pytest.raises((StorageError, DataError), match=complaint):
        load_policy(forged)
    with pytest.raises((StorageError, DataError)):
        policy.load_policy(forged)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999"])
def test_a_position_that_is_no_number_of_json_is_refused(folder, tmp_path, text):
    forged = forge(folder, tmp_path / "forged")
    whole = (forged / MANIFEST).read_text()
    (forged / MANIFEST).write_text(whole.replace('"position": 0.5', f'"position": {text}'))
    for load in (policy.load_policy, load_policy):
        with pytest.raises(StorageError, match="not valid JSON"):
            load(forged)


@pytest.mark.parametrize(
    ("alter", "complaint"),
    [
        (set_tensor("turned", (0, 0, 0), 0.123), "stored examples"),
        (set_tensor("turned", (4, 5, 1), 0.777), "stored examples"),
        (set_tensor("actions", (0, 0), 0.123), "stored examples"),
        (set_tensor("positions", 0, -1.0), "from 0 to 1"),
        (set_tensor("positions", 4, 2.0), "from 0 to 1"),
        (set_tensor("positions", 4, np.nan), "not finite"),
        (set_tensor("positions", 2, 0.1), "from 0 to 1"),
        (lambda t: t.pop("positions"), "is missing"),
        (lambda t: t.pop("turned"), "is missing"),
        (
            lambda t: t.update(positions=t["positions"][:0], turned=t["turned"][:0]),
            "from 0 to 1",
        ),
        (
            lambda t: t.update(positions=t["positions"][:1], turned=t["turned"][:1]),
            "from 0 to 1",
        ),
        (lambda t: t.update(positions=t["positions"].reshape(5, 1)), "has the shape"),
    ],
)
def test_forged_examples_are_refused(folder, tmp_path, alter, complaint):
    forged = forge(folder, tmp_path / "forged", tensors={EXAMPLES: alter})
    with pytest.raises(StorageError, match=complaint):
        load_policy(forged)


def test_a_search_that_answers_otherwise_is_noticed_at_position_0(toy, tmp_path):
    """Since the examples have answers at other positions too."""
    save_policy(toy.at(0), tmp_path / "policy")
    alter = set_tensor("search/2/bias", 0, 0.7)
    forged = forge(tmp_path / "policy", tmp_path / "forged", tensors={"tensors.safetensors": alter})
    with pytest.raises(StorageError, match="stored examples"):
        load_policy(forged)
