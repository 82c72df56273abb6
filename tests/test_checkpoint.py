"""Trees on disk: they come back as they were, or are refused by name."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moose.checkpoint import TENSORS, load_tree, read_tensors, save_tree, write_tensors
from moose.data.normalize import measure
from moose.errors import DataError, StorageError
from toys import assert_same_bits

FORMAT = {"format_name": "moose-test", "schema_version": 1}


class Layer(NamedTuple):
    weight: jax.Array
    bias: jax.Array


def make_tree():
    rng = np.random.default_rng(0)
    layer = Layer(
        jnp.asarray(rng.normal(size=(3, 2)), jnp.float32), jnp.arange(2, dtype=jnp.float32)
    )
    return {
        "layers": (layer, layer),
        "optimiser": optax.adam(1e-3).init(layer),
        "scale": measure(rng.normal(size=50)),
        "nothing": None,
        "flags": jnp.array([True, False]),
        "empty": jnp.zeros((0, 4)),
    }


def test_a_tree_comes_back_with_shapes_types_and_bits(tmp_path):
    tree = make_tree()
    save_tree(tmp_path / "tree", tree, **FORMAT, content={"step": 7})
    found, manifest = load_tree(tmp_path / "tree", jax.tree.map(jnp.zeros_like, tree), **FORMAT)
    assert_same_bits(found, tree)
    assert manifest["step"] == 7


def test_single_numbers_stay_single_numbers(tmp_path):
    # An optimiser's count or a reward's mean: as lists they would change compiled programs.
    tree = {"count": jnp.int32(3), "mean": np.float32(0.5), "list": jnp.ones(1)}
    write_tensors(tmp_path / "f", tree)
    found = read_tensors(tmp_path / "f", tree)
    assert {name: leaf.shape for name, leaf in found.items()} == {
        "count": (),
        "mean": (),
        "list": (1,),
    }


@pytest.mark.parametrize(
    "values", [[np.nan, np.inf, -np.inf], [-0.0, 1e-45, 3.4028235e38], [1.0, 2.0, 3.0]]
)
def test_unusual_numbers_keep_their_bits(tmp_path, values):
    tree = np.array(values, np.float32)
    write_tensors(tmp_path / "f", {"a": tree})
    assert np.asarray(read_tensors(tmp_path / "f", {"a": tree})["a"]).tobytes() == tree.tobytes()


def test_a_view_in_another_order_is_stored_by_its_meaning(tmp_path):
    tree = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.arange(8)[::2] * 1.0}
    tree["b"] = tree["b"].astype(np.float32)[::-1]
    write_tensors(tmp_path / "f", tree)
    assert_same_bits(read_tensors(tmp_path / "f", tree), tree)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {"flags": jnp.array([True])}, r"'flags' is bool\(2,\), expected bool\(1,\)"),
        (lambda t: t | {"flags": jnp.zeros(2)}, r"'flags' is bool\(2,\), expected float32\(2,\)"),
        (lambda t: t | {"extra": jnp.zeros(2)}, "'extra' is missing"),
        (lambda t: {n: v for n, v in t.items() if n != "flags"}, "'flags' is not expected"),
        (
            lambda t: t | {"layers": (t["layers"][0], Layer(jnp.zeros((2, 3)), jnp.zeros(2)))},
            r"'layers/1/weight' is float32\(3, 2\), expected float32\(2, 3\)",
        ),
        (lambda t: t | {"layers": t["layers"][:1]}, "'layers/1/bias' is not expected"),
        (
            lambda t: t | {"scale": measure(np.eye(3))},
            r"'scale/deviation' is float32\(\), expected float32\(3,\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path, change, message):
    tree = make_tree()
    save_tree(tmp_path / "tree", tree, **FORMAT)
    with pytest.raises(StorageError, match=message):
        load_tree(tmp_path / "tree", change(tree), **FORMAT)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path, share):
    tree = make_tree()
    save_tree(tmp_path / "tree", tree, **FORMAT)
    file = tmp_path / "tree" / TENSORS
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(StorageError, match=r"tensors\.safetensors"):
        load_tree(tmp_path / "tree", tree, **FORMAT)
    # Without the manifest's checksum too.
    with pytest.raises(StorageError, match="Cannot read the tensors"):
        read_tensors(file, tree)


def test_an_altered_file_is_refused(tmp_path):
    tree = make_tree()
    save_tree(tmp_path / "tree", tree, **FORMAT)
    file = tmp_path / "tree" / TENSORS
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(StorageError, match=r"tensors\.safetensors"):
        load_tree(tmp_path / "tree", tree, **FORMAT)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(StorageError, match="Cannot read the tensors"):
        read_tensors(tmp_path / "none", make_tree())


def test_another_format_is_refused(tmp_path):
    save_tree(tmp_path / "tree", make_tree(), **FORMAT)
    with pytest.raises(DataError, match="moose-other"):
        load_tree(tmp_path / "tree", make_tree(), format_name="moose-other", schema_version=1)


def test_a_folder_is_replaced_only_when_asked(tmp_path):
    tree = {"a": jnp.zeros(2)}
    save_tree(tmp_path / "tree", tree, **FORMAT)
    with pytest.raises(StorageError, match="exists"):
        save_tree(tmp_path / "tree", tree, **FORMAT)
    save_tree(tmp_path / "tree", {"a": jnp.ones(2)}, **FORMAT, overwrite=True)
    assert_same_bits(load_tree(tmp_path / "tree", tree, **FORMAT)[0], {"a": jnp.ones(2)})
