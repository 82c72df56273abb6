"""Recurrent models against the paper's networks: held-out errors of free runs, and training time.

Both ensembles are fitted to the same episodes of a data set, one after the other in this process,
and run freely along logged actions of episodes that neither has seen. Errors are in deviations of
the signal. The paper's are those of its preset: stacked frames, 400 and 300 units, 50 epochs.

    NPROC=1 python benchmarks/model_kinds.py --data ib/bad-0.2,ib/optimized-0.4 --json FILE
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from moose.algorithms import lion, moose
from moose.config import load_settings, settings_tree
from moose.data.dataset import Dataset
from moose.data.split import split_episodes
from moose.envs.catalog import find_dataset
from moose.experiments.runner import key_of, versions
from moose.models.accuracy import ModelErrors, measure_model_errors
from moose.models.ensembles import DynamicsSettings, fit_ensemble, make_model, ready
from moose.tasks.registry import task_of
from moose.tasks.task import Task

DATASETS = ("ib/bad-0.2", "ib/mediocre-0.4", "ib/optimized-0.4", "ib/global-1.0")
HORIZON = 50
STEPS = (1, 10, 50)
SEGMENTS = 1000


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit and measure both, print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=",".join(DATASETS), help="data sets (%(default)s)")
    parser.add_argument("--set", action="append", default=[], help="a setting of both ensembles")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    chosen = parser.parse_args(arguments)
    kinds = {
        name: load_settings(DynamicsSettings, base=settings_tree(own), overrides=chosen.set)
        for name, own in (
            ("recurrent", lion.Config().dynamics),
            ("paper", moose.Config().dynamics),
        )
    }
    found = []
    for data in chosen.data.split(","):
        dataset = find_dataset(data)
        task = task_of(dataset.provenance)
        row: dict[str, Any] = {"data": data}
        for name, settings in kinds.items():
            row[name] = measure(dataset, task, settings)
        row["error_ratio"] = {
            signal: {
                str(step): ratio(*(row[name]["errors"][signal][str(step)] for name in kinds))
                for step in STEPS
            }
            for signal in task.predicted_names
        }
        row["time_ratio"] = row["recurrent"]["cpu_seconds"] / row["paper"]["cpu_seconds"]
        found.append(row)
        told = "; ".join(
            f"{signal} {ratios[str(HORIZON)]:.2f}" for signal, ratios in row["error_ratio"].items()
        )
        print(
            f"{data}: recurrent against the paper's networks: processor time "
            f"{row['time_ratio']:.2f} times, error after {HORIZON} steps: {told} times",
            flush=True,
        )
    if chosen.json:
        content = {"versions": versions(), "segments": SEGMENTS, "rows": found}
        chosen.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def ratio(error: float, rival: float) -> float:
    """One error in units of another; a rival without any error cannot be beaten."""
    return error / rival if rival else (1.0 if error == 0 else float("inf"))


def measure(dataset: Dataset, task: Task, settings: DynamicsSettings) -> dict[str, Any]:
    """Errors after some steps for each signal, and the time that the fit took."""
    train, held_out = split_episodes(dataset.num_episodes, 0.1, 0)
    begun = time.process_time()
    ensemble = fit_ensemble(dataset.select_episodes(train), task, settings, key_of(0))
    jax.block_until_ready(ensemble.members)
    seconds = time.process_time() - begun
    errors = measure_model_errors(
        make_model(task, ensemble.scales),
        ready(ensemble.members),
        dataset.select_episodes(held_out),
        task,
        horizon=HORIZON,
        num_starts=SEGMENTS,
        key=jax.random.key(1),
    )
    return {
        "cpu_seconds": round(seconds, 1),
        "errors": _by_signal(errors, task),
        "no_change": {
            name: round(float(errors.baseline[-1, i]), 4)
            for i, name in enumerate(task.predicted_names)
        },
    }


def _by_signal(errors: ModelErrors, task: Task) -> dict[str, dict[str, float]]:
    return {
        name: {
            str(step): round(float(np.asarray(errors.by_step)[step - 1, i]), 4) for step in STEPS
        }
        for i, name in enumerate(task.predicted_names)
    }


if __name__ == "__main__":
    main()
