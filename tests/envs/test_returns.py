"""What the behaviours earn is what the table says they earn."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from moose.envs import behaviour, recipes
from moose.envs.plants import make_industrial_benchmark
from moose.evaluation.protocol import make_evaluator
from moose.evaluation.statistics import mean_with_error

EPISODES = 4096
ROUNDING = 0.05  # the table has one decimal
POLICIES = {
    **behaviour.POLICIES,
    "global": behaviour.hold,
    "hold": behaviour.hold,
    "set point": behaviour.make_set_point(*behaviour.BEST_SET_POINT),
}
EXPECTED = {
    **recipes.EXPECTED_RETURNS,
    ("hold", 0.0): recipes.EXPECTED_HOLD,
    ("set point", 0.0): recipes.EXPECTED_SET_POINT,
}


@pytest.fixture(scope="module")
def measure():
    """One compiled program for all behaviours: who acts and how often at random are parameters."""

    def act(params, window, key):
        index, epsilon = params
        policy = lambda window: jax.lax.switch(index, list(POLICIES.values()), window)  # noqa: E731
        return behaviour.make_exploring(policy, epsilon)(None, window, key)

    plant = make_industrial_benchmark(recipes.EXPECTED_SETPOINT)
    return make_evaluator(plant, act, history=behaviour.HISTORY, episodes=EPISODES)


@pytest.mark.parametrize(("name", "epsilon"), EXPECTED)
def test_mean_returns_are_the_expected_ones(measure, name, epsilon):
    params = (list(POLICIES).index(name), np.float32(epsilon))
    mean, error = mean_with_error(measure(params, jax.random.key(2024)))
    assert abs(mean - EXPECTED[name, epsilon]) <= 3 * error + ROUNDING


def test_the_best_set_point_is_better_than_its_neighbours():
    def act(target, window, key):
        return behaviour.make_set_point(*target)(window)

    plant = make_industrial_benchmark(recipes.EXPECTED_SETPOINT)
    measure = make_evaluator(plant, act, history=behaviour.HISTORY, episodes=1024)
    neighbours = behaviour.BEST_SET_POINT + np.kron(np.eye(3), [[2.0], [-2.0]])
    best, *others = (
        float(measure(np.float32(point), jax.random.key(7)).mean())
        for point in (behaviour.BEST_SET_POINT, *neighbours)
    )
    assert best > max(others)
