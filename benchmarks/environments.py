"""How many steps a second the MuJoCo environments give, as bare loops and as our data sets.

Run from the root of the repository, with the extra ``mujoco``::

    python benchmarks/environments.py                  # a table
    python benchmarks/environments.py --json           # the same numbers for a program
    python benchmarks/environments.py --steps 1000 --repeats 1

Everything runs in this one process, which ``simulator`` pins to one core, in turn; of the repeats
the fastest counts. The rival is Gymnasium's own loop: sample an action, step, reset when an episode
ends, keep nothing. Beside it stand our data sets of random play and of the committed experts,
whole: acting, noise, copying frames, and the data set at the end. A ratio of 1 would mean that all
this costs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from moose.envs import mujoco
from moose.envs.gymnasium_plants import (
    make_environment,
    make_gymnasium_dataset,
    versions_of_plant,
)
from moose.envs.gymnasium_recipes import gymnasium_recipe_of
from simulator import Measurement, Work, measure, print_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = parse(arguments)
    report = {}
    for name in mujoco.dataset_names():
        works = [bare_loop(name, options.steps)]
        works += [dataset(name, policy, options.steps) for policy in ("random", "expert")]
        report[name] = measure(works, options.repeats)
    versions = versions_of_plant(next(iter(mujoco.ENVIRONMENTS.values())))  # the same for all
    if options.json:
        print(json.dumps({"versions": versions, **as_json(report)}, indent=2))
        return 0
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    for name, rows in report.items():
        print(f"\n{name}")
        print_table(rows)
        shares = [f"{row.name} {ratio(row, rows[0]):.2f}" for row in rows[1:]]
        print(f"of the bare loop: {', '.join(shares)}")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000, help="steps a repeat (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="fastest of (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args(arguments)


def bare_loop(name: str, num_steps: int) -> Work:
    """Random actions, drawn by the environment itself; nothing is kept."""

    def run() -> None:
        recipe = gymnasium_recipe_of(name)
        with contextlib.closing(make_environment(recipe.environment)) as environment:
            environment.reset(seed=0)
            environment.action_space.seed(0)
            for _ in range(num_steps):
                step = environment.step(environment.action_space.sample())
                if step[2] or step[3]:
                    environment.reset()

    return Work("bare loop", num_steps, run)


def dataset(name: str, policy: str, num_steps: int) -> Work:
    """A data set of ours."""
    recipe = gymnasium_recipe_of(name, policy=policy, transitions=num_steps)
    return Work(f"{policy} data set", num_steps, lambda: make_gymnasium_dataset(recipe))


def ratio(row: Measurement, rival: Measurement) -> float:
    """Steps a second, relative to another's."""
    return row.steps_per_second / rival.steps_per_second


def as_json(report: dict[str, list[Measurement]]) -> dict[str, list[dict[str, object]]]:
    """All numbers."""
    return {
        name: [{**asdict(row), "ratio": ratio(row, rows[0])} for row in rows]
        for name, rows in report.items()
    }


if __name__ == "__main__":
    sys.exit(main())
