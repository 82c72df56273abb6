"""How fast the Industrial Benchmark is simulated, against the original, on one core.

Run from the root of the repository::

    python benchmarks/simulator.py                     # a table
    python benchmarks/simulator.py --json              # the same numbers for a program
    python benchmarks/simulator.py --plants 100 --steps 500 --repeats 9

Both simulators run in this one process, pinned to one core, in turn; of the repeats the fastest
counts. Ours steps a batch of plants in single precision, drawing its noise as it goes; the original
(``industrial-benchmark-python``) steps one plant in double precision. Compilation is not counted.

Then a data set of 100,000 transitions is made and written, twice: the first time compiles, the
second is what every further data set of the process takes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# One core for everything: XLA sizes its thread pool when it is first imported.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ["NPROC"] = "1"

import jax
import jax.numpy as jnp
import numpy as np

from moose.data.files import save_dataset
from moose.envs import industrial_benchmark as plant
from moose.envs.catalog import make_dataset
from moose.envs.recipes import recipe_of

GOAL = 200.0
DATASET = "ib/mediocre-0.6"
DATASET_GOAL = 3.0  # seconds


@dataclass(frozen=True)
class Work:
    """Something to time: its name, the plant steps it makes, and a call that makes them."""

    name: str
    num_steps: int
    run: Callable[[], object]


@dataclass(frozen=True)
class Measurement:
    """One row of the table."""

    name: str
    num_steps: int
    seconds: float
    steps_per_second: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and fail if the goal is missed."""
    options = parse(arguments)
    original, ours = measure(
        [
            work_of_original(options.original_steps),
            work_of_ours(options.plants, options.steps),
        ],
        options.repeats,
    )
    ratio = ours.steps_per_second / original.steps_per_second
    datasets = measure_datasets()
    is_met = ratio >= GOAL and datasets["second"] <= DATASET_GOAL
    if options.json:
        print(json.dumps(as_json([original, ours], ratio, datasets) | {"is_met": is_met}, indent=2))
    else:
        print_table([original, ours])
        print(f"\nratio {ratio:,.0f}x, goal {GOAL:,.0f}x")
        print(
            f"{DATASET}, 100,000 transitions made and written: first {datasets['first']:.2f} s, "
            f"second {datasets['second']:.2f} s, goal {DATASET_GOAL:.0f} s after start-up"
        )
        print("goals met" if is_met else "goals MISSED")
    return 0 if is_met else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plants", type=int, default=1000, help="plants in a batch (%(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="steps of a batch (%(default)s)")
    parser.add_argument(
        "--original-steps", type=int, default=3000, help="steps of the original (%(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="fastest of (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args(arguments)


def measure(works: Sequence[Work], repeats: int) -> list[Measurement]:
    """The fastest of the repeats of each; they take turns, so that all meet the same machine."""
    seconds: dict[str, list[float]] = {work.name: [] for work in works}
    for work in works:
        work.run()  # warms up and compiles
    for _ in range(repeats):
        for work in works:
            start = time.perf_counter()
            work.run()
            seconds[work.name].append(time.perf_counter() - start)
    best = [min(seconds[work.name]) for work in works]
    return [
        Measurement(work.name, work.num_steps, least, work.num_steps / least)
        for work, least in zip(works, best, strict=True)
    ]


def work_of_ours(num_plants: int, num_steps: int) -> Work:
    """A batch of our plants under random actions, noise drawn inside the compiled loop."""

    @jax.jit
    def simulate(key: jax.Array, actions: jax.Array) -> jax.Array:
        def advance(
            states: plant.State, inputs: tuple[jax.Array, jax.Array]
        ) -> tuple[plant.State, jax.Array]:
            step, action = inputs
            keys = jax.random.split(jax.random.fold_in(key, step), num_plants)
            noises = jax.vmap(plant.draw_noise)(keys)
            states = jax.vmap(plant.step)(states, action, noises)
            return states, jax.vmap(plant.observe)(states)

        first_keys = jax.random.split(jax.random.fold_in(key, num_steps), num_plants)
        first = jax.vmap(plant.draw_noise)(first_keys)
        states = jax.vmap(lambda noise: plant.reset(70.0, noise))(first)
        return jax.lax.scan(advance, states, (jnp.arange(num_steps), actions))[1]

    shape = (num_steps, num_plants, 3)
    plan = jax.random.uniform(jax.random.key(1), shape, minval=-1.0, maxval=1.0)

    def run() -> None:
        simulate(jax.random.key(0), plan).block_until_ready()

    return Work(f"moose, {num_plants:,} plants", num_plants * num_steps, run)


def work_of_original(num_steps: int) -> Work:
    """One plant of the original under random actions."""
    from industrial_benchmark_python import IDS as module  # type: ignore[import-untyped]  # noqa: N811

    class NumpyWithFloat:
        """NumPy with the ``float`` that the original still wants."""

        float = float

        def __getattr__(self, name: str) -> object:
            return getattr(np, name)

    module.np = NumpyWithFloat()
    simulator = module.IDS(p=70.0, inital_seed=0)
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (num_steps, 3))

    def run() -> None:
        for action in actions:
            simulator.step(action)

    return Work("original, 1 plant", num_steps, run)


def measure_datasets() -> dict[str, float]:
    """Seconds to make and write a data set, the first time and the second."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed, name in enumerate(("first", "second")):
            start = time.perf_counter()
            save_dataset(make_dataset(recipe_of(DATASET, seed=seed)), Path(folder) / name)
            seconds[name] = time.perf_counter() - start
    return seconds


def as_json(
    rows: Sequence[Measurement], ratio: float, datasets: dict[str, float]
) -> dict[str, object]:
    """What ``--json`` prints."""
    return {
        "measurements": [asdict(row) for row in rows],
        "ratio": ratio,
        "goal": GOAL,
        "dataset_seconds": datasets,
        "dataset_goal": DATASET_GOAL,
    }


def print_table(rows: Sequence[Measurement]) -> None:
    """One line per measurement."""
    print(f"{'simulator':<22}{'steps':>12}{'seconds':>10}{'steps/s':>14}")
    for row in rows:
        print(
            f"{row.name:<22}{row.num_steps:>12,}{row.seconds:>10.3f}{row.steps_per_second:>14,.0f}"
        )


if __name__ == "__main__":
    sys.exit(main())
