"""Names, recipes and places in the cache: all that is known without the simulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from moose.envs import recipes
from moose.envs.recipes import Recipe, cached_path, dataset_names, expected_return, recipe_of
from moose.errors import ConfigError


def test_there_are_sixteen_names():
    names = dataset_names()
    assert len(set(names)) == 16
    assert {"ib/bad-0.0", "ib/mediocre-0.6", "ib/optimized-0.8", "ib/global-1.0"} <= set(names)


def test_a_name_stands_for_a_recipe():
    assert recipe_of("ib/bad-0.2") == Recipe(
        behaviour="bad", epsilon=0.2, seed=0, episodes=100, steps=1000, setpoint=70.0
    )
    changed = recipe_of("ib/global-1.0", seed=3, episodes=2, steps=5, setpoint=30)
    assert changed == Recipe(
        behaviour="global", epsilon=1.0, seed=3, episodes=2, steps=5, setpoint=30.0
    )


@pytest.mark.parametrize(
    ("typo", "advice"),
    [
        ("ib/bda-0.2", "did you mean 'ib/bad-0.2'?"),
        ("bad-0.2", "did you mean 'ib/bad-0.2'?"),
        ("ib/optimised-0.4", "did you mean 'ib/optimized-0.4'?"),
        ("xyz", "choose one of: ib/bad-0.0"),
        ("", "choose one of"),
    ],
)
def test_typos_get_the_nearest_name(typo, advice):
    with pytest.raises(ConfigError) as caught:
        recipe_of(typo)
    assert f"There is no data set named '{typo}'." in str(caught.value)
    assert advice in caught.value.advice
    assert "moose data list" in caught.value.advice


@pytest.mark.parametrize(
    ("changes", "complaints"),
    [
        ({"seed": -1, "episodes": 0}, ["seed: ", "episodes: "]),
        ({"setpoint": 101.0}, ["setpoint: input should be less than or equal to 100, not 101"]),
        ({"setpoint": float("nan")}, ["setpoint: input should be a finite number"]),
        ({"stepps": 3}, ["stepps: there is no such setting; did you mean 'steps'?"]),
        ({"episodes": 10_000, "steps": 100_000}, ["at most 100000000 transitions"]),
    ],
)
def test_impossible_recipes_are_refused(changes, complaints):
    with pytest.raises(ConfigError) as caught:
        recipe_of("ib/bad-0.2", **changes)
    for complaint in complaints:
        assert complaint in str(caught.value)


def test_global_means_random_actions_only():
    with pytest.raises(ValueError, match="random actions only"):
        Recipe(behaviour="global", epsilon=0.5)


def test_returns_are_expected_at_setpoint_70_only():
    assert expected_return(recipe_of("ib/bad-0.0")) == -326.8
    assert expected_return(recipe_of("ib/bad-0.0", seed=7, episodes=3)) == -326.8
    assert expected_return(recipe_of("ib/bad-0.0", setpoint=50.0)) is None
    assert expected_return(Recipe(behaviour="bad", epsilon=0.33)) is None


def test_every_recipe_has_its_own_place(tmp_path):
    variants = [
        recipe_of("ib/bad-0.2"),
        recipe_of("ib/bad-0.4"),
        recipe_of("ib/bad-0.2", seed=1),
        recipe_of("ib/bad-0.2", episodes=99),
        recipe_of("ib/bad-0.2", steps=999),
        recipe_of("ib/bad-0.2", setpoint=69.0),
    ]
    paths = [cached_path(recipe, tmp_path) for recipe in variants]
    assert len(set(paths)) == len(paths)
    assert paths[0] == cached_path(recipe_of("ib/bad-0.2", seed=0), tmp_path)
    assert paths[0].parent == tmp_path / "datasets"


def test_the_place_never_changes():
    # A changed name makes everybody's cache useless.
    assert cached_path(recipe_of("ib/bad-0.2"), Path("c")).name == "ib-bad-0.2-8e30f1e630b8"


def test_the_cache_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("MOOSE_CACHE", str(tmp_path / "here"))
    assert recipes.cache_folder() == tmp_path / "here"
    monkeypatch.setenv("MOOSE_CACHE", "~/there")
    assert recipes.cache_folder() == Path.home() / "there"
    monkeypatch.setenv("MOOSE_CACHE", "")
    assert recipes.cache_folder() == Path(platformdirs.user_cache_dir("moose"))


def test_names_come_without_the_simulator():
    program = "import sys, moose.envs.recipes; assert not {'jax', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
