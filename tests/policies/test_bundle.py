"""The files of a policy: one exact form, and everything else is refused by name."""

from __future__ import annotations

import io
import shutil
import stat
import struct
import zipfile

import pytest

from moose.errors import DataError, StorageError
from moose.policies.artifact import read_artifact
from moose.policies.bundle import MEMBERS, bundle, unbundle
from moose.policies.plain import load_policy
from moose.policies.policy import save_policy
from moose.storage import TENSORS
from policies import make_toy_policy


def rezip(file, change):
    """Write the members of a bundle with the standard library, after a change to them."""
    members = list(unbundle(file).items())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in change(members):
            archive.writestr(name, data)
    file.write_bytes(buffer.getvalue())


def test_a_file_says_all_that_the_folder_does(folder, file):
    assert read_artifact(file).manifest == read_artifact(folder).manifest
    members = unbundle(file)
    assert {name: (folder / name).read_bytes() for name in members} == members
    with zipfile.ZipFile(file) as archive:  # anybody can look inside
        assert archive.testzip() is None
        assert archive.namelist() == list(MEMBERS)
        assert archive.getinfo(TENSORS).date_time[0] == 1980
    assert file.read_bytes() == bundle(members)


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
    copy = shutil.copytree(folder, tmp_path / "copy")
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


def test_a_run_is_told_from_a_policy(tmp_path):
    save_policy(make_toy_policy(), tmp_path / "run" / "policy")
    (tmp_path / "run" / "manifest.json").write_text("{}")
    (tmp_path / "run" / "metrics.jsonl").touch()
    with pytest.raises(DataError, match="folder of a run") as error:
        read_artifact(tmp_path / "run")
    assert str(tmp_path / "run" / "policy") in error.value.advice
