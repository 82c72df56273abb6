"""Benchmark data sets: the same recipe gives the same bits, everywhere and always."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from moose.data.files import load_dataset, save_dataset
from moose.envs import catalog
from moose.envs.catalog import cached_dataset, find_dataset, make_dataset
from moose.envs.recipes import cached_path, recipe_of
from moose.errors import ConfigError, DataError, StorageError
from moose.progress import JsonProgress

SMALL = {"episodes": 7, "steps": 30}
RECIPE = recipe_of("ib/mediocre-0.4", seed=11, **SMALL)
KNOWN_FRAME = [70.0, 32.351852, 42.57025, 25.872612, 36.423088, 88.82093]
KNOWN_ACTIONS = [[-1, -1, -1], [-1, 1, 1], [0.724313, 0.916703, -0.036944]]


@pytest.fixture(scope="module")
def dataset():
    return make_dataset(RECIPE)


def test_the_data_set_is_what_the_recipe_says(dataset):
    assert dataset.num_episodes == 7
    assert dataset.lengths.tolist() == [30] * 7
    assert dataset.truncated.all()
    assert not dataset.terminated.any()
    assert dataset.final_observed.all()
    assert dataset.observation_names[0] == "setpoint"
    assert dataset.action_names == ("d_velocity", "d_gain", "d_shift")
    assert dataset.provenance["recipe"]["seed"] == 11
    assert dataset.provenance["plant"] == "industrial_benchmark"
    np.testing.assert_array_equal(dataset.observations[:, 0], 70.0)
    assert len(np.unique(dataset.rewards)) > 200


def test_the_bits_are_the_same_in_another_process_with_other_settings(dataset, tmp_path):
    program = (
        "import sys; from moose.envs.catalog import make_dataset; "
        "from moose.envs.recipes import recipe_of; "
        f"print(make_dataset(recipe_of('ib/mediocre-0.4', seed=11, **{SMALL})).fingerprint)"
    )
    variants = [
        {"NPROC": "1"},
        {"NPROC": "2", "JAX_ENABLE_X64": "1", "JAX_DEFAULT_PRNG_IMPL": "rbg"},
    ]
    compiled_anew = {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | compiled_anew | variant,
            stdout=subprocess.PIPE,
            text=True,
        )
        for variant in variants
    ]
    for process in processes:
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        assert out.strip() == dataset.fingerprint


@pytest.mark.parametrize("lanes", [16, 48])
def test_the_bits_do_not_depend_on_how_episodes_are_grouped(monkeypatch, lanes):
    recipe = RECIPE.model_copy(update={"episodes": 70})
    expected = make_dataset(recipe)
    monkeypatch.setattr(catalog, "_LANES", lanes)
    stream = io.StringIO()
    again = make_dataset(recipe, progress=JsonProgress(stream, interval=0.0))
    assert again.fingerprint == expected.fingerprint
    done = [json.loads(line)["done"] for line in stream.getvalue().splitlines()]
    assert done == [*range(lanes, 70, lanes), 70]


def test_fewer_episodes_are_the_first_of_more(dataset):
    for count in (1, 3):
        few = make_dataset(RECIPE.model_copy(update={"episodes": count}))
        assert few.fingerprint == dataset.select_episodes(range(count)).fingerprint


def test_every_part_of_the_recipe_matters(dataset):
    changes = [{"seed": 12}, {"epsilon": 0.6}, {"behaviour": "bad"}]
    for change in changes:
        other = make_dataset(RECIPE.model_copy(update=change))
        assert other.fingerprint != dataset.fingerprint
        assert other.num_transitions == dataset.num_transitions


def test_known_numbers(dataset):
    """If this fails, raise GENERATOR_VERSION: a recipe has come to mean other data."""
    np.testing.assert_allclose(dataset.observations[-1], KNOWN_FRAME, rtol=1e-3)
    np.testing.assert_allclose(dataset.actions[-3:], KNOWN_ACTIONS, rtol=1e-3)


def test_the_cache_is_filled_once_and_gives_the_same(dataset, tmp_path, monkeypatch):
    first = cached_dataset(RECIPE, cache=tmp_path)
    path = cached_path(RECIPE, tmp_path)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    monkeypatch.setattr(catalog, "make_dataset", lambda *a, **k: pytest.fail("made again"))
    second = cached_dataset(RECIPE, cache=tmp_path)
    assert first.fingerprint == second.fingerprint == dataset.fingerprint
    assert second.provenance == dataset.provenance


def test_leftovers_of_killed_processes_are_swept_up(tmp_path):
    leftover = cached_path(RECIPE, tmp_path).parent / ".tmp-something-12345678"
    leftover.mkdir(parents=True)
    cached_dataset(RECIPE, cache=tmp_path)
    assert not leftover.exists()


def test_a_damaged_cache_says_what_to_do(tmp_path):
    cached_dataset(RECIPE, cache=tmp_path)
    path = cached_path(RECIPE, tmp_path)
    file = next(path.glob("obs*.parquet"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(StorageError) as caught:
        cached_dataset(RECIPE, cache=tmp_path)
    assert file.name in caught.value.where
    assert f"delete the folder {path}" in caught.value.advice
    assert "made again" in caught.value.advice


def test_a_data_set_is_found_by_folder_or_by_name(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_dataset(dataset, tmp_path / "mine")
    assert find_dataset("mine").fingerprint == dataset.fingerprint
    assert find_dataset(str(tmp_path / "mine")).fingerprint == dataset.fingerprint

    asked = []
    monkeypatch.setattr(catalog, "cached_dataset", lambda r, **k: asked.append((r, k)) or dataset)
    assert find_dataset("ib/bad-0.2", cache=tmp_path) is dataset
    assert asked[0][0] == recipe_of("ib/bad-0.2")
    assert asked[0][1]["cache"] == tmp_path

    # A folder that has the name of a data set goes first: what is there is what is meant.
    save_dataset(dataset, tmp_path / "ib" / "bad-0.2")
    find_dataset("ib/bad-0.2")
    assert len(asked) == 1
    assert load_dataset("ib/bad-0.2").fingerprint == dataset.fingerprint


def test_what_is_neither_a_folder_nor_a_name_gets_both_hints(tmp_path):
    with pytest.raises(ConfigError) as caught:
        find_dataset("ib/bad-02")
    text = str(caught.value)
    for part in (
        "neither a folder nor the name",
        "folder",
        "moose data list",
        "did you mean 'ib/bad-0.2'?",
    ):
        assert part in text
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="manifest"):
        find_dataset(str(tmp_path / "empty"))
