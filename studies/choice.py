"""The offline choice of LION's position, beside what the plant says of every position.

Takes the finished runs of a grid, tunes each from its log alone (``moose tune``) and puts the
evaluations of training, which the choice has not seen, beside it. A run that is in the results
already is not tuned again, so that it can be called while a grid goes on, and on another machine.

    python studies/choice.py --grid runs/dial --results results/choice

Writes ``runs.jsonl``, a line for each run; ``choice.csv``, a line for each data set: the 10th
percentile of the tails of all seeds at the advised positions, at the position that is best in
hindsight, and by simple rules; and ``choice.md``, the same as a table beside published figures.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moose.evaluation.statistics import tail_values
from moose.experiments import runner
from moose.experiments.paper_figures import place_of, published
from moose.experiments.references import describe_data
from moose.experiments.run_folder import read_evaluations, read_run
from moose.experiments.tuning import TuneSettings, tune_run, tune_settings
from moose.progress import Progress, make_progress
from moose.storage import atomic_file

DEVELOPED_ON = ("ib/bad-0.2", "ib/mediocre-0.2", "ib/optimized-0.4", "ib/bad-0.6")
"""The rule of choice and its weights were found on runs of these data sets."""
RECORDS = {
    "ib/bad-0.0": -76.5,
    "ib/bad-0.2": -95.6,
    "ib/bad-0.4": -101.9,
    "ib/bad-0.6": -77.7,
    "ib/bad-0.8": -70.0,
    "ib/mediocre-0.0": -70.4,
    "ib/mediocre-0.2": -65.4,
    "ib/mediocre-0.4": -68.9,
    "ib/mediocre-0.6": -68.4,
    "ib/mediocre-0.8": -61.6,
    "ib/global-1.0": -61.6,
    "ib/optimized-0.0": -59.5,
    "ib/optimized-0.2": -58.2,
    "ib/optimized-0.4": -58.5,
    "ib/optimized-0.6": -58.4,
    "ib/optimized-0.8": -58.7,
}
"""The best of all published figures, chosen with hindsight."""
KEPT = ("return", "low", "high", "lower_bound", "strayed", "apart", "new", "from_behaviour")
FIXED = 0.9
COLUMNS = (
    "data",
    "developed_on",
    "seeds",
    "log",
    "clone",
    "hold",
    "advised_positions",
    "advised",
    "lower_bounds_held",
    "best_position",
    "best",
    "regret",
    "regret_fixed",
    "regret_most_promising",
    "regret_least_spread",
    "paper",
    "record",
)

Run = Mapping[str, Any]
Rule = Callable[[Run], str]


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune the runs that are missing in the results, and write the tables anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grid", type=Path, required=True, help="folder of the grid's runs")
    parser.add_argument("--results", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--cache", type=Path, help="cache folder (default: the user's own)")
    parser.add_argument("--set", action="append", default=[], help="a setting of moose tune")
    chosen = parser.parse_args(arguments)
    settings = tune_settings(chosen.set)
    progress = make_progress(sys.stderr)
    chosen.results.mkdir(parents=True, exist_ok=True)
    file = chosen.results / "runs.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found = {run["digest"]: run for run in known}
    for folder in finished_runs(chosen.grid):
        if folder.name not in found:
            found[folder.name] = describe_run(folder, settings, chosen.cache, progress)
            write_lines(file, sorted(found.values(), key=lambda run: (run["data"], run["seed"])))
    if not found:
        sys.exit(f"there is no finished run of LION in {chosen.grid}")
    references = {
        data: describe_data(data, 10, cache=chosen.cache)
        for data in dict.fromkeys(run["data"] for run in found.values())
    }
    rows = [row_of(data, own, references[data]) for data, own in by_data(found.values())]
    write_table(chosen.results, rows)


def finished_runs(grid: Path) -> list[Path]:
    """The finished runs of LION in a grid's folder."""
    return [
        file.parent
        for file in sorted(grid.glob("runs/*/manifest.json"))
        if read_run(file.parent).request.algorithm == "lion" and runner.is_finished(file.parent)
    ]


def describe_run(
    folder: Path, settings: TuneSettings, cache: Path | None, progress: Progress
) -> dict[str, Any]:
    """What was imagined and what was earned at each position, and the advice."""
    request = read_run(folder).request
    tuned = tune_run(folder, settings, cache=cache, progress=progress, is_fresh=False).content
    evaluations = read_evaluations(folder)
    steps = [line["step"] for line in evaluations]
    names = list(evaluations[-1]["by_position"])
    tails = {
        name: tail_values(steps, [line["by_position"][name] for line in evaluations])
        for name in names
    }
    positions = {}
    for row in tuned["dial"]:
        name = min(names, key=lambda text: abs(float(text) - row["position"]))
        tail = [round(value, 3) for value in tails[name]]
        positions[name] = {key: row[key] for key in (*KEPT, "score")} | {"tail": tail}
    hold = tuned["hold"]
    return {
        "data": request.data,
        "seed": request.seed,
        "digest": folder.name,
        "advice": tuned["advice"],
        "positions": positions,
        "hold": None if hold is None else {key: hold[key] for key in KEPT},
    }


def by_data(runs: Sequence[Run] | Any) -> Iterator[tuple[str, list[Run]]]:
    """The runs of each data set."""
    ordered = sorted(runs, key=lambda run: (run["data"], run["seed"]))
    for data in dict.fromkeys(run["data"] for run in ordered):
        yield data, [run for run in ordered if run["data"] == data]


def row_of(data: str, runs: Sequence[Run], references: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the table."""
    hold = float(np.percentile(references["hold"], 10))

    names = list(runs[0]["positions"])

    def values_at(name: str, run: Run) -> Sequence[float]:
        """The tail at a position, or as many evaluations of never changing anything."""
        tail: list[float] = run["positions"][names[0] if name == "hold" else name]["tail"]
        return references["hold"][: len(tail)] if name == "hold" else tail

    def earned(rule: Rule) -> float:
        """The 10th percentile of the tails of all seeds, each at its own position."""
        values = [value for run in runs for value in values_at(rule(run), run)]
        return float(np.percentile(values, 10))

    def is_held(run: Run) -> bool:
        return bool(np.mean(values_at(advised(run), run)) >= run["advice"]["lower_bound"])

    best = max(names, key=lambda name: earned(lambda run: name))
    hindsight = max(earned(lambda run: best), hold)
    paper = published(place_of(data), "moose")
    return {
        "data": data,
        "developed_on": data in DEVELOPED_ON,
        "seeds": " ".join(str(run["seed"]) for run in runs),
        "log": references["batch"]["mean"],
        "clone": earned(lambda run: names[0]),
        "hold": hold,
        "advised_positions": " ".join(advised(run) for run in runs),
        "advised": earned(advised),
        "lower_bounds_held": f"{sum(map(is_held, runs))} of {len(runs)}",
        "best_position": best if hindsight > hold else "hold",
        "best": hindsight,
        "regret": hindsight - earned(advised),
        "regret_fixed": hindsight - earned(lambda run: nearest(run, FIXED)),
        "regret_most_promising": hindsight - earned(most_promising),
        "regret_least_spread": hindsight - earned(least_spread),
        "paper": paper and paper.percentile_10,
        "record": RECORDS.get(data),
    }


def advised(run: Run) -> str:
    """The offline choice: a position, or ``hold``."""
    position = run["advice"]["position"]
    return "hold" if position is None else nearest(run, position)


def nearest(run: Run, position: float) -> str:
    """The name of a position."""
    return min(run["positions"], key=lambda name: abs(float(name) - position))


def most_promising(run: Run) -> str:
    """The position of the highest imagined return."""
    return max(run["positions"], key=lambda name: run["positions"][name]["return"])


def least_spread(run: Run) -> str:
    """The position at which the models agree best."""
    rows = run["positions"]
    return min(rows, key=lambda name: rows[name]["high"] - rows[name]["low"])


def write_lines(file: Path, runs: Sequence[Run]) -> None:
    """A run a line."""
    text = "".join(json.dumps(run, separators=(",", ":")) + "\n" for run in runs)
    with atomic_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_table(results: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """As CSV, and in Markdown without the simple rules."""

    def text_of(value: Any) -> str:
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    with (
        atomic_file(results / "choice.csv") as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as stream,
    ):
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows({key: text_of(value) for key, value in row.items()} for row in rows)
    shown = [name for name in COLUMNS if name not in {"developed_on", "lower_bounds_held"}]
    lines = ["| " + " | ".join(shown) + " |", "|---" * len(shown) + "|"]
    lines += ["| " + " | ".join(text_of(row[name]) for name in shown) + " |" for row in rows]
    with atomic_file(results / "choice.md") as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
