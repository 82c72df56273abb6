"""The paper's MuJoCo tasks."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from moose.envs import mujoco
from moose.envs.experts import find_expert
from moose.envs.gymnasium_plants import columns_of, make_environment
from moose.envs.gymnasium_recipes import GymnasiumRecipe, environment_of, gymnasium_recipe_of
from moose.errors import ConfigError


def require_mujoco():
    try:
        import mujoco as engine  # noqa: F401
    except ImportError:
        assert os.environ.get("CI") != "true", "MuJoCo is missing: pip install 'moose-rl[mujoco]'"
        pytest.skip("MuJoCo is not installed: pip install 'moose-rl[mujoco]'")


@pytest.mark.parametrize("name", mujoco.dataset_names())
def test_columns_have_names_that_fit_the_environment(name):
    require_mujoco()
    environment = make_environment(environment_of(name))
    columns = columns_of(environment)
    assert environment.observation_space.shape == (len(set(columns.observation_names)),)
    assert environment.action_space.shape == (len(set(columns.action_names)),)
    assert not columns.observation_names[0].startswith("observation")
    environment.close()


def test_a_name_stands_for_an_expert_with_mistakes():
    assert gymnasium_recipe_of("mujoco/hopper") == GymnasiumRecipe(
        environment="Hopper-v4",
        policy="expert",
        random_share=0.3,
        noise=0.3,
        transitions=1_000_000,
    )
    assert gymnasium_recipe_of("mujoco/swimmer", transitions=10).transitions == 10


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'mujoco/hopper'"):
        gymnasium_recipe_of("mujoco/hoper")
    with pytest.raises(ConfigError, match="choose one of: mujoco/hopper, mujoco/swimmer"):
        gymnasium_recipe_of("mujoco/ant")


def test_what_the_data_sets_earn_is_what_was_measured_of_them():
    table = Path(__file__).parents[2] / "results" / "mujoco" / "table.csv"
    rows = csv.DictReader(table.read_text().splitlines())
    # Of whole groups of ten episodes, so that the last few may be left out.
    measured = {row["data"]: float(row["mean"]) for row in rows if row["row"] == "behaviour"}
    assert set(measured) == set(mujoco.dataset_names())
    for name, mean in measured.items():
        assert mujoco.batch_return(name) == pytest.approx(mean, abs=0.1)


@pytest.mark.parametrize(
    ("name", "least"), [("mujoco/swimmer", 60), ("mujoco/hopper", 500), ("mujoco/walker2d", 1000)]
)
def test_the_experts_of_the_program_know_their_trade(name, least):
    require_mujoco()
    environment = make_environment(environment_of(name))
    expert = find_expert(environment_of(name))
    low, high = environment.action_space.low, environment.action_space.high
    returns = []
    for seed in range(3):
        frame, _ = environment.reset(seed=seed)
        total, is_over = 0.0, False
        while not is_over:
            action = low + (expert.act(frame) + 1) / 2 * (high - low)
            frame, reward, terminated, truncated, _ = environment.step(action)
            total, is_over = total + reward, terminated or truncated
        returns.append(total)
    environment.close()
    assert sum(returns) / 3 > least, returns
