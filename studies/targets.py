"""What models should learn, a signal's next value or its change: held-out errors of both.

For each data set two ensembles are fitted to the same episodes with the same settings and then run
freely along logged actions of episodes that neither has seen. Errors are in deviations of the
signal. Interrupt it, start it again: it goes on.

    python studies/targets.py --out runs/targets --results results/targets

At the paper's size that takes hours; shorter with ``--set dynamics.members=2 --set
dynamics.epochs=10``.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from moose.algorithms.moose import Config
from moose.config import load_settings
from moose.data.split import split_episodes
from moose.envs.catalog import find_dataset
from moose.envs.recipes import cache_folder
from moose.experiments.journal import RunJournal
from moose.experiments.runner import key_of
from moose.models.accuracy import ModelErrors, measure_model_errors
from moose.models.ensembles import fit_digest, fit_ensemble, init_ensemble, make_model, ready
from moose.progress import Progress, make_progress
from moose.storage import atomic_file
from moose.tasks.registry import task_of
from moose.tasks.task import Task

DATASETS = ("mujoco/swimmer", "mujoco/hopper", "mujoco/walker2d")
TARGETS = ("direct", "delta")
STEPS = (1, 5, 20)
SEGMENTS = 2000
COLUMNS = ("data", "signal", "steps", *TARGETS, "no_change")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit what is missing, measure it, write the table and print its means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the fits")
    parser.add_argument("--results", type=Path, required=True, help="folder of the table")
    parser.add_argument("--data", default=",".join(DATASETS), help="data sets (%(default)s)")
    parser.add_argument("--set", action="append", default=[], help="a setting, such as held_out=.2")
    chosen = parser.parse_args(arguments)
    config = load_settings(Config, overrides=chosen.set)
    progress = make_progress(sys.stderr)
    rows = []
    for data in chosen.data.split(","):
        found, task = errors_of(data, config, chosen.out / data.replace("/", "-"), progress)
        rows += table_of(data, task, found)
    write(rows, chosen.results)
    for data in chosen.data.split(","):
        for steps in STEPS:
            means = {
                target: np.mean(
                    [row[target] for row in rows if row["data"] == data and row["steps"] == steps]
                )
                for target in TARGETS
            }
            shown = ", ".join(f"{target} {mean:.3f}" for target, mean in means.items())
            print(f"{data}, {steps} steps, mean over signals: {shown}")


def errors_of(
    data: str, config: Config, folder: Path, progress: Progress
) -> tuple[dict[str, ModelErrors], Task]:
    """The errors of both kinds of models on a data set."""
    dataset = find_dataset(data, progress=progress)
    train, held_out = split_episodes(dataset.num_episodes, config.held_out, config.split_seed)
    training, others = dataset.select_episodes(train), dataset.select_episodes(held_out)
    key, found = key_of(0), {}
    for target in TARGETS:
        # Rewards are not looked at: said to be known, no models of them are fitted.
        task = dataclasses.replace(
            task_of(dataset.provenance), target=target, reward=lambda *step: jnp.zeros(())
        )
        journal = RunJournal(folder / target, cache_folder())
        ensemble = journal.once(
            "models",
            fit_digest(training, task, config.dynamics, key),
            init_ensemble(training, task, config.dynamics, key),
            lambda task=task, journal=journal: fit_ensemble(
                training, task, config.dynamics, key, progress=progress, journal=journal
            ),
        )
        found[target] = measure_model_errors(
            make_model(task, ensemble.scales),
            ready(ensemble.members),
            others,
            task,
            horizon=max(STEPS),
            num_starts=SEGMENTS,
            key=jax.random.key(0),
        )
    return found, task


def table_of(
    data: str, task: Task, found: Mapping[str, ModelErrors]
) -> list[dict[str, str | int | float]]:
    """One row a signal and number of steps."""
    return [
        {"data": data, "signal": task.observation_names[column], "steps": steps}
        | {target: float(errors.by_step[steps - 1, i]) for target, errors in found.items()}
        | {"no_change": float(found[TARGETS[0]].baseline[steps - 1, i])}
        for i, column in enumerate(task.predicted)
        for steps in STEPS
    ]


def write(rows: Sequence[Mapping[str, str | int | float]], results: Path) -> None:
    """The table as CSV."""
    results.mkdir(parents=True, exist_ok=True)
    with (
        atomic_file(results / "targets.csv") as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as stream,
    ):
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        for row in rows:
            numbers = {name: f"{row[name]:.4f}" for name in (*TARGETS, "no_change")}
            writer.writerow({**row, **numbers})


if __name__ == "__main__":
    main()
