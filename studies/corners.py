"""What the Industrial Benchmark pays a policy that is stuck in a corner of its actions' box.

DDPG, which nothing holds to the data, ends in such a corner. Returns are those of constant actions
along 100 steps from a reset, the mean of some episodes, by discount.

    python studies/corners.py --results results/corners
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from moose.envs.collect import episode_keys, make_player
from moose.envs.plants import make_industrial_benchmark
from moose.evaluation.protocol import discounted_sum
from moose.storage import atomic_file
from moose.types import Key, Params, Plant

DISCOUNTS = (0.97, 0.98, 0.99, 1.0)
EPISODES = 200
STEPS = 100


def main(arguments: Sequence[str] | None = None) -> None:
    """Play every corner, write the table and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True, help="folder of the table")
    parser.add_argument("--episodes", type=int, default=EPISODES, help="episodes (%(default)s)")
    chosen = parser.parse_args(arguments)
    rows = rows_of(make_industrial_benchmark(), chosen.episodes)
    chosen.results.mkdir(parents=True, exist_ok=True)
    with (
        atomic_file(chosen.results / "corners.csv") as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as stream,
    ):
        writer = csv.DictWriter(stream, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))


def rows_of(plant: Plant, episodes: int) -> list[dict[str, str]]:
    """One row a corner: the actions, and the return for each discount."""

    def act(corner: Params, window: jax.Array, key: Key) -> jax.Array:
        return jnp.asarray(corner)

    play = jax.jit(make_player(plant, act, history=1, steps=STEPS))
    keys = episode_keys(jax.random.key(0), 0, episodes)
    rows = []
    for corner in itertools.product((-1.0, 1.0), repeat=len(plant.action_names)):
        rewards = play(jnp.asarray(corner, jnp.float32), keys).rewards
        actions = zip(plant.action_names, corner, strict=True)
        returns = {f"γ = {by:g}": np.mean(discounted_sum(rewards, by)) for by in DISCOUNTS}
        rows.append(
            {name: f"{value:g}" for name, value in actions}
            | {name: f"{value:.1f}" for name, value in returns.items()}
        )
    return rows


if __name__ == "__main__":
    main()
