"""Hostile files: nothing in them runs, nothing outside is touched, each is refused by name."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from moose.policies.artifact import write_bundle
from moose.policies.bundle import EXAMPLES, SUPPORT, unbundle
from moose.policies.policy import save_policy
from moose.storage import MANIFEST, TENSORS, write_manifest
from policies import make_toy_policy

DRIVER = Path(__file__).parent.parent / "toolbox" / "canary_driver.py"


def pickle_bytes(canary, protocol=2):
    """A pickle that touches a file when it is loaded."""
    command = f"touch {canary}".encode()
    if protocol == 0:
        return b"cos\nsystem\n(S'" + command + b"'\ntR."
    return b"\x80\x02cos\nsystem\nX" + struct.pack("<I", len(command)) + command + b"\x85R."


def npy_bytes(canary):
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header += b" " * (118 - len(header) - 1) + b"\n"
    size = struct.pack("<H", len(header))
    return b"\x93NUMPY\x01\x00" + size + header + pickle_bytes(canary)


def onnx_bytes():
    """A model whose weights are in a file outside of its folder."""
    tensor = onnx.numpy_helper.from_array(np.zeros(4, np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../secret.bin"
    graph = onnx.helper.make_graph([], "g", [], [], [tensor])
    return onnx.helper.make_model(graph).SerializeToString()


def archive(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name, data, *how in members:
            target.writestr(name, data, *how)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A sound policy, a secret beside it, hostile files, and where they would leave a trace."""
    root = tmp_path_factory.mktemp("canaries")
    canary = root / "canary"
    (root / "secret.bin").write_bytes(b"secret" * 10)
    sound = root / "sound"
    save_policy(make_toy_policy(), sound)
    write_bundle(sound, root / "sound.moose")
    members = unbundle(root / "sound.moose")
    hdf5 = b"\x89HDF\r\n\x1a\n" + bytes(500)
    hostile = {
        "pickle": (pickle_bytes(canary), "a pickle, which could run code"),
        "old-pickle": (pickle_bytes(canary, 0), "something else"),
        "npy-object": (npy_bytes(canary), "a NumPy array, which could run code"),
        "hdf5": (hdf5, "an HDF5 file"),
        "onnx-external": (onnx_bytes(), "perhaps an ONNX model"),
        "empty": (b"", "it is empty"),
        "torch": (archive([("archive/data.pkl", pickle_bytes(canary))]), "'archive/data.pkl' does"),
        "zip-slip": (
            archive([*members.items(), ("../../canary", b"x")]),
            "'../../canary' does not belong",
        ),
        "absolute": (archive([*members.items(), (str(canary), b"x")]), "does not belong"),
        "backslash": (archive([*members.items(), ("..\\canary", b"x")]), "does not belong"),
        "bomb": (
            archive([(MANIFEST, b"0" * 10_000_000, zipfile.ZIP_DEFLATED)]),
            "is compressed or encrypted",
        ),
        "pickle-inside": (
            archive([(MANIFEST, pickle_bytes(canary)), *list(members.items())[1:]]),
            "not in the form",
        ),
    }
    cases = {}
    for name, (data, complaint) in hostile.items():
        (root / f"{name}.moose").write_bytes(data)
        cases[root / f"{name}.moose"] = complaint
    # The same inside of a folder, whose manifest vouches for it: the forger knows SHA-256.
    content = json.loads((sound / MANIFEST).read_text())
    for each in ("manifest_sha256", "format", "schema_version", "files"):
        content.pop(each)
    inside = {
        "pickle": pickle_bytes(canary),
        "npy-object": npy_bytes(canary),
        "hdf5": hdf5,
        "onnx-external": onnx_bytes(),
        "huge-header": struct.pack("<Q", 1 << 62) + b"{}",
        "large-header": struct.pack("<Q", 50 << 20) + b" " * 1000,
        "no-header": b"\0" * 8,
        "half": members[TENSORS][:-3],
        "overlap": _safetensors({"a": [0, 4], "b": [0, 4]}, 4),
        "outside": _safetensors({"a": [0, 1 << 50]}, 4),
        "deep": struct.pack("<Q", 200_000) + b'{"a":' * 40_000,
    }
    for file in (TENSORS, SUPPORT, EXAMPLES):
        for name, data in inside.items():
            folder = root / f"{name}-in-{file.partition('.')[0]}"
            folder.mkdir()
            for member, other in members.items():
                if member != MANIFEST:
                    (folder / member).write_bytes(data if member == file else other)
            write_manifest(folder, "moose-policy", 3, content)
            cases[folder] = str(folder / file)
    for name, text, complaint in (
        ("deep-manifest", b"[" * 100_000, "not valid JSON"),
        ("manifest-nan", b'{"format": NaN}', "not valid JSON"),
        ("manifest-pickle", pickle_bytes(canary), "not valid JSON"),
        ("manifest-list", b"[]", "not a policy"),
    ):
        folder = root / name
        folder.mkdir()
        (folder / MANIFEST).write_bytes(text)
        (folder / TENSORS).write_bytes(members[TENSORS])
        cases[folder] = complaint
    linked = root / "linked"
    linked.mkdir()
    for member, data in members.items():
        (linked / member).write_bytes(data)
    (linked / SUPPORT).unlink()
    (linked / SUPPORT).symlink_to(root / "secret.bin")
    cases[linked] = "'support.safetensors' does not belong"
    return root, cases


def _safetensors(places, size):
    header = json.dumps(
        {n: {"dtype": "F32", "shape": [1], "data_offsets": place} for n, place in places.items()}
    ).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


def drive(*words):
    command = [sys.executable, str(DRIVER), *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_nothing_runs_and_each_is_refused_by_name(world):
    root, cases = world
    before = sorted(root.rglob("*"))
    outcomes = drive(root / "sound", root / "sound.moose", *cases)
    assert outcomes[0]["error"] is None, outcomes[0]["message"]
    assert len(outcomes) == len(cases) + 1
    for outcome in outcomes:
        assert outcome["events"] == [], outcome
    for outcome, (path, complaint) in zip(outcomes[1:], cases.items(), strict=True):
        assert outcome["error"] in {"StorageError", "DataError"}, outcome
        assert complaint in outcome["message"], outcome
        assert str(path) in outcome["message"], outcome
        assert "what to do" in outcome["message"]
    assert sorted(root.rglob("*")) == before  # no canary, and nothing else


def test_the_hook_would_notice(world):
    root, _ = world
    try:
        outcomes = drive("--control", root / "pickle.moose", root / "old-pickle.moose")
        assert all(any(e.startswith("os.system") for e in o["events"]) for o in outcomes)
        assert (root / "canary").exists()
    finally:
        (root / "canary").unlink(missing_ok=True)
