"""Experts as files, and data sets of their noisy play."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from moose.envs import experts, gymnasium_plants
from moose.envs.catalog import make_dataset
from moose.envs.experts import find_expert, make_expert, read_expert, write_expert
from moose.envs.gymnasium_recipes import GymnasiumRecipe
from moose.errors import ConfigError, StorageError
from moose.storage import sha256_of


@pytest.fixture
def expert():
    rng = np.random.default_rng(0)
    return make_expert(
        [(rng.normal(size=(3, 8)), rng.normal(size=8)), (rng.normal(size=(8, 1)), np.zeros(1))]
    )


def test_an_expert_is_a_network_with_tanh(expert):
    frames = np.random.default_rng(1).normal(size=(5, 3))
    hidden = np.maximum(frames @ expert.weights[0] + expert.biases[0], 0)
    np.testing.assert_allclose(
        expert.act(frames), np.tanh(hidden @ expert.weights[1] + expert.biases[1]), rtol=1e-5
    )
    assert expert.act(frames[0]).shape == (1,)


def test_an_expert_plays_the_same_on_another_processor():
    program = (
        "from moose.envs.catalog import make_dataset\n"
        "from moose.envs.gymnasium_recipes import gymnasium_recipe_of\n"
        "print(make_dataset(gymnasium_recipe_of('mujoco/hopper', transitions=500)).fingerprint)"
    )
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    # What an older processor would have: other products of matrices, other elementary functions.
    older = {
        "OPENBLAS_CORETYPE": "Prescott",
        "NPY_DISABLE_CPU_FEATURES": " ".join(found),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA",
    }
    prints = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for settings in ({}, older)
    ]
    assert prints[0] == prints[1]


def test_what_is_written_is_read(expert, tmp_path):
    write_expert(expert, tmp_path / "e.safetensors")
    again = read_expert(tmp_path / "e.safetensors")
    for mine, theirs in zip(expert, again, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_damaged_file_is_told(expert, tmp_path):
    file = tmp_path / "e.safetensors"
    write_expert(expert, file)
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(StorageError, match="cannot be read"):
        read_expert(file)


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ([(np.zeros((3, 8)), np.zeros(8)), (np.zeros((7, 1)), np.zeros(1))], "are no network"),
        ([(np.zeros(3), np.zeros(1))], "are no network"),
        ([(np.zeros((3, 8)), np.zeros(7))], "biases do not fit"),
        ([(np.full((3, 1), np.nan), np.zeros(1))], "finite"),
    ],
)
def test_what_is_no_network_is_told(layers, problem, tmp_path):
    write_expert(make_expert(layers), tmp_path / "e.safetensors")
    with pytest.raises(StorageError, match=problem):
        read_expert(tmp_path / "e.safetensors")


def test_a_missing_expert_is_told():
    with pytest.raises(ConfigError, match="no expert for the environment 'Nowhere-v0'"):
        find_expert("Nowhere-v0")


def test_demonstrations_are_the_experts_with_mistakes(expert, monkeypatch):
    pytest.importorskip("gymnasium")
    monkeypatch.setattr(gymnasium_plants, "find_expert", lambda name: expert)

    def errors(**changes):
        recipe = GymnasiumRecipe(
            environment="Pendulum-v1", policy="expert", transitions=1000, **changes
        )
        data = make_dataset(recipe)
        frames = np.concatenate([data.observations[i * 201 : i * 201 + 200] for i in range(5)])
        return data.actions[:, 0] - 2.0 * expert.act(frames)[:, 0], data.actions

    exact, _ = errors(random_share=0.0, noise=0.0)
    assert np.abs(exact).max() < 1e-3
    half, _ = errors(random_share=0.5, noise=0.0)
    assert 0.4 < np.mean(np.abs(half) > 1e-3) < 0.6
    noisy, actions = errors(random_share=0.0, noise=0.3)
    inside = np.abs(actions[:, 0]) < 2.0  # where the bounds did not cut it
    assert inside.sum() > 100
    assert np.abs(actions).max() <= 2.0
    assert 0.1 < np.std(noisy[inside]) < 0.7  # of 0.6 in the action's units, less what was cut


def test_an_expert_of_ones_own_plays_from_its_file(expert, tmp_path):
    pytest.importorskip("gymnasium")
    file = tmp_path / "e.safetensors"
    write_expert(expert, file)
    recipe = GymnasiumRecipe(
        environment="Pendulum-v1", policy="expert", transitions=20, random_share=0.0, noise=0.0
    )
    data = make_dataset(recipe, expert=file)
    expected = 2.0 * expert.act(data.observations[:20])
    np.testing.assert_allclose(data.actions, expected, rtol=1e-4, atol=1e-4)
    assert data.provenance["expert_sha256"] == sha256_of(file)
    with pytest.raises(ConfigError, match="3 observations into 1 actions, and the environment has"):
        make_dataset(recipe.model_copy(update={"environment": "Hopper-v4"}), expert=file)


def test_every_expert_of_the_program_can_be_read():
    for file in experts.FOLDER.glob(f"*{experts.SUFFIX}"):
        assert find_expert(file.stem).weights[-1].shape[1] >= 1
