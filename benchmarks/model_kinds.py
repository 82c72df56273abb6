"""Recurrent models against the paper's networks: held-out errors of free runs, and training time.

Both ensembles are fitted to the same episodes of a data set, one after the other in this process,
and run freely along logged actions of episodes that neither has seen. Errors are in deviations of
the signal. The paper's are those of its preset: stacked frames, 400 and 300 units, 50 epochs.

Errors along logged actions say little about a policy that does something else. On the Industrial
Benchmark the models are therefore also asked about policies that drive the steerings to a place
within the log's range and stay there, beside what the plant does then.

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
import jax.numpy as jnp
import numpy as np

from moose.algorithms import lion, moose
from moose.config import load_settings, settings_tree
from moose.data.dataset import Dataset
from moose.data.split import split_episodes
from moose.envs.catalog import find_dataset
from moose.envs.collect import episode_keys, make_player
from moose.envs.industrial_benchmark import FRAME_NAMES, STEERING_STEPS
from moose.envs.plants import make_industrial_benchmark
from moose.evaluation.protocol import discounted_sum
from moose.experiments.runner import key_of, versions
from moose.models.accuracy import ModelErrors, measure_model_errors
from moose.models.ensembles import (
    AnyEnsemble,
    DynamicsSettings,
    fit_ensemble,
    make_model,
    ready,
)
from moose.models.rollout import imagine_each
from moose.tasks.registry import task_of
from moose.tasks.task import Task

DATASETS = ("ib/bad-0.2", "ib/mediocre-0.4", "ib/optimized-0.4", "ib/global-1.0")
HORIZON = 50
STEPS = (1, 10, 50)
SEGMENTS = 1000
PLACES, EPISODES = 60, 40
STEERINGS = slice(1, 4)


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
        if "elsewhere" in row["recurrent"]:
            promised = ", ".join(
                f"{name} {row[name]['elsewhere']['over_promise']:+.2f}" for name in kinds
            )
            print(f"{data}: promised too much for going somewhere and staying there: {promised}")
    if chosen.json:
        sizes = {"segments": SEGMENTS, "places": PLACES, "episodes": EPISODES}
        content = {"versions": versions(), **sizes, "rows": found}
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
    elsewhere = {}
    if dataset.observation_names == FRAME_NAMES:
        elsewhere["elsewhere"] = measure_elsewhere(dataset, task, ensemble)
    return {
        **elsewhere,
        "cpu_seconds": round(seconds, 1),
        "errors": _by_signal(errors, task),
        "no_change": {
            name: round(float(errors.baseline[-1, i]), 4)
            for i, name in enumerate(task.predicted_names)
        },
    }


def measure_elsewhere(dataset: Dataset, task: Task, ensemble: AnyEnsemble) -> dict[str, Any]:
    """What models make of going to a place and staying there, beside the true plant.

    Returns:
        For each signal the error of the mean course, root mean square in raw units; and how much
        more is promised than the plant pays, mean and deviation over places.
    """
    seen = dataset.observations[:, STEERINGS]
    low, high = np.quantile(seen, [0.05, 0.95], axis=0)
    drawn = np.random.default_rng(0).uniform(low, high, (PLACES, len(low)))
    places, steps = jnp.asarray(drawn, jnp.float32), jnp.asarray(STEERING_STEPS, jnp.float32)

    def go(place: jax.Array, window: jax.Array, key: Any = None) -> jax.Array:
        return jnp.clip((place - window[0, STEERINGS]) / steps, -1.0, 1.0)

    play = make_player(
        make_industrial_benchmark(setpoint=70.0), go, history=task.history, steps=task.horizon
    )
    keys = episode_keys(jax.random.key(2), 0, EPISODES)
    true = jax.vmap(play, (0, None))(places, keys)  # [P, E, H + 1, n]
    starts = jnp.repeat(true.frames[:, 0, :1], task.history, axis=1)
    imagined, _ = jax.jit(
        lambda starts: imagine_each(
            lambda window, place: (go(place, window), None),
            make_model(task, ensemble.scales),
            ready(ensemble.members),
            starts,
            places,
            task.horizon,
        )
    )(starts)
    guess = np.asarray(imagined.frames[task.history :]).mean(axis=1)  # [H, P, n]
    truth = np.moveaxis(np.asarray(true.frames[:, :, 1:]).mean(axis=1), 1, 0)
    promised = discounted_sum(jnp.moveaxis(imagined.rewards, 0, -1), task.discount).mean(axis=0)
    paid = discounted_sum(true.rewards, task.discount).mean(axis=1)
    excess = np.asarray(promised - paid)
    errors = np.sqrt(np.mean((guess - truth) ** 2, axis=(0, 1)))
    return {
        "errors": {
            name: round(float(errors[column]), 3)
            for name, column in zip(task.predicted_names, task.predicted, strict=True)
        },
        "over_promise": round(float(excess.mean()), 3),
        "over_promise_deviation": round(float(excess.std()), 3),
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
