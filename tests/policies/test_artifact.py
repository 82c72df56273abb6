"""Policies as files: what is damaged, forged or of another kind is refused by name."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from moose.errors import DataError, StorageError
from moose.policies import artifact
from moose.policies.artifact import write_bundle
from moose.policies.bundle import EXAMPLES, MEMBERS, SUPPORT
from moose.policies.plain import load_policy
from moose.policies.policy import save_policy
from moose.storage import MANIFEST, TENSORS
from policies import ORIGIN, forge, make_toy_policy, set_tensor


def test_the_manifest_tells_what_an_auditor_asks(folder):
    manifest = json.loads((folder / MANIFEST).read_text())
    task = manifest["task"]
    assert [column["name"] for column in task["observations"]] == ["x", "y", "lever"]
    assert task["actions"][1] == {"name": "pull", "unit": None, "low": 0.5, "high": 1.5}
    assert (task["history"], task["discount"]) == (2, 0.9)
    assert set(manifest["scaling"]["lever"]) == {"mean", "deviation", "minimum", "maximum"}
    assert manifest["origin"] == ORIGIN
    assert manifest["is_stochastic"] is False
    assert set(manifest["files"]) == {*MEMBERS} - {MANIFEST}
    assert manifest["saved_by"].startswith("moose ")


def test_every_flipped_byte_is_noticed(tmp_path):
    """Of a file and, one after the other, of every file of a folder."""
    policy = make_toy_policy(hidden=(1,), history=1, has_support=False)
    save_policy(policy, tmp_path / "policy")
    write_bundle(tmp_path / "policy", tmp_path / "policy.moose")
    targets = [tmp_path / "policy.moose", *sorted((tmp_path / "policy").iterdir())]
    count = 0
    for target in targets:
        path = target if target.suffix == ".moose" else target.parent
        whole = target.read_bytes()
        load_policy(path)
        for i in range(len(whole)):
            damaged = bytearray(whole)
            damaged[i] ^= 1 << (i % 8)
            target.write_bytes(damaged)
            with pytest.raises((StorageError, DataError)):
                load_policy(path)
            count += 1
        target.write_bytes(whole)
    assert count > 5000


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda m: m["task"].pop("history"), "does not describe a policy"),
        (lambda m: m["task"].update(history=0), "does not describe a policy"),
        (lambda m: m["task"].update(history=3), "do not fit the task"),
        (lambda m: m["task"].update(widening=1e9), "does not describe a policy"),
        (lambda m: m["task"].update(surprise=1), "does not describe a policy"),
        (lambda m: m["task"]["actions"][0].update(low=5.0), "does not describe a policy"),
        (lambda m: m["task"]["actions"].pop(), "do not fit the task"),
        (lambda m: m["task"]["observations"][0].update(name="y"), "does not describe a policy"),
        (lambda m: m["task"]["observations"].pop(), "does not describe a policy"),
        (lambda m: m["task"].update(action_rates=[1.0]), "does not describe a policy"),
        (lambda m: m["task"].update(action_rates=[1.0, -1.0]), "does not describe a policy"),
        (lambda m: m["task"]["actions"][0].update(high=3.0), "stored examples"),
        (lambda m: m["scaling"]["x"].update(mean=9.0), "scaling in the manifest"),
        (lambda m: m.update(task="toy"), "does not describe a policy"),
        (lambda m: m.update(kind="toaster"), "kind of policy that is not known"),
        (lambda m: m.update(kind=["network"]), "kind of policy that is not known"),
        (lambda m: m.update(kind="decoded"), "do not fit the task"),
        (lambda m: m.update(numbers={"limit": 0.1}), "fixed numbers"),
        (lambda m: m.update(numbers=[]), "fixed numbers"),
        (lambda m: m.update(schema_version=4), "schema version 4"),
        (lambda m: m.update(format="moose-dataset"), "not a policy"),
        (lambda m: m["support"].update(encoder=[8, 6]), "support model"),
        (lambda m: m["support"].update(quantiles=[0.5, 0.2, 1.0]), "support model"),
        (lambda m: m.update(support=None), "support model"),
        (lambda m: m["networks"].update(network=[6, 10**15, 2]), "the manifest says"),
    ],
)
def test_a_forged_manifest_is_refused(folder, tmp_path, change, complaint):
    forged = forge(folder, tmp_path / "forged", change)
    with pytest.raises((StorageError, DataError), match=complaint):
        load_policy(forged)


@pytest.mark.parametrize(
    ("file", "alter", "complaint"),
    [
        (TENSORS, set_tensor("network/0/weight", (0, 0), np.nan), "not finite"),
        (TENSORS, set_tensor("network/1/bias", 0, 0.7), "stored examples"),
        (TENSORS, set_tensor("scale/deviation", 0, 0.0), "scaling|above 0"),
        (TENSORS, lambda t: t.update(more=np.zeros(1, np.float32)), "'more' is not expected"),
        (TENSORS, lambda t: t.pop("network/0/bias"), "'network/0/bias' is missing"),
        (TENSORS, lambda t: t.update({"network/0/bias": np.zeros(5)}), "float64"),
        (SUPPORT, set_tensor("errors", -1, 100.0), "stored examples"),
        (SUPPORT, set_tensor("support/scales/action/deviation", 0, -1.0), "above 0"),
        (SUPPORT, lambda t: t.pop("errors"), "'errors' is missing"),
        (EXAMPLES, set_tensor("actions", (0, 0), 0.123), "stored examples"),
        (EXAMPLES, lambda t: t.clear(), "is missing"),
    ],
)
def test_forged_tensors_are_refused(folder, tmp_path, file, alter, complaint):
    forged = forge(folder, tmp_path / "forged", tensors={file: alter})
    with pytest.raises(StorageError, match=complaint):
        load_policy(forged)


def test_writing_a_file_checks_first_and_leaves_no_half(folder, tmp_path):
    forged = forge(folder, tmp_path / "forged", lambda m: m.update(kind=3))
    write_bundle(folder, tmp_path / "policy.moose")
    before = (tmp_path / "policy.moose").read_bytes()
    (forged / TENSORS).write_bytes(b"")
    with pytest.raises(StorageError):
        write_bundle(forged, tmp_path / "policy.moose")
    assert (tmp_path / "policy.moose").read_bytes() == before
    write_bundle(tmp_path / "policy.moose", tmp_path / "again.moose")
    assert (tmp_path / "again.moose").read_bytes() == before


def test_a_constant_signal_is_clamped_too():
    scale = jax.tree.map(np.float32, {"minimum": [5.0], "maximum": [5.0], "deviation": [1.0]})
    clamp = artifact.clamp_of({f"scale/{k}": np.array(v) for k, v in scale.items()})
    assert (clamp.fill[0], clamp.low[0], clamp.high[0]) == (5.0, 2.0, 8.0)
