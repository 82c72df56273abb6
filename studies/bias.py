"""Model bias with and without the penalty: the paper's claim, measured in the true plant.

Two ordinary runs for each data set, on the same fitted models: the preset ``paper`` and the
unpenalised ablation (λ = 1, with the step size lowered so that a step along the return is as long
as in ``paper``). Interrupt it, start it again: it goes on. Shortened runs by default. The runs of
MOOSE in a grid's folder can be measured instead.

    python studies/bias.py --out runs/bias --results results/bias
    python studies/bias.py --out runs/bias-full --results results/bias-full --full
    python studies/bias.py --grid runs/reproduction --results results/reproduction-bias
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from moose.algorithms.moose import SearchSettings
from moose.data.split import split_episodes
from moose.evaluation.bias import ModelBias, measure_bias
from moose.experiments import runner
from moose.experiments.diagnosis import load_fitted
from moose.experiments.evaluate import plant_of
from moose.experiments.run_figures import draw_bias
from moose.experiments.run_folder import METRICS, read_evaluations, read_run
from moose.models.actor import choose_action, input_scale
from moose.models.ensembles import make_model, ready
from moose.progress import Progress, make_progress
from moose.storage import atomic_file

DATASETS = ("ib/bad-0.2", "ib/mediocre-0.4")
SHORT = ["search.start_states=12", "search.updates=300", "search.checks=30"]
PAPER = SearchSettings()
VARIANTS = {
    "penalised": [],
    "unpenalised": [
        "search.return_weight=1",
        f"search.learning_rate={PAPER.learning_rate * PAPER.return_weight}",
    ],
}
EPISODES = 200
TENTHS = 10
METRICS_KEPT = ("imagined_return", "penalty")
COLUMNS = ("data", "variant", "bias", "imagined_return", "true_return", "over_promise")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, measure them, write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--out", type=Path, help="folder of the runs to make")
    source.add_argument("--grid", type=Path, help="folder of a grid whose runs to measure")
    parser.add_argument("--results", type=Path, required=True, help="folder of table and picture")
    parser.add_argument("--data", default=",".join(DATASETS), help="data sets (%(default)s)")
    parser.add_argument("--set", action="append", default=[], help="a setting for all runs")
    parser.add_argument("--full", action="store_true", help="the paper's size instead of a short")
    chosen = parser.parse_args(arguments)
    progress = make_progress(sys.stderr)
    if chosen.grid:
        write(biases_in(chosen.grid, progress), chosen.results)
        write_training(chosen.grid, chosen.results)
        return
    common = [] if chosen.full else SHORT
    biases: dict[str, dict[str, ModelBias]] = {}
    for data in chosen.data.split(","):
        biases[data] = {}
        for variant, overrides in VARIANTS.items():
            folder = chosen.out / data.replace("/", "-") / variant
            request = runner.make_request(
                data, algorithm="moose", overrides=[*common, *overrides, *chosen.set]
            )
            runner.continue_run(request, folder, progress=progress)
            biases[data][variant] = bias_of(folder, progress)
    write(biases, chosen.results)


def write_training(grid: Path, results: Path) -> None:
    """How the same runs went: means over each tenth of the updates."""
    rows = []
    for folder in finished_runs(grid):
        request = read_run(folder).request
        lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
        policy = [line for line in lines if line["stage"] == "policy"]
        size = (max(line["step"] for line in policy) + 1) / TENTHS
        for tenth in range(TENTHS):
            own = [line for line in policy if int(line["step"] // size) == tenth]
            played = [
                np.mean(line["returns"])
                for line in read_evaluations(folder)
                if tenth * size < line["step"] <= (tenth + 1) * size
            ]
            numbers = [np.mean([line[name] for line in own]) for name in METRICS_KEPT]
            rows.append([request.data, request.seed, round((tenth + 1) * size), *numbers])
            rows[-1].append(np.mean(played) if played else np.nan)
    columns = ("data", "seed", "updates", *METRICS_KEPT, "true_return")
    write_table(results / "training.csv", columns, rows, digits=3)


def finished_runs(grid: Path) -> list[Path]:
    """The finished runs of MOOSE in a grid's folder."""
    found = [
        file.parent
        for file in sorted(grid.glob("runs/*/manifest.json"))
        if read_run(file.parent).request.algorithm == "moose" and runner.is_finished(file.parent)
    ]
    if not found:
        sys.exit(f"there is no finished run of MOOSE in {grid}: name the --out of 'moose grid run'")
    return found


def biases_in(grid: Path, progress: Progress) -> dict[str, dict[str, ModelBias]]:
    """Of the finished runs of MOOSE in a grid's folder."""
    found: dict[str, dict[str, ModelBias]] = {}
    for folder in finished_runs(grid):
        request = read_run(folder).request
        bias = bias_of(folder, progress)
        found.setdefault(request.data, {})[f"seed {request.seed}"] = bias
    return found


def bias_of(folder: Path, progress: Progress) -> ModelBias:
    """The bias of a run's final policy."""
    fitted, dataset, task, config = load_fitted(folder, progress=progress)
    train, _ = split_episodes(dataset.num_episodes, config.held_out, config.split_seed)
    return measure_bias(
        lambda window: choose_action(fitted.actor, task, window),
        make_model(task, fitted.ensemble.scales),
        ready(fitted.ensemble.members),
        # Not the models' own: the unit has to be the same for all kinds of them.
        input_scale(dataset.select_episodes(train), "standardised"),
        task,
        plant_of(dataset.provenance),
        episodes=EPISODES,
        key=jax.random.key(0),
    )


def write(biases: Mapping[str, Mapping[str, ModelBias]], results: Path) -> None:
    """One line a policy, and the picture of the bias along a trajectory."""
    results.mkdir(parents=True, exist_ok=True)
    draw_bias(biases, results / "bias.svg")
    rows = [
        (data, variant, bias.total, bias.imagined_return, bias.true_return, bias.over_promise)
        for data, variants in biases.items()
        for variant, bias in variants.items()
    ]
    write_table(results / "bias.csv", COLUMNS, rows, digits=2)


def write_table(
    file: Path, columns: Sequence[str], rows: Iterable[Sequence[object]], *, digits: int
) -> None:
    """Rows as CSV, fractions with so many digits."""
    with (
        atomic_file(file) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as stream,
    ):
        writer = csv.writer(stream)
        writer.writerow(columns)
        for row in rows:
            writer.writerow(f"{v:.{digits}f}" if isinstance(v, float) else v for v in row)


if __name__ == "__main__":
    main()
