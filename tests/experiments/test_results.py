"""Published results, the page made from them, and the pictures of a grid."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from filled_stores import filled_store
from moose.errors import StorageError
from moose.experiments.grid_figures import make_curves, write_figures
from moose.experiments.results import make_page, publish, read_published_runs
from moose.experiments.store import Store
from moose.storage import write_manifest

ROOT = Path(__file__).parent.parent.parent
MEANS = {("moose", "ib/bad-0.2"): -126.0, ("clone", "ib/bad-0.2"): -270.0}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    done = {("clone", "ib/bad-0.2"): 1}
    with filled_store(tmp_path_factory.mktemp("grid"), MEANS, seeds=2, done=done) as made:
        yield made


def test_curves_are_means_and_deviations_over_seeds(store):
    curves = make_curves(store)["ib/bad-0.2"]
    assert curves["batch"] == -200.0
    moose = curves["curves"]["moose"]
    assert (moose["seeds"], curves["curves"]["clone"]["seeds"]) == (2, 1)
    assert moose["steps"] == list(range(0, 1001, 10))
    rows = [row for row in store.curves() if row[0] == "moose" and row[3] == 500]
    values = [row[4] for row in rows]
    assert moose["mean"][50] == pytest.approx(np.mean(values))
    assert moose["deviation"][50] == pytest.approx(np.std(values))


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_pictures_are_drawn_for_each_block(store, tmp_path, suffix):
    (picture,) = write_figures(store, tmp_path, suffix)
    assert picture == tmp_path / f"g-bad.{suffix}"
    content = picture.read_bytes()
    if suffix == "svg":
        assert b"stroke-dasharray" in content  # the batch
        (again,) = write_figures(store, tmp_path / "again", suffix)
        strip = re.compile(rb"(?<=[#\"])[mp][0-9a-f]{10}")
        assert strip.sub(b"", again.read_bytes()) == strip.sub(b"", content)


def test_a_grid_that_was_interrupted_before_its_runs_were_planned_is_not_published(tmp_path):
    (tmp_path / "results").mkdir()
    with (
        Store(tmp_path / "grid", is_new=True) as empty,
        pytest.raises(StorageError, match="no runs yet"),
    ):
        publish(empty, tmp_path / "results")
    assert not list((tmp_path / "results").iterdir())


def test_results_are_published_and_make_a_page(store, tmp_path):
    place = publish(store, tmp_path / "results")
    assert place == publish(store, tmp_path / "results")  # replaces what it wrote before
    assert json.loads((place / "table.json").read_text())["name"] == "g"
    page = make_page(tmp_path / "results", tmp_path / "docs")
    assert "## g\n\nMade up.\n" in page
    assert "**Partial:** 3 of 4 runs are finished." in page
    assert "| moose | **-126." in page
    assert "[1/2]" in page
    for target in re.findall(r"\]\(([^)]+)\)", page):
        assert (tmp_path / "docs" / target).resolve().exists(), target
    assert "All numbers](../results/study)" not in page
    study = tmp_path / "results" / "study"
    study.mkdir()
    (study / "section.md").write_text("## What a study found\n\nMuch.\n")
    page = make_page(tmp_path / "results", tmp_path / "docs")
    assert page.endswith("\n## What a study found\n\nMuch.\n\n[All numbers](../results/study).\n")
    (place / "table.json").write_text("{}")
    with pytest.raises(StorageError, match="checksum"):
        make_page(tmp_path / "results", tmp_path / "docs")


def test_the_finished_runs_are_published_and_sealed(store, tmp_path):
    place = publish(store, tmp_path / "results")
    known = read_published_runs(place)
    assert known.source == str(place)
    assert list(known.runs.values()) == store.finished_runs()
    assert len(known.runs) == 3
    manifest = json.loads((place / "manifest.json").read_text())
    assert "runs.json" in manifest["files"]
    text = (place / "runs.json").read_text()
    (place / "runs.json").write_text(text.replace("60.0", "61.0"))
    with pytest.raises(StorageError, match="checksum") as error:
        read_published_runs(place)
    assert error.value.where == str(place / "runs.json")
    (place / "runs.json").unlink()
    with pytest.raises(StorageError, match="missing") as error:
        read_published_runs(place)
    assert error.value.where == str(place / "runs.json")


def test_a_grid_that_an_earlier_version_published_has_no_runs(store, tmp_path):
    place = publish(store, tmp_path / "results")
    (place / "runs.json").unlink()
    write_manifest(place, "moose-results", 1, {"name": "g", "runs": store.counts()})
    assert "## g" in make_page(tmp_path / "results", tmp_path)
    with pytest.raises(StorageError, match="without its runs") as error:
        read_published_runs(place)
    assert error.value.where == str(place / "runs.json")
    assert f"moose grid publish runs/x {tmp_path / 'results'}" in error.value.advice


def test_other_folders_are_not_taken_for_published_grids(store, tmp_path):
    place = publish(store, tmp_path / "results")
    other = tmp_path / "other"
    other.mkdir()
    write_manifest(other, "moose-dataset", 1, {})
    for folder, where, advice in (
        (tmp_path / "nowhere", tmp_path / "nowhere", "such as results/x"),
        (place.parent, place.parent, f"such as {place}"),
        (store.path.parent, store.path.parent, "publish it first"),
        (other, other / "manifest.json", "such as results/x"),
    ):
        with pytest.raises(StorageError, match="not a published grid") as error:
            read_published_runs(folder)
        assert error.value.where == str(where)
        assert advice in error.value.advice


def test_a_page_needs_a_folder_of_results(tmp_path):
    with pytest.raises(StorageError, match="no folder of results"):
        make_page(tmp_path / "nothing", tmp_path)
    (tmp_path / "empty").mkdir()
    assert "No grid has been published yet." in make_page(tmp_path / "empty", tmp_path)


def test_the_page_of_results_is_the_one_that_the_results_make():
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page == make_page(ROOT / "results", ROOT / "docs")
