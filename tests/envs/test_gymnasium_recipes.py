"""What names of Gymnasium data sets stand for."""

from __future__ import annotations

import pytest

from moose.envs.gymnasium_recipes import GymnasiumRecipe, gymnasium_recipe_of, is_gymnasium
from moose.envs.recipes import any_recipe_of, recipe_of
from moose.errors import ConfigError, UserError


def test_a_name_stands_for_a_recipe():
    assert gymnasium_recipe_of("gym/Hopper-v4") == GymnasiumRecipe(environment="Hopper-v4")
    assert gymnasium_recipe_of("gym/space/Rocket-v2", seed=4).environment == "space/Rocket-v2"
    assert any_recipe_of("gym/Hopper-v4", transitions=5).transitions == 5
    assert any_recipe_of("ib/bad-0.2") == recipe_of("ib/bad-0.2")


def test_a_label_can_be_the_name_of_a_folder():
    recipe = GymnasiumRecipe(environment="space/Rocket-v2")
    assert recipe.label == "gym-space-Rocket-v2-random"


# Gymnasium would import the module before a colon: a data set must not be able to ask for that.
@pytest.mark.parametrize("name", ["gym/os:Evil-v0", "gym/", "gym/a/b/c-v0", "gym/a b-v0", "Hopper"])
def test_other_names_are_refused(name):
    with pytest.raises(ConfigError, match="not the name of a Gymnasium environment"):
        gymnasium_recipe_of(name)


def test_a_recipe_refuses_them_too():
    with pytest.raises(UserError, match="registered name"):
        gymnasium_recipe_of("gym/Hopper-v4", environment="os:Evil-v0")


def test_only_the_prefix_counts():
    assert is_gymnasium("gym/anything")
    assert not is_gymnasium("ib/bad-0.2")
