"""What a run folder says, who may begin or go on in it, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from moose.errors import RunError, StorageError
from moose.experiments.run_folder import (
    DataRecord,
    Manifest,
    Request,
    find_policy,
    locked,
    read_evaluations,
    read_lines,
    read_run,
    require_free,
    resume_command,
    run_digest,
    seed_folders,
    write_run,
)


def make_manifest(seeds=None, **request):
    asked = Request(data="ib/bad-0.2", config={"search": {"updates": 3}}, **request)
    return Manifest(
        request=asked,
        digest=run_digest(asked, "f" * 64, seeds),
        data=DataRecord(fingerprint="f" * 64, transitions=10, episodes=2, provenance={"a": [1]}),
        versions={"jax": "1.2.3"},
        seeds=seeds,
        mode=None if seeds is None else "together",
    )


def edit(folder, **changes):
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# The manifest


@pytest.mark.parametrize("seeds", [None, (0, 3)])
def test_a_manifest_reads_as_it_was_written(tmp_path, seeds):
    write_run(tmp_path / "new" / "run", make_manifest(seeds))
    assert read_run(tmp_path / "new" / "run") == make_manifest(seeds)


def test_the_digest_tells_requests_data_and_seeds_apart():
    request = make_manifest().request
    other = request.model_copy(update={"seed": 1})
    digests = {
        run_digest(request, "a", None),
        run_digest(request, "b", None),
        run_digest(other, "a", None),
        run_digest(request, "a", (0,)),
        run_digest(request, "a", (0, 1)),
    }
    assert len(digests) == 5


@pytest.mark.parametrize("content", [None, "[]", '{"format": "moose-dataset"}'])
def test_a_folder_without_a_run_is_told(tmp_path, content):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(
        RunError, match=r"no run in this folder|something else than a run"
    ) as caught:
        read_run(tmp_path)
    assert str(tmp_path) in caught.value.where
    assert "moose train" in caught.value.advice


def test_a_manifest_that_is_no_json_is_told(tmp_path):
    (tmp_path / "manifest.json").write_text('{"format": "moose-run",')
    with pytest.raises(StorageError, match="not valid JSON"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": [0, 1]},
        {"digest": "0" * 12},
        {"data": {"fingerprint": "e" * 64, "transitions": 1, "episodes": 1, "provenance": {}}},
        {"request": {"data": "ib/bad-0.4"}},
        {"request": {}},
        {"request": None},
        {"versions": 3},
        {"extra": 1},
        {"mode": "sideways"},
    ],
)
def test_an_edited_manifest_is_refused(tmp_path, changes):
    write_run(tmp_path, make_manifest())
    edit(tmp_path, **changes)
    with pytest.raises(RunError, match="damaged or was edited"):
        read_run(tmp_path)


def test_a_newer_run_is_left_to_a_newer_program(tmp_path):
    write_run(tmp_path, make_manifest())
    edit(tmp_path, schema_version=2, something="new")
    with pytest.raises(RunError, match="schema version 2") as caught:
        read_run(tmp_path)
    assert "newer version" in caught.value.advice


def test_each_seed_has_its_place(tmp_path):
    assert seed_folders(tmp_path, make_manifest(seed=4)) == {4: tmp_path}
    assert seed_folders(tmp_path, make_manifest((0, 3))) == {
        0: tmp_path / "seed-0",
        3: tmp_path / "seed-3",
    }


def test_the_advice_can_be_typed(tmp_path):
    assert resume_command(tmp_path) == f"moose train --resume {tmp_path}"
    assert resume_command(tmp_path / "a b") == f"moose train --resume '{tmp_path / 'a b'}'"
    assert resume_command(tmp_path, "DATA") == f"moose train DATA --resume {tmp_path}"


# Where a run may begin


def test_a_run_begins_in_a_new_or_an_empty_folder(tmp_path):
    require_free(tmp_path / "new")
    require_free(tmp_path)
    (tmp_path / ".lock").touch()  # left by a start that was cut short
    (tmp_path / ".tmp-manifest.json-12345678").touch()
    require_free(tmp_path)


def test_a_run_does_not_begin_where_there_is_something(tmp_path):
    run, file, full = tmp_path / "run", tmp_path / "file", tmp_path / "full"
    write_run(run, make_manifest())
    file.touch()
    (full / "notes").mkdir(parents=True)
    with pytest.raises(RunError, match="holds a run already") as caught:
        require_free(run)
    assert f"moose train --resume {run}" in caught.value.advice
    with pytest.raises(StorageError, match="file where the run's folder"):
        require_free(file)
    with pytest.raises(RunError, match="not empty"):
        require_free(full)


# Who may write


def test_only_one_works_on_a_run(tmp_path):
    with (
        locked(tmp_path / "run"),
        pytest.raises(RunError, match="Another process") as caught,
        locked(tmp_path / "run"),
    ):
        pass
    assert f"process {os.getpid()} on " in caught.value.what
    assert caught.value.where == str(tmp_path / "run")
    with locked(tmp_path / "run"):
        pass


def test_a_dead_process_lets_go(tmp_path):
    code = (
        "import os, sys, pathlib; from moose.experiments.run_folder import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): os._exit(9)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == 9
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    failure = pytest.raises(StorageError, match="Cannot read or write here")
    with failure, locked(tmp_path / "file" / "run"):
        pass


# Lines


def test_lines_are_read_up_to_the_one_being_written(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert read_lines(file) == []
    file.write_text('{"stage": "a", "step": 0}\n{"stage": "a", "step": 1}\n{"stage": "a", "st')
    assert [line["step"] for line in read_lines(file)] == [0, 1]
    file.rename(tmp_path / "evaluations.jsonl")
    assert len(read_evaluations(tmp_path)) == 2


@pytest.mark.parametrize(
    "line", ["nonsense", "[1]", '{"stage": "a"}', '{"step": 1}', "\0\0", "\xff"]
)
def test_a_line_that_is_none_is_told(tmp_path, line):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"stage": "a", "step": 0}\n' + line.encode("latin-1") + b"\n")
    with pytest.raises(StorageError, match="not one that a run writes") as caught:
        read_lines(file)
    assert caught.value.where == f"{file}, line 2"


def test_where_nothing_is_there_is_no_policy(tmp_path):
    with pytest.raises(RunError, match="There is nothing here") as caught:
        find_policy(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in str(caught.value)
