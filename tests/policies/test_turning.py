"""A policy as a file at another position: it loads, it is checked, and it tells where it was."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from safetensors.numpy import load

from moose.errors import ConfigError, StorageError
from moose.policies import policy as jax_side
from moose.policies import turning
from moose.policies.artifact import write_bundle
from moose.policies.bundle import EXAMPLES, SUPPORT, unbundle
from moose.policies.c_source import write_c
from moose.policies.export import export_policy
from moose.policies.onnx import write_onnx
from moose.policies.plain import load_policy
from moose.policies.policy import save_policy
from moose.policies.turning import write_turned
from moose.storage import MANIFEST, TENSORS
from policies import ORIGIN, float64_reference, forge, make_toy_policy, set_tensor, wild_windows


@pytest.fixture(scope="module")
def toy():
    return make_toy_policy("dial")


@pytest.fixture(scope="module")
def folder(toy, tmp_path_factory):
    path = tmp_path_factory.mktemp("turning") / "policy"
    save_policy(toy, path)
    return path


@pytest.mark.parametrize("position", [0, 0.7, 1])
def test_the_file_acts_at_its_position(toy, folder, tmp_path, position):
    file = tmp_path / "turned.moose"
    result = export_policy(folder, file, position=position)
    assert (result["position"], result["is_turnable"]) == (position, True)
    windows = wild_windows(toy, 50)
    controller = load_policy(file)
    assert controller.position == position
    expected, novelty = float64_reference(toy, windows, position)
    actions = controller(windows)
    np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(controller.novelty(windows, actions), novelty, rtol=1e-4, atol=1e-4)
    in_jax = jax_side.load_policy(file)
    assert in_jax.position == position
    np.testing.assert_allclose(in_jax.act(windows[0]), expected[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(  # and back
        controller.at(0.5)(windows), load_policy(folder)(windows), rtol=0, atol=0
    )


def test_what_changes_and_what_stays(folder, tmp_path):
    write_turned(folder, tmp_path / "turned.moose", 0.7)
    before = {name: (folder / name).read_bytes() for name in (TENSORS, SUPPORT, EXAMPLES)}
    after = unbundle(tmp_path / "turned.moose")
    for name in (TENSORS, SUPPORT):
        assert after[name] == before[name]
    old, new = load(before[EXAMPLES]), load(after[EXAMPLES])
    assert old.keys() == new.keys()
    for name in ("windows", "positions", "turned"):  # which JAX has answered
        np.testing.assert_array_equal(new[name], old[name])
    assert not np.allclose(new["actions"], old["actions"], atol=1e-3)
    assert not np.allclose(new["novelty"], old["novelty"], atol=1e-3)
    one = json.loads((folder / MANIFEST).read_text())
    other = json.loads(after[MANIFEST])
    assert {name for name in one if one[name] != other[name]} == {
        *("numbers", "origin", "files", "manifest_sha256")
    }
    assert other["numbers"] == {"position": 0.7}
    assert other["origin"] == ORIGIN | {"turned_from": 0.5}


def test_turning_is_repeatable_and_can_be_undone(folder, tmp_path):
    files = {name: tmp_path / f"{name}.moose" for name in ("first", "again", "there", "as_it_is")}
    write_turned(folder, files["first"], 0.7)
    write_turned(folder, files["there"], 0.2)
    write_turned(files["there"], files["again"], 0.7)  # by way of another position
    assert files["again"].read_bytes() == files["first"].read_bytes()
    write_turned(folder, files["as_it_is"], 0.5)
    write_bundle(folder, tmp_path / "bundle.moose")
    assert files["as_it_is"].read_bytes() == (tmp_path / "bundle.moose").read_bytes()
    write_turned(files["first"], files["first"], 0.5)
    with zipfile.ZipFile(files["first"]) as archive:
        assert json.loads(archive.read(MANIFEST))["origin"] == ORIGIN


def test_a_turned_file_is_still_checked_by_what_jax_answered(folder, tmp_path):
    """Someone who changes the search and answers the examples anew is caught by the others."""
    write_turned(folder, tmp_path / "turned.moose", 0.7)
    turned = tmp_path / "turned"
    turned.mkdir()
    for name, content in unbundle(tmp_path / "turned.moose").items():
        (turned / name).write_bytes(content)
    load_policy(turned)
    alter = {TENSORS: set_tensor("search/2/bias", 0, 0.7)}
    with pytest.raises(StorageError, match="stored examples"):
        load_policy(forge(turned, tmp_path / "one", tensors=alter))
    altered = forge(turned, tmp_path / "two", lambda m: m["numbers"].update(position=0.71))
    with pytest.raises(StorageError, match="stored examples"):
        load_policy(altered)


def test_nothing_is_written_that_was_damaged_or_could_not_be_read(folder, tmp_path, monkeypatch):
    file = tmp_path / "turned.moose"
    alter = {TENSORS: set_tensor("search/2/bias", 0, 0.7)}
    damaged = forge(folder, tmp_path / "damaged", tensors=alter)
    with pytest.raises(StorageError, match="stored examples"):
        write_turned(damaged, file, 0.7)
    monkeypatch.setattr(turning, "answered_again", lambda controller, examples: examples)
    with pytest.raises(StorageError, match="stored examples"):
        write_turned(folder, file, 0.7)
    assert list(tmp_path.iterdir()) == [damaged]


def test_it_needs_no_jax(folder, tmp_path):
    program = (
        "import sys; from pathlib import Path; from moose.policies.turning import write_turned;"
        "write_turned(Path(sys.argv[1]), Path(sys.argv[2]), 0.9); assert 'jax' not in sys.modules"
    )
    file = tmp_path / "turned.moose"
    subprocess.run([sys.executable, "-c", program, str(folder), str(file)], check=True)
    assert load_policy(file).position == 0.9


@pytest.mark.parametrize("form", ["moose", "onnx", "c"])
@pytest.mark.parametrize("kind", ["network", "decoded", "sampled"])
def test_a_policy_without_a_dial_cannot_be_turned(tmp_path, form, kind):
    save_policy(make_toy_policy(kind), tmp_path / "policy")
    for options in ({"position": 0.5}, {"is_turnable": True}):
        with pytest.raises(ConfigError, match=f"no dial: it is of the kind '{kind}'"):
            export_policy(tmp_path / "policy", tmp_path / "out", form, **options)
    assert not (tmp_path / "out").exists()
    if kind != "sampled":
        assert "position" not in export_policy(tmp_path / "policy", tmp_path / "out", form)


def test_the_writers_themselves_refuse_it_too(tmp_path):
    save_policy(make_toy_policy(), tmp_path / "policy")
    controller = load_policy(tmp_path / "policy")
    with pytest.raises(ConfigError, match="no dial"):
        write_onnx(controller, tmp_path / "out", is_turnable=True)
    with pytest.raises(ConfigError, match="no dial"):
        write_c(controller, {}, tmp_path / "out", is_turnable=True)
    with pytest.raises(ConfigError, match="no dial"):
        write_turned(tmp_path / "policy", tmp_path / "out", 0.5)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["moose", "onnx", "c"])
@pytest.mark.parametrize("position", [-0.1, 1.5, float("nan")])
def test_no_form_has_another_position(folder, tmp_path, form, position):
    with pytest.raises(ConfigError, match="has no position"):
        export_policy(folder, tmp_path / "out", form, position=position)
    assert not (tmp_path / "out").exists()


def test_a_file_can_always_be_turned(folder, tmp_path):
    with pytest.raises(ConfigError, match="can always be turned") as error:
        export_policy(folder, tmp_path / "out", is_turnable=True)
    assert ".at(position)" in error.value.advice
