"""Search for the constant steerings that earn most in the Industrial Benchmark at setpoint 70.

    python benchmarks/best_set_point.py

A coarse grid over (velocity, gain, shift), then ever finer grids with ever more episodes around the
best point so far; all points of a grid meet the same random numbers. Prints the best points of each
grid, and what the last winner and ``moose.envs.behaviour.BEST_SET_POINT`` earn with other random
numbers. Takes about two minutes.
"""

from __future__ import annotations

import itertools
import time

import jax
import numpy as np

from moose.envs import behaviour
from moose.envs.plants import make_industrial_benchmark
from moose.evaluation.protocol import make_evaluator
from moose.evaluation.statistics import mean_with_error
from moose.types import Key, Params

# Distance between neighbours, neighbours on either side, episodes.
REFINEMENTS = ((10.0, 10, 64), (4.0, 3, 512), (2.0, 3, 1024), (1.0, 2, 4096), (0.5, 2, 16384))


def main() -> None:
    """Run the search and print it."""
    plant = make_industrial_benchmark(70.0)

    def act(target: Params, window: jax.Array, key: Key) -> jax.Array:
        return behaviour.make_set_point(target[0], target[1], target[2])(window)

    best = np.full(3, 50.0)
    for spacing, reach, episodes in REFINEMENTS:
        started = time.monotonic()
        measure = make_evaluator(plant, act, history=behaviour.HISTORY, episodes=episodes)
        offsets = spacing * np.array(list(itertools.product(range(-reach, reach + 1), repeat=3)))
        points = np.unique(np.clip(best + offsets, 0.0, 100.0), axis=0)
        means = [
            float(np.asarray(measure(point.astype(np.float32), jax.random.key(1))).mean())
            for point in points
        ]
        order = np.argsort(means)[::-1]
        best = points[order[0]]
        print(
            f"spacing {spacing:4}: {len(points):5} points x {episodes:5} episodes in "
            f"{time.monotonic() - started:5.1f} s; best:",
            *(f"{tuple(map(float, points[i]))} {means[i]:.3f}" for i in order[:4]),
            sep="\n    ",
        )
    # Other random numbers than the search had, so that the winner's luck does not count.
    measure = make_evaluator(plant, act, history=behaviour.HISTORY, episodes=100_000)
    for point in (best, np.asarray(behaviour.BEST_SET_POINT)):
        returns = measure(point.astype(np.float32), jax.random.key(2))
        mean, error = mean_with_error(np.asarray(returns))
        print(f"{tuple(map(float, point))}: {mean:.3f} +- {error:.3f} over 100,000 episodes")


if __name__ == "__main__":
    main()
