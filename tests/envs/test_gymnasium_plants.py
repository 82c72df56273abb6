"""Gymnasium environments as plants and their data sets."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import numpy as np
import pytest

from moose.envs.catalog import find_dataset, make_dataset
from moose.envs.gymnasium_plants import columns_of, make_environment, versions_of_plant
from moose.envs.gymnasium_recipes import GymnasiumRecipe, gymnasium_recipe_of
from moose.envs.recipes import cached_path
from moose.errors import ConfigError, MissingExtraError

gymnasium = pytest.importorskip("gymnasium")


def test_columns_are_those_of_the_spaces():
    environment = make_environment("Pendulum-v1")
    columns = columns_of(environment)
    environment.close()
    assert columns.observation_names == ("observation_0", "observation_1", "observation_2")
    assert columns.action_names == ("action_0",)
    assert (columns.action_low, columns.action_high) == ((-2.0,), (2.0,))


def test_a_data_set_is_what_a_loop_by_hand_sees():
    recipe = GymnasiumRecipe(environment="Pendulum-v1", seed=3, transitions=450)
    dataset = make_dataset(recipe)
    assert dataset.lengths.tolist() == [200, 200, 50]  # its own limit is 200 steps
    rng = np.random.default_rng((3, 1))  # the second episode
    environment = gymnasium.make("Pendulum-v1")
    frame, _ = environment.reset(seed=int(rng.integers(2**31)))
    frames, rewards = [frame], []
    for _ in range(200):
        frame, reward, *_ = environment.step(rng.uniform([-2.0], [2.0]).astype(np.float32))
        frames.append(frame)
        rewards.append(reward)
    environment.close()
    np.testing.assert_allclose(dataset.observations[201:402], np.stack(frames), atol=1e-6)
    np.testing.assert_allclose(dataset.rewards[200:400], rewards, rtol=1e-6)
    assert np.abs(dataset.actions).max() <= 2.0
    assert dataset.provenance["versions"]["gymnasium"] == gymnasium.__version__


def test_the_same_recipe_gives_the_same_bits_and_a_larger_one_begins_alike():
    small, large = (
        make_dataset(GymnasiumRecipe(environment="Pendulum-v1", transitions=size, steps=30))
        for size in (60, 120)
    )
    np.testing.assert_array_equal(small.rewards, large.rewards[:60])
    assert large.lengths.tolist() == [30] * 4
    again = make_dataset(GymnasiumRecipe(environment="Pendulum-v1", transitions=60, steps=30))
    assert again.fingerprint == small.fingerprint


class Falling(gymnasium.Env):
    """Ends by itself after three steps, at the very moment of its time limit."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        is_over = self.count == 3
        return np.full(1, 0.1 * self.count, np.float32), 1.0, is_over, is_over, {}


@pytest.fixture
def register():
    names = []

    def add(name, **facts):
        gymnasium.register(name, **facts)
        names.append(name)

    yield add
    for name in names:
        del gymnasium.registry[name]


def test_an_end_of_its_own_is_told_from_a_limit(register):
    register("Falling-v0", entry_point=Falling, disable_env_checker=True)
    dataset = make_dataset(GymnasiumRecipe(environment="Falling-v0", transitions=7))
    assert dataset.lengths.tolist() == [3, 3, 1]
    assert dataset.terminated.tolist() == [True, True, False]
    assert dataset.truncated.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"observation_space": gymnasium.spaces.Discrete(3)}, "observations are Discrete"),
        ({"observation_space": gymnasium.spaces.Box(0, 1, (2, 2))}, "observations are Box"),
        ({"action_space": gymnasium.spaces.Discrete(3)}, "actions are Discrete"),
        ({"action_space": gymnasium.spaces.Box(-np.inf, 1, (1,))}, "no bounds"),
    ],
)
def test_what_is_no_row_of_numbers_is_refused(register, change, problem):
    register("Odd-v0", entry_point=type("Odd", (Falling,), change), disable_env_checker=True)
    with pytest.raises(ConfigError, match=problem):
        make_environment("Odd-v0")


def test_an_environment_that_cannot_be_made_is_told(register):
    def broken():
        raise ImportError("no such engine")

    register("Broken-v0", entry_point=broken)
    with pytest.raises(ConfigError, match="no such engine"):
        make_environment("Broken-v0")


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'Pendulum-v1'"):
        make_environment("Pendulun-v1")


@pytest.mark.parametrize(("name", "extra"), [("Pendulum-v1", "gym"), ("Hopper-v4", "mujoco")])
def test_gymnasium_is_an_extra(monkeypatch, name, extra):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=rf"moose-rl\[{extra}\]"):
        make_environment(name)


@pytest.mark.parametrize("is_installed", [True, False])
def test_an_outdated_environment_is_not_blamed_on_an_extra_that_is_there(monkeypatch, is_installed):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: found(name) if is_installed else name != "mujoco"
    )
    with pytest.raises(ConfigError, match="the newest version is HalfCheetah-v5") as error:
        make_environment("HalfCheetah-v3")
    assert ("'mujoco'" in str(error.value)) is not is_installed


def test_our_own_environment_is_known_by_name():
    environment = make_environment("moose/IndustrialBenchmark-v0")
    assert len(columns_of(environment).observation_names) == 180
    environment.close()


def test_a_name_is_made_once_and_found_in_the_cache_afterwards(tmp_path, monkeypatch):
    recipe = gymnasium_recipe_of("gym/Pendulum-v1")
    small = gymnasium_recipe_of("gym/Pendulum-v1", transitions=40)
    monkeypatch.setattr("moose.envs.catalog.any_recipe_of", lambda name: small)
    made = find_dataset("gym/Pendulum-v1", cache=tmp_path)
    assert cached_path(small, tmp_path).is_dir()
    assert cached_path(small, tmp_path) != cached_path(recipe, tmp_path)
    assert find_dataset("gym/Pendulum-v1", cache=tmp_path).fingerprint == made.fingerprint


def test_versions_are_those_of_what_an_environment_needs():
    assert versions_of_plant("Pendulum-v1") == {"gymnasium": gymnasium.__version__}
    assert versions_of_plant("moose/IndustrialBenchmark-v0") == versions_of_plant("Pendulum-v1")
    mujoco = importlib.metadata.version("mujoco")
    assert versions_of_plant("Hopper-v4") == {"gymnasium": gymnasium.__version__, "mujoco": mujoco}
