"""Measure the returns that ``moose.envs.recipes`` gives as expected, with many episodes.

    python benchmarks/expected_returns.py [episodes]

One line for each behaviour: what is expected, the mean, its standard error and the deviation of
episodes. With the default of 400,000 episodes this takes some minutes.
"""

from __future__ import annotations

import sys

import jax
import numpy as np

from moose.envs import behaviour, recipes
from moose.envs.plants import make_industrial_benchmark
from moose.evaluation.protocol import make_evaluator
from moose.evaluation.statistics import mean_with_error
from moose.types import Key, Params

EPISODES_AT_A_TIME = 20_000


def main(episodes: int) -> None:
    """Play everything and print it."""
    policies = {
        **behaviour.POLICIES,
        "global": behaviour.hold,
        "hold": behaviour.hold,
        "set point": behaviour.make_set_point(*behaviour.BEST_SET_POINT),
    }
    expected = {
        **recipes.EXPECTED_RETURNS,
        ("hold", 0.0): recipes.EXPECTED_HOLD,
        ("set point", 0.0): recipes.EXPECTED_SET_POINT,
    }

    def act(params: Params, window: jax.Array, key: Key) -> jax.Array:
        index, epsilon = params

        def policy(window: jax.Array) -> jax.Array:
            return jax.lax.switch(index, list(policies.values()), window)

        return behaviour.make_exploring(policy, epsilon)(None, window, key)

    plant = make_industrial_benchmark(recipes.EXPECTED_SETPOINT)
    measure = make_evaluator(
        plant, act, history=behaviour.HISTORY, episodes=min(episodes, EPISODES_AT_A_TIME)
    )
    for (name, epsilon), value in expected.items():
        params = (list(policies).index(name), np.float32(epsilon))
        parts = [
            np.asarray(measure(params, jax.random.key(seed)), np.float64)
            for seed in range(max(1, episodes // EPISODES_AT_A_TIME))
        ]
        returns = np.concatenate(parts)
        mean, error = mean_with_error(returns)
        print(
            f"{name:>9} {epsilon}: expected {value:7.1f}, measured {mean:9.3f} +- {error:.3f}, "
            f"deviation {returns.std():.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000)
