"""Policies as files: one exact form, and everything else is refused by name."""

from __future__ import annotations

import dataclasses
import io
import json
import stat
import struct
import zipfile

import jax
import numpy as np
import pytest
from safetensors.numpy import load, save

from moose.errors import DataError, StorageError
from moose.policies import artifact
from moose.policies.artifact import bundle, read_artifact, unbundle, write_bundle
from moose.policies.plain import load_policy
from moose.policies.policy import save_policy
from moose.storage import MANIFEST, TENSORS, write_manifest
from policies import ORIGIN, make_toy_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("artifact") / "policy"
    save_policy(make_toy_policy(), path)
    return path


@pytest.fixture
def file(folder, tmp_path):
    write_bundle(folder, tmp_path / "policy.moose")
    return tmp_path / "policy.moose"


def rezip(file, change):
    """Write the members of a bundle with the standard library, after a change to them."""
    members = list(unbundle(file).items())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in change(members):
            archive.writestr(name, data)
    file.write_bytes(buffer.getvalue())


def reseal(folder, target, change=lambda manifest: None, tensors=None):
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


def test_a_file_says_all_that_the_folder_does(folder, file):
    assert read_artifact(file).manifest == read_artifact(folder).manifest
    members = unbundle(file)
    assert {name: (folder / name).read_bytes() for name in members} == members
    with zipfile.ZipFile(file) as archive:  # anybody can look inside
        assert archive.testzip() is None
        assert archive.namelist() == list(artifact.MEMBERS)
        assert archive.getinfo(TENSORS).date_time[0] == 1980
    assert file.read_bytes() == bundle(members)


def test_the_manifest_tells_what_an_auditor_asks(folder):
    manifest = json.loads((folder / MANIFEST).read_text())
    task = manifest["task"]
    assert [column["name"] for column in task["observations"]] == ["x", "y", "lever"]
    assert task["actions"][1] == {"name": "pull", "unit": None, "low": 0.5, "high": 1.5}
    assert (task["history"], task["discount"]) == (2, 0.9)
    assert set(manifest["scaling"]["lever"]) == {"mean", "deviation", "minimum", "maximum"}
    assert manifest["origin"] == ORIGIN
    assert manifest["is_stochastic"] is False
    assert set(manifest["files"]) == {*artifact.MEMBERS} - {MANIFEST}
    assert manifest["saved_by"].startswith("moose ")


def test_units_and_rates_travel(tmp_path):
    policy = make_toy_policy()
    facts = dataclasses.replace(
        policy.facts,
        observation_units=("m", "m/s", "%"),
        action_units=("N", "N"),
        action_rates=(0.5, 0.25),
        hold_action=(0.0, 1.0),
    )
    save_policy(dataclasses.replace(policy, facts=facts), tmp_path / "policy")
    assert load_policy(tmp_path / "policy").facts == facts


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


def test_every_truncation_and_addition_is_noticed(file):
    whole = file.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        file.write_bytes(whole[:length])
        with pytest.raises((StorageError, DataError)):
            load_policy(file)
    for more in (b"\0", b"PK\x05\x06" + bytes(18), whole):
        file.write_bytes(whole + more)
        with pytest.raises(StorageError):
            load_policy(file)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda m: [*m, ("../../evil.py", b"import os")], r"'../../evil.py' does not belong"),
        (lambda m: [*m, ("/etc/passwd", b"")], "'/etc/passwd' does not belong"),
        (lambda m: [*m, ("code.py", b"")], "'code.py' does not belong"),
        (lambda m: [*m, ("a/manifest.json", b"")], "does not belong"),
        (lambda m: m[1:], "'manifest.json' is missing"),
        (lambda m: [x for x in m if x[0] != TENSORS], "'tensors.safetensors' is missing"),
        (lambda m: list(reversed(m)), "not in the form"),
        (lambda m: m, "not in the form"),
    ],
)
def test_other_archives_are_refused(file, change, complaint):
    rezip(file, change)
    with pytest.raises(StorageError, match=complaint):
        load_policy(file)


def test_twice_the_same_name_a_link_and_compression_are_refused(file):
    members = unbundle(file)

    def archive(make):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as target:
            for name, data in members.items():
                target.writestr(*make(name, data))
        file.write_bytes(buffer.getvalue())

    with pytest.warns(UserWarning, match="Duplicate name"):
        rezip(file, lambda m: [*m, m[0]])
    with pytest.raises(StorageError, match=r"'manifest.json' is there twice"):
        load_policy(file)

    def linked(name, data):
        info = zipfile.ZipInfo(name)
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        return info, b"/etc/passwd" if name == TENSORS else data

    archive(linked)
    with pytest.raises(StorageError, match="not a plain file"):
        load_policy(file)
    archive(lambda name, data: (name, data, zipfile.ZIP_DEFLATED))
    with pytest.raises(StorageError, match="compressed"):
        load_policy(file)


def test_absurd_sizes_are_refused_before_they_are_read(file, tmp_path, monkeypatch):
    data = bytearray(file.read_bytes())
    place = data.index(b"PK\x01\x02") + 20
    data[place : place + 8] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    file.write_bytes(data)
    with pytest.raises(StorageError, match="larger than any policy: 4,294,967,280"):
        load_policy(file)
    huge = tmp_path / "huge.moose"
    with open(huge, "wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(StorageError, match="larger than any policy"):
        load_policy(huge)


def test_a_folder_has_only_what_belongs_there(folder, tmp_path):
    copy = reseal(folder, tmp_path / "copy")
    load_policy(copy)
    (copy / "notes.txt").write_text("hello")
    with pytest.raises(StorageError, match=r"'notes.txt' does not belong"):
        load_policy(copy)
    (copy / "notes.txt").unlink()
    (copy / "support.safetensors").unlink()
    with pytest.raises(StorageError, match=r"'support.safetensors' is named .* and missing"):
        load_policy(copy)
    (copy / "support.safetensors").symlink_to(folder / "support.safetensors")
    with pytest.raises(StorageError, match="does not belong"):
        load_policy(copy)


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
        (lambda m: m.update(kind="decoded"), "do not fit the task"),
        (lambda m: m.update(schema_version=4), "schema version 4"),
        (lambda m: m.update(format="moose-dataset"), "not a policy"),
        (lambda m: m["support"].update(encoder=[8, 6]), "support model"),
        (lambda m: m["support"].update(quantiles=[0.5, 0.2, 1.0]), "support model"),
        (lambda m: m.update(support=None), "support model"),
        (lambda m: m["networks"].update(network=[6, 10**15, 2]), "the manifest says"),
    ],
)
def test_a_forged_manifest_is_refused(folder, tmp_path, change, complaint):
    forged = reseal(folder, tmp_path / "forged", change)
    with pytest.raises((StorageError, DataError), match=complaint):
        load_policy(forged)


def _set(name, index, value):
    def alter(tensors):
        tensors[name] = tensors[name].copy()
        tensors[name][index] = value

    return alter


@pytest.mark.parametrize(
    ("file", "alter", "complaint"),
    [
        (TENSORS, _set("network/0/weight", (0, 0), np.nan), "not finite"),
        (TENSORS, _set("network/1/bias", 0, 0.7), "stored examples"),
        (TENSORS, _set("scale/deviation", 0, 0.0), "scaling|above 0"),
        (TENSORS, lambda t: t.update(more=np.zeros(1, np.float32)), "'more' is not expected"),
        (TENSORS, lambda t: t.pop("network/0/bias"), "'network/0/bias' is missing"),
        (TENSORS, lambda t: t.update({"network/0/bias": np.zeros(5)}), "float64"),
        (artifact.SUPPORT, _set("errors", -1, 100.0), "stored examples"),
        (artifact.SUPPORT, _set("support/scales/action/deviation", 0, -1.0), "above 0"),
        (artifact.SUPPORT, lambda t: t.pop("errors"), "'errors' is missing"),
        (artifact.EXAMPLES, _set("actions", (0, 0), 0.123), "stored examples"),
        (artifact.EXAMPLES, lambda t: t.clear(), "is missing"),
    ],
)
def test_forged_tensors_are_refused(folder, tmp_path, file, alter, complaint):
    forged = reseal(folder, tmp_path / "forged", tensors={file: alter})
    with pytest.raises(StorageError, match=complaint):
        load_policy(forged)


def test_writing_a_file_checks_first_and_leaves_no_half(folder, tmp_path):
    forged = reseal(folder, tmp_path / "forged", lambda m: m.update(kind=3))
    write_bundle(folder, tmp_path / "policy.moose")
    before = (tmp_path / "policy.moose").read_bytes()
    (forged / TENSORS).write_bytes(b"")
    with pytest.raises(StorageError):
        write_bundle(forged, tmp_path / "policy.moose")
    assert (tmp_path / "policy.moose").read_bytes() == before
    write_bundle(tmp_path / "policy.moose", tmp_path / "again.moose")
    assert (tmp_path / "again.moose").read_bytes() == before


def test_bounds_are_rounded_inwards():
    facts = dataclasses.replace(
        make_toy_policy().facts, action_low=(-0.1, 0.1), action_high=(0.7, 0.3)
    )
    box = artifact.box_of(facts)
    assert (box.low.astype(float) >= facts.action_low).all()
    assert (box.high.astype(float) <= facts.action_high).all()
    assert np.allclose(box.low, facts.action_low)
    assert np.allclose(box.high, facts.action_high)


def test_a_constant_signal_is_clamped_too():
    scale = jax.tree.map(np.float32, {"minimum": [5.0], "maximum": [5.0], "deviation": [1.0]})
    clamp = artifact.clamp_of({f"scale/{k}": np.array(v) for k, v in scale.items()})
    assert (clamp.fill[0], clamp.low[0], clamp.high[0]) == (5.0, 2.0, 8.0)


def test_a_run_is_told_from_a_policy(tmp_path):
    save_policy(make_toy_policy(), tmp_path / "run" / "policy")
    (tmp_path / "run" / "manifest.json").write_text("{}")
    (tmp_path / "run" / "metrics.jsonl").touch()
    with pytest.raises(DataError, match="folder of a run") as error:
        read_artifact(tmp_path / "run")
    assert str(tmp_path / "run" / "policy") in error.value.advice
