"""Whole or absent: real failures, not simulated ones, wherever a machine lets us."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moose import storage
from moose.errors import DataError, StorageError, UserError
from moose.storage import (
    MANIFEST,
    atomic_file,
    atomic_folder,
    checksums,
    read_json,
    read_manifest,
    remove_stale_temporaries,
    sha256_of,
    verify_checksums,
    write_json,
    write_manifest,
)

SOURCES = Path(storage.__file__).parents[1]


def make(path: Path, text: str, *, overwrite: bool = False) -> None:
    with atomic_folder(path, replaces="moose-thing" if overwrite else None) as folder:
        (folder / "a.txt").write_text(text)
        (folder / "deeper").mkdir()
        (folder / "deeper" / "b.txt").write_text(text)
        write_manifest(folder, "moose-thing", 1, {"text": text})


def text_in(path: Path) -> str:
    assert read_manifest(path, "moose-thing", 1)["text"] == (path / "a.txt").read_text()
    return (path / "a.txt").read_text()


def write_half_and_raise(file: Path, interruption: type[BaseException]) -> None:
    file.write_text("half")
    raise interruption


def in_another_process(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# Whole or absent.


def test_a_folder_appears_with_all_its_files(tmp_path: Path) -> None:
    make(tmp_path / "new" / "thing", "one")
    assert text_in(tmp_path / "new" / "thing") == "one"
    assert os.listdir(tmp_path / "new") == ["thing"]


def test_an_existing_folder_is_kept_unless_overwriting(tmp_path: Path) -> None:
    make(tmp_path / "thing", "one")
    with pytest.raises(StorageError, match="exists already") as caught:
        make(tmp_path / "thing", "two")
    assert str(tmp_path / "thing") in str(caught.value)
    assert text_in(tmp_path / "thing") == "one"
    make(tmp_path / "thing", "two", overwrite=True)
    assert text_in(tmp_path / "thing") == "two"
    assert os.listdir(tmp_path) == ["thing"]


def test_a_folder_made_meanwhile_by_another_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="exists already"), atomic_folder(tmp_path / "thing"):
        make(tmp_path / "thing", "quick")
    assert text_in(tmp_path / "thing") == "quick"
    assert os.listdir(tmp_path) == ["thing"]


def test_overwriting_never_deletes_what_is_not_ours(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "diary.txt").write_text("dear")
    with pytest.raises(StorageError, match="holds something else, not a thing"):
        make(home, "one", overwrite=True)
    # Other programs call their files manifest.json as well.
    for text in ('{"name": "an extension"}', '{"format": "webapp"}', "[]", "{half"):
        (home / storage.MANIFEST).write_text(text)
        with pytest.raises(StorageError, match="holds something else, not a thing"):
            make(home, "one", overwrite=True)
    (home / storage.MANIFEST).unlink()
    (tmp_path / "file").write_text("dear")
    with pytest.raises(StorageError, match="There is a file"):
        make(tmp_path / "file", "one", overwrite=True)
    assert (home / "diary.txt").read_text() == (tmp_path / "file").read_text() == "dear"
    assert sorted(os.listdir(tmp_path)) == ["file", "home"]


def test_overwriting_never_deletes_another_thing_of_ours(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "run") as folder:
        write_manifest(folder, "moose-run", 1, {})
    with pytest.raises(StorageError, match="holds a run, not a thing"):
        make(tmp_path / "run", "one", overwrite=True)
    assert read_manifest(tmp_path / "run", "moose-run", 1)


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_empty_folder_may_be_filled(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thing").mkdir()
    make(tmp_path / "thing", "one", overwrite=overwrite)
    assert text_in(tmp_path / "thing") == "one"


def test_links_and_relative_paths_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "thing", "one")
    (tmp_path / "link").symlink_to("thing")
    make(tmp_path / "link", "two", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    monkeypatch.chdir(tmp_path / "thing")
    assert text_in(Path()) == "two"
    make(Path(), "three", overwrite=True)
    assert text_in(tmp_path / "thing") == "three"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_an_interruption_leaves_the_old_version_and_nothing_else(
    tmp_path: Path, interruption: type[BaseException]
) -> None:
    make(tmp_path / "thing", "one")
    for path in (tmp_path / "thing", tmp_path / "other"):
        with pytest.raises(interruption), atomic_folder(path, replaces="moose-thing") as folder:
            write_half_and_raise(folder / "a.txt", interruption)
    assert os.listdir(tmp_path) == ["thing"]
    assert text_in(tmp_path / "thing") == "one"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "new" / "file") as name:
        name.write_text("one")
    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "new" / "file") as name:
        write_half_and_raise(name, KeyboardInterrupt)
    assert (tmp_path / "new" / "file").read_text() == "one"
    assert os.listdir(tmp_path / "new") == ["file"]


def test_readers_never_miss_a_folder_that_is_being_replaced(tmp_path: Path) -> None:
    if not storage._exchange(
        _folder(tmp_path / "first"), _folder(tmp_path / "second")
    ):  # pragma: no cover
        pytest.skip("this file system cannot exchange names")
    make(tmp_path / "thing", "one")
    is_done = threading.Event()
    missed: list[bool] = []

    def read() -> None:
        while not is_done.is_set():
            missed.append(not (tmp_path / "thing").is_dir())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        make(tmp_path / "thing", "two", overwrite=True)
    is_done.set()
    reader.join()
    assert missed
    assert not any(missed)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


# Where names cannot be exchanged in one step.


def test_replacing_in_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_exchange", lambda first, second: False)
    make(tmp_path / "thing", "one")
    make(tmp_path / "thing", "two", overwrite=True)
    assert text_in(tmp_path / "thing") == "two"
    assert os.listdir(tmp_path) == ["thing"]


def test_if_the_second_step_fails_the_old_version_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "thing", "one")
    monkeypatch.setattr(storage, "_exchange", lambda first, second: False)
    rename, calls = os.rename, []

    def fail_second(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_second)
    with pytest.raises(StorageError, match="Input/output error"):
        make(tmp_path / "thing", "two", overwrite=True)
    assert len(calls) == 3
    assert text_in(tmp_path / "thing") == "one"
    assert os.listdir(tmp_path) == ["thing"]


# Killed processes.

KILLED = """
import os, signal, sys
from pathlib import Path
from moose import storage

def die(*arguments, **names):
    os.kill(os.getpid(), signal.SIGKILL)

place, stage = Path(sys.argv[1]), sys.argv[2]
if stage == "flush":
    storage._flush = die
elif stage == "exchange":
    storage._exchange = die
elif stage == "cleanup":
    storage.shutil.rmtree = die
elif stage == "between":
    storage._exchange = lambda first, second: False
    rename = os.rename
    def rename_then_die(source, target):
        rename(source, target)
        die()
    os.rename = rename_then_die
with storage.atomic_folder(place, replaces="moose-thing") as folder:
    (folder / "a.txt").write_text("two")
    if stage == "half":
        die()
    (folder / "deeper").mkdir()
    (folder / "deeper" / "b.txt").write_text("two")
    storage.write_manifest(folder, "moose-thing", 1, {"text": "two"})
"""


@pytest.mark.parametrize(
    ("stage", "expected"),
    [("half", "one"), ("flush", "one"), ("exchange", "one"), ("cleanup", "two")],
)
def test_a_kill_leaves_a_whole_version_and_a_sweepable_sibling(
    tmp_path: Path, stage: str, expected: str
) -> None:
    make(tmp_path / "thing", "one")
    assert in_another_process(KILLED, tmp_path / "thing", stage).returncode == -signal.SIGKILL
    assert text_in(tmp_path / "thing") == expected
    leftovers = [name for name in os.listdir(tmp_path) if name != "thing"]
    assert len(leftovers) == 1
    assert leftovers[0].startswith(".tmp-thing-")
    remove_stale_temporaries(tmp_path)
    assert os.listdir(tmp_path) == ["thing"]
    assert text_in(tmp_path / "thing") == expected


def test_a_kill_between_the_two_steps_is_mended_by_the_sweep(tmp_path: Path) -> None:
    make(tmp_path / "thing", "one")
    assert in_another_process(KILLED, tmp_path / "thing", "between").returncode == -signal.SIGKILL
    assert not (tmp_path / "thing").exists()
    remove_stale_temporaries(tmp_path)
    assert os.listdir(tmp_path) == ["thing"]
    assert text_in(tmp_path / "thing") == "one"


def test_the_sweep_leaves_alone_what_is_being_written(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "thing") as folder, atomic_file(tmp_path / "file") as file:
        write_manifest(folder, "moose-thing", 1, {})
        file.write_text("one")
        remove_stale_temporaries(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["file", "thing"]


def test_the_sweep_takes_leftover_files_and_outdated_versions(tmp_path: Path) -> None:
    make(tmp_path / "thing", "one")
    make(tmp_path / ".old-thing-01234567", "zero")
    (tmp_path / ".tmp-file-01234567").write_text("half")
    remove_stale_temporaries(tmp_path)
    assert os.listdir(tmp_path) == ["thing"]


# Places that cannot be written to.


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for writer in (atomic_folder, atomic_file):
        with (
            pytest.raises(StorageError, match="a part of this path is a file") as caught,
            writer(tmp_path / "file" / "thing"),
        ):
            pass
        assert str(tmp_path / "file" / "thing") in str(caught.value)


def test_a_folder_without_permission(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    is_root = os.geteuid() == 0
    if is_root:
        for folder in (tmp_path, *list(tmp_path.parents)[:2]):  # let "nobody" see the place
            folder.chmod(folder.stat().st_mode | 0o011)
        os.seteuid(65534)
    try:
        for writer in (atomic_folder, atomic_file):
            with (
                pytest.raises(StorageError, match="Permission denied") as caught,
                writer(locked / "thing"),
            ):
                pass
            assert "check the permissions" in str(caught.value)
    finally:
        if is_root:
            os.seteuid(0)
        locked.chmod(0o755)
    assert os.listdir(locked) == []


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="shorter name"), atomic_file(tmp_path / ("n" * 300)):
        pass
    assert os.listdir(tmp_path) == []


def test_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    code = """
    import resource, signal, sys
    from pathlib import Path
    from moose.storage import atomic_file, atomic_folder
    from moose.errors import StorageError
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    for writer in (lambda path: atomic_folder(path, replaces="moose-thing"), atomic_file):
        place = Path(sys.argv[1]) / ("folder" if writer is not atomic_file else "file")
        try:
            with writer(place) as name:
                (name / "a.txt" if name.is_dir() else name).write_bytes(bytes(5000))
        except StorageError as error:
            print(error)
    """
    make(tmp_path / "folder", "one")
    (tmp_path / "file").write_text("one")
    done = in_another_process(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("File too large") == 2
    assert done.stdout.count("raise the file-size limit") == 2
    assert text_in(tmp_path / "folder") == (tmp_path / "file").read_text() == "one"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


# JSON, checksums and manifests.


def test_json_is_sorted_and_ends_with_a_line(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": "é"})
    assert (tmp_path / "a.json").read_text() == '{\n  "a": "\\u00e9",\n  "b": 1\n}\n'
    assert read_json(tmp_path / "a.json") == {"a": "é", "b": 1}


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff\xfe\x00", b"NaN", b"-Infinity", b"[" * 100_000, b"1" * 5000, b"1e999"],
)
def test_broken_json_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(StorageError, match="not valid JSON") as caught:
        read_json(tmp_path / "a.json")
    assert str(tmp_path / "a.json") in str(caught.value)


def test_missing_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file") as caught:
        read_json(tmp_path / "a.json")
    assert str(tmp_path / "a.json") in str(caught.value)
    with pytest.raises(StorageError, match="this is a folder"):
        read_json(tmp_path)


def test_checksums_know_every_file_but_the_own_manifest(tmp_path: Path) -> None:
    make(tmp_path / "thing", "one")
    (tmp_path / "thing" / "deeper" / MANIFEST).write_text("{}")
    found = checksums(tmp_path / "thing")
    assert sorted(found) == ["a.txt", "deeper/b.txt", "deeper/manifest.json"]
    assert found["a.txt"] == sha256_of(tmp_path / "thing" / "a.txt")
    verify_checksums(tmp_path / "thing", found)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a\0b", "\ud800", "link"])
def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_text("")
    (folder / "link").symlink_to("../secret")
    with pytest.raises(StorageError, match="outside its own folder"):
        verify_checksums(folder, {name: ""})


def test_missing_and_altered_files_are_named(tmp_path: Path) -> None:
    make(tmp_path / "thing", "one")
    (tmp_path / "thing" / "a.txt").write_text("two")
    with pytest.raises(StorageError, match="checksum differs") as caught:
        read_manifest(tmp_path / "thing", "moose-thing", 1)
    assert "a.txt" in str(caught.value)
    (tmp_path / "thing" / "a.txt").unlink()
    with pytest.raises(StorageError, match="missing") as caught:
        read_manifest(tmp_path / "thing", "moose-thing", 1)
    assert "a.txt" in str(caught.value)


def test_what_is_not_the_folder_asked_for(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        read_manifest(tmp_path / "none", "moose-thing", 1)
    with pytest.raises(DataError, match="not a thing: it has no manifest"):
        read_manifest(tmp_path, "moose-thing", 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Not a directory"):
        read_manifest(tmp_path / "file", "moose-thing", 1)
    make(tmp_path / "thing", "one")
    with pytest.raises(DataError, match="'moose-thing', not 'moose-policy'"):
        read_manifest(tmp_path / "thing", "moose-policy", 1)


@pytest.mark.parametrize(
    ("version", "message"),
    [(2, "reads up to 1"), (0, "no sound"), (True, "no sound"), ("1", "no sound"), (None, "no")],
)
def test_versions_we_cannot_read(tmp_path: Path, version: object, message: str) -> None:
    make(tmp_path / "thing", "one")
    file = tmp_path / "thing" / MANIFEST
    write_json(file, json.loads(file.read_text()) | {"schema_version": version})
    with pytest.raises(StorageError, match=message) as caught:
        read_manifest(tmp_path / "thing", "moose-thing", 1)
    assert str(file) in str(caught.value)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_to_a_manifest_goes_unnoticed(tmp_path: Path, data: st.DataObject) -> None:
    if not (tmp_path / "thing").exists():
        make(tmp_path / "thing", "one é")
    file = tmp_path / "thing" / MANIFEST
    whole = file.read_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(1, 255))
    altered = bytearray(whole)
    altered[position] ^= flip
    cut = data.draw(st.booleans())
    file.write_bytes(whole[:position] if cut else altered)
    try:
        with pytest.raises(UserError) as caught:
            read_manifest(tmp_path / "thing", "moose-thing", 1)
    finally:
        file.write_bytes(whole)
    assert str(file) in str(caught.value)


def test_a_manifest_sealed_by_hand_without_files(tmp_path: Path) -> None:
    content = {"format": "moose-thing", "schema_version": 1, "files": [1]}
    write_json(tmp_path / MANIFEST, content | {"manifest_sha256": storage._seal(content)})
    with pytest.raises(StorageError, match="no table of files"):
        read_manifest(tmp_path, "moose-thing", 1)
