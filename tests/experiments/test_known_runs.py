"""Finished runs in a file, and what a grid elsewhere makes of them."""

from __future__ import annotations

import json

import pytest

from filled_stores import facts_of, filled_store
from moose.errors import StorageError
from moose.experiments.known_runs import (
    KnownRuns,
    describe_differences,
    read_runs,
    take_over,
    with_other_bits,
    write_runs,
)
from moose.experiments.run_folder import DataRecord, Manifest, Request, run_digest, write_run
from moose.experiments.store import PlannedCell, Store, now
from moose.experiments.tables import make_table

PLACES = {("moose", "ib/bad-0.2"): -126.0, ("clone", "ib/bad-0.2"): -270.0}
HERE = {"jax": "0.2", "threads": "1"}
THERE = {"jax": "0.1", "threads": "1"}


@pytest.fixture
def done(tmp_path):
    """A store with four runs, of which three are finished."""
    with filled_store(
        tmp_path / "there", PLACES, seeds=2, done={("clone", "ib/bad-0.2"): 1}, evaluations=10
    ) as store:
        yield store


def written(store, folder):
    file = folder / "runs.json"
    write_runs(file, store)
    return file


def known(store, folder, versions=THERE):
    runs = read_runs(written(store, folder))
    made = {name: run.model_copy(update={"versions": versions}) for name, run in runs.items()}
    return KnownRuns("results/g", made)


def plan_again(store, folder, *, fingerprint=None, algorithm=None):
    """A store with the same plan, of which nothing is done; perhaps with a change to all of it."""
    cells = []
    for label, data, seed, _ in store.cells():
        request = Request(data=data, algorithm=algorithm or label, seed=seed)
        digest = run_digest(request, fingerprint or data, None)
        cells.append(PlannedCell(label, data, seed, digest, request))
    datasets = {cell.data: facts_of(cell.data) for cell in cells}
    made = Store(folder, is_new=True)
    made.plan(store.facts(), datasets, cells)
    return made, cells


def manifest_of(run, versions):
    data = DataRecord(fingerprint=run.fingerprint, transitions=1, episodes=1, provenance={})
    return Manifest(request=run.request, digest=run.digest, data=data, versions=versions)


def test_finished_runs_are_written_one_a_line_and_read_back(done, tmp_path):
    finished = done.finished_runs()
    folder = done.path.parent / "runs" / finished[0].digest
    write_run(folder, manifest_of(finished[0], THERE))
    file = written(done, tmp_path)
    first, *lines, last = file.read_text().splitlines()
    assert (first, last) == ('{"schema_version":1,"runs":[', "]}")
    assert [json.loads(line.rstrip(","))["digest"] for line in lines] == [
        run.digest for run in finished
    ]
    runs = list(read_runs(file).values())
    # Of a run whose folder is gone nobody knows the versions.
    assert [run.versions for run in runs] == [THERE, None, None]
    assert [run.model_copy(update={"versions": None}) for run in runs] == finished
    assert runs[0].updates == 100
    assert len(runs[0].evaluations) == 11


def test_a_grid_without_finished_runs_has_an_empty_file(tmp_path):
    place = ("moose", "ib/bad-0.2")
    with filled_store(tmp_path, {place: 0.0}, seeds=1, done={place: 0}) as store:
        assert read_runs(written(store, tmp_path)) == {}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"seed":0', '"seed":5', "digest of runs.0 differs"),
        ('"schema_version":1', '"schema_version":9', "schema version 9"),
        ('"schema_version":1', '"schema_version":0', "schema_version"),
        ('"seconds":60.0', '"seconds":"long"', "runs.0.seconds"),
        ('"seconds":60.0', '"seconds":-1', "runs.0.seconds"),
        ('"digest"', '"digits"', "did you mean 'digest'"),
        ("[0,", '["first",', "runs.0.evaluations.0"),
        ("[0,", "[0,0,", "runs.0.evaluations.0"),
        ("]}\n", "]", "not valid JSON"),
    ],
)
def test_files_that_are_not_what_was_written_are_refused(done, tmp_path, old, new, complaint):
    file = written(done, tmp_path)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(StorageError) as error:
        read_runs(file)
    assert complaint in str(error.value)
    assert error.value.where == str(file)
    assert error.value.advice


def test_known_runs_count_as_done_with_their_versions(done, tmp_path):
    warnings = []
    there = known(done, tmp_path)
    store, cells = plan_again(done, tmp_path / "here")
    with store:
        take_over(store, [there, there], cells, HERE, warn=warnings.append)
        assert store.counts() == {"waiting": 1, "running": 0, "done": 3, "failed": 0}
        assert make_table(store) == make_table(done)
        assert store.curves() == done.curves()
        # Published again, they are what they were.
        assert read_runs(written(store, tmp_path)) == there.runs
        (warning,) = warnings
        assert warning.endswith("versions do: jax 0.1 (here 0.2)")
        take_over(store, [there], cells, HERE, warn=warnings.append)
        assert len(warnings) == 1  # nothing was taken over


def test_versions_of_a_run_that_was_begun_here_are_not_taken_for_those_of_another(done, tmp_path):
    there = known(done, tmp_path, versions=None)
    store, cells = plan_again(done, tmp_path / "here")
    with store:
        run = next(iter(there.runs.values()))
        write_run(store.path.parent / "runs" / run.digest, manifest_of(run, HERE))
        take_over(store, [there], cells, HERE)
        assert read_runs(written(store, tmp_path)) == there.runs


def test_what_is_finished_here_is_not_taken_from_elsewhere_though_the_store_was_lost(
    done, tmp_path
):
    there = known(done, tmp_path)
    store, cells = plan_again(done, tmp_path / "here")
    with store:
        own = next(iter(there.runs))
        (store.path.parent / "runs" / own / "policy").mkdir(parents=True)
        take_over(store, [there], cells, HERE)
        assert set(store.taken_over()) == set(there.runs) - {own}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"fingerprint": "f"}, "3 runs in results/g are not taken over, since their data sets"),
        ({"algorithm": "ddpg"}, "no run of this grid is among the 3 in results/g"),
    ],
)
def test_runs_of_other_data_or_another_grid_are_told(done, tmp_path, change, complaint):
    warnings = []
    there = known(done, tmp_path)
    store, cells = plan_again(done, tmp_path / "here", **change)
    with store:
        take_over(store, [there], cells, HERE, warn=warnings.append)
        assert store.counts()["done"] == 0
    (warning,) = warnings
    assert warning.startswith(complaint)


def test_runs_of_other_bits_of_named_data_count_where_that_is_asked_for(done, tmp_path):
    warnings = []
    there = known(done, tmp_path, versions=HERE)
    # The data sets have names; another machine, or an earlier version, had made other bits of them.
    store, cells = plan_again(done, tmp_path / "here", fingerprint="f")
    with store:
        adopted = with_other_bits(cells, [there], done=())
        assert {cell.digest for cell in adopted} >= set(there.runs)
        assert adopted[-1] == cells[-1]  # of which nothing is known
        bits = {"ib/bad-0.2": facts_of("ib/bad-0.2") | {"fingerprint": "f"}}
        store.plan(store.facts(), bits, adopted)
        take_over(store, [there], adopted, HERE, warn=warnings.append)
        assert store.counts()["done"] == 3
        # Published again, they are what they were.
        assert read_runs(written(store, tmp_path)) == there.runs
    assert warnings == [
        "3 of the runs taken over were made with other bits of their data sets than those here: "
        "ib/bad-0.2"
    ]


def test_neither_what_is_at_hand_nor_a_folder_is_exchanged_for_other_bits(done, tmp_path):
    there = known(done, tmp_path)
    store, cells = plan_again(done, tmp_path / "here", fingerprint="f")
    store.close()
    assert with_other_bits(cells, [there], done={cell.digest for cell in cells}) == cells
    _, same = plan_again(done, tmp_path / "same")
    assert with_other_bits(same, [there], done=()) == same
    folders = [
        cell._replace(request=cell.request.model_copy(update={"data": str(tmp_path)}))
        for cell in cells
    ]
    run = next(iter(there.runs.values()))
    request = run.request.model_copy(update={"data": str(tmp_path)})
    elsewhere = {run.digest: run.model_copy(update={"request": request})}
    assert with_other_bits(folders, [KnownRuns("results/g", elsewhere)], done=()) == folders


def test_differences_name_every_version_once():
    assert describe_differences([], HERE) == ""
    assert describe_differences([HERE, HERE], HERE) == ""
    runs = [{"jax": "0.1", "threads": "2"}, {"jax": "0.0"}, HERE, None]
    assert describe_differences(runs, HERE) == (
        "jax 0.0 and 0.1 (here 0.2), threads 2 and unknown (here 1), 1 of 4 runs do not tell theirs"
    )


def test_the_first_folder_counts(done, tmp_path):
    first, second = known(done, tmp_path), known(done, tmp_path, versions=HERE)
    store, cells = plan_again(done, tmp_path / "here")
    with store:
        take_over(store, [first, second._replace(source="results/h")], cells, HERE)
        assert all(source.endswith("results/g") for source in store.taken_over().values())
        assert store.take_over(second.runs.values(), "results/h", now()) == []
