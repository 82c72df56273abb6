"""The offline choice of LION's position, beside what the plant says of every position.

Takes the finished runs of a grid, tunes each from its log alone (``moose tune``) and puts the
evaluations of training, which the choice has not seen, beside it. A run that is in the results
already is not tuned again, so that it can be called while a grid goes on, and on another machine.

    python studies/choice.py --grid runs/dial --results results/choice

Writes ``runs.jsonl``, a line for each run; ``choice.csv``, a line for each data set: the 10th
percentile of the tails of all seeds at the advised positions, at the position that is best in
hindsight, and by simple rules; and ``section.md``, the same beside published figures and what was
hoped for, which ``moose grid page`` puts on the page of results (not for other data sets than the
benchmark's own, of which nothing is published).
"""

from __future__ import annotations

import argparse
import csv
import itertools
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

DEVELOPED_ON = (
    "ib/bad-0.2",
    "ib/mediocre-0.2",
    "ib/optimized-0.4",
    "ib/bad-0.6",
    "ib/mediocre-0.8",
)
"""The rule of choice and its weights were found on runs of these data sets."""
LION_DEVELOPED_ON = (
    "ib/optimized-0.4",
    "ib/optimized-0.6",
    "ib/mediocre-0.8",
    "ib/bad-0.6",
    "ib/global-1.0",
)
"""How models are built and how wide policies are was chosen by what seed 1 earned here, truly."""
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
RECORDS_THAT_ARE_PERCENTILES = ("ib/bad-0.8", "ib/mediocre-0.4", "ib/optimized-0.2")
"""The others are means, read off a figure: our 10th percentiles have the harder task."""
KEPT = ("return", "low", "high", "lower_bound", "strayed", "apart", "new", "from_behaviour")
FIXED = 0.9
COLUMNS = (
    "data",
    "developed_on",
    "seeds",
    "log",
    "clone",
    "clone_mean",
    "hold",
    "advised_positions",
    "advised",
    "advised_mean",
    "on_dial",
    "lower_bounds_held",
    "lower_bounds_held_on_dial",
    "distance_grows",
    "best_position",
    "best",
    "best_mean",
    "regret",
    "regret_fixed",
    "regret_most_promising",
    "regret_most_promising_or_hold",
    "regret_least_spread",
    "paper",
    "record",
)

REGRETS = tuple(name for name in COLUMNS if name.startswith("regret"))

Run = Mapping[str, Any]
Row = Mapping[str, Any]
Rule = Callable[[Run], str]


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune the runs that are missing in the results, and write the tables anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grid", type=Path, required=True, help="folder of the grid's runs")
    parser.add_argument("--results", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--cache", type=Path, help="cache folder (default: the user's own)")
    parser.add_argument("--set", action="append", default=[], help="a setting of moose tune")
    chosen = parser.parse_args(arguments)
    if not chosen.grid.is_dir():
        parser.error(f"there is no folder {chosen.grid}; give that of a grid, such as runs/dial")
    settings = tune_settings(chosen.set)
    progress = make_progress(sys.stderr)
    chosen.results.mkdir(parents=True, exist_ok=True)
    file = chosen.results / "runs.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found = {(run["data"], run["seed"]): run for run in known}
    for folder in finished_runs(chosen.grid):
        request = read_run(folder).request
        place = (name_of(request.data), request.seed)
        # A run with other settings than this grid's, of an earlier version, gives way.
        if place not in found or found[place]["digest"] != folder.name:
            found[place] = describe_run(folder, settings, chosen.cache, progress)
            write_lines(file, sorted(found.values(), key=lambda run: (run["data"], run["seed"])))
    if not found:
        sys.exit(f"there is no finished run of LION in {chosen.grid}")
    references = {
        data: describe_data(data, 10, cache=chosen.cache)
        for data in dict.fromkeys(run["data"] for run in found.values())
    }
    rows = [row_of(data, own, references[data]) for data, own in by_data(found.values())]
    write_table(chosen.results / "choice.csv", rows)
    if all(row["record"] is not None for row in rows):
        with atomic_file(chosen.results / "section.md") as temporary:
            temporary.write_text(section_of(rows), encoding="utf-8")


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
        "data": name_of(request.data),
        "seed": request.seed,
        "digest": folder.name,
        "advice": tuned["advice"],
        "positions": positions,
        "hold": None if hold is None else {key: hold[key] for key in KEPT},
    }


def name_of(data: str) -> str:
    """A data set's name, or its folder as seen from here: results tell nothing of a machine."""
    folder, here = Path(data), Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else data


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

    def values_by(rule: Rule) -> list[float]:
        """The tails of all seeds, each at its own position."""
        return [value for run in runs for value in values_at(rule(run), run)]

    def earned(rule: Rule) -> float:
        return float(np.percentile(values_by(rule), 10))

    def is_held(run: Run) -> bool:
        return bool(np.mean(values_at(advised(run), run)) >= run["advice"]["lower_bound"])

    def keeps_growing(run: Run) -> bool:
        apart = [row["from_behaviour"] for row in run["positions"].values()]
        return all(low <= high for low, high in itertools.pairwise(apart))

    best = max((*names, "hold"), key=lambda name: earned(lambda run: name))
    hindsight = earned(lambda run: best)
    paper = published(place_of(data), "moose")
    return {
        "data": data,
        "developed_on": data in DEVELOPED_ON,
        "seeds": " ".join(str(run["seed"]) for run in runs),
        "log": references["batch"]["mean"],
        "clone": earned(lambda run: names[0]),
        "clone_mean": float(np.mean(values_by(lambda run: names[0]))),
        "hold": hold,
        "advised_positions": " ".join(advised(run) for run in runs),
        "advised": earned(advised),
        "advised_mean": float(np.mean(values_by(advised))),
        "on_dial": sum(advised(run) != "hold" for run in runs),
        "lower_bounds_held": sum(map(is_held, runs)),
        "lower_bounds_held_on_dial": sum(is_held(run) for run in runs if advised(run) != "hold"),
        "distance_grows": sum(map(keeps_growing, runs)),
        "best_position": best,
        "best": hindsight,
        "best_mean": float(np.mean(values_by(lambda run: best))),
        "regret": hindsight - earned(advised),
        "regret_fixed": hindsight - earned(lambda run: nearest(run, FIXED)),
        "regret_most_promising": hindsight - earned(most_promising),
        "regret_most_promising_or_hold": hindsight - earned(most_promising_or_hold),
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


def most_promising_or_hold(run: Run) -> str:
    """The same, unless holding is imagined to earn more."""
    name = most_promising(run)
    hold = run["hold"]
    is_less = hold is not None and run["positions"][name]["return"] < hold["return"]
    return "hold" if is_less else name


def least_spread(run: Run) -> str:
    """The position at which the models agree best."""
    rows = run["positions"]
    return min(rows, key=lambda name: rows[name]["high"] - rows[name]["low"])


def write_lines(file: Path, runs: Sequence[Run]) -> None:
    """A run a line."""
    text = "".join(json.dumps(run, separators=(",", ":")) + "\n" for run in runs)
    with atomic_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_table(file: Path, rows: Sequence[Row]) -> None:
    """As CSV."""

    def text_of(value: Any) -> str:
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    with (
        atomic_file(file) as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as stream,
    ):
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows({key: text_of(value) for key, value in row.items()} for row in rows)


def section_of(rows: Sequence[Row]) -> str:
    """The section of the page of results: the tables, and how far the goals were reached."""
    runs = [len(row["seeds"].split()) for row in rows]
    seeds = sorted({seed for row in rows for seed in row["seeds"].split()})
    earnings = [
        "data set",
        "behaviour",
        "clone",
        "hold",
        "paper's MOOSE",
        "record",
        "advised",
        "earns",
        "its mean",
        "best in hindsight",
        "earns",
        "its mean",
    ]
    regrets = [
        "data set",
        "advised",
        "always 0.9",
        "most promising",
        "most promising or hold",
        "least spread",
    ]
    untouched = [row for row in rows if not row["developed_on"]]
    lines = [
        "## The position chosen offline",
        "",
        f"LION on {len(rows)} of 16 data sets, seeds {', '.join(seeds)}. `advised` is what "
        "`moose tune` advises each seed from the log alone, `best in hindsight` the one position "
        "(or hold) that earns most for all seeds. The rule of choice was developed on runs of "
        f"{', '.join(short(data) for data in DEVELOPED_ON)} (\\*); only the others test it, and "
        "not all of it: that the most sceptical model counts only where situations are new was "
        "settled for the sake of mediocre-0.8 with the figures of all data sets in view. "
        "Earnings are 10th percentiles as everywhere on this page, the behaviour's a mean. "
        "Records are the best that anybody has published, with hindsight; those without (p) are "
        "means, to be compared with ours, and read off a figure.",
        "",
        "How LION's models are built, among about ten ways, and how wide its policy is were chosen "
        "by what policies of seed 1 earned in the plant on "
        f"{', '.join(short(data) for data in LION_DEVELOPED_ON)}: there seed 1 is no test of LION "
        "(and of the width, neither is seed 2 on optimized-0.6 and mediocre-0.8). "
        f"Hold alone, without any learning, beats {beaten_by_hold(rows)} of the records.",
        "",
        *table_of(
            earnings,
            [
                [
                    marked(row),
                    *(number(row[name]) for name in ("log", "clone", "hold", "paper")),
                    number(row["record"])
                    + (" (p)" if row["data"] in RECORDS_THAT_ARE_PERCENTILES else ""),
                    row["advised_positions"],
                    number(row["advised"]),
                    number(row["advised_mean"]),
                    row["best_position"],
                    number(row["best"]),
                    number(row["best_mean"]),
                ]
                for row in rows
            ],
        ),
        "",
        "Regret: what the best position in hindsight earns more than the one that a rule chooses. "
        "(A 10th percentile over all seeds is about that of the worst seed.)",
        "",
        *table_of(
            regrets,
            [
                [name, *(number(value) for value in values)]
                for name, values in (
                    *((marked(row), [row[key] for key in REGRETS]) for row in rows),
                    (
                        "mean where not developed",
                        [mean_of([row[key] for row in untouched]) for key in REGRETS],
                    ),
                    (
                        "median where not developed",
                        [median_of([row[key] for row in untouched]) for key in REGRETS],
                    ),
                    (
                        "worst where not developed",
                        [max((row[key] for row in untouched), default=None) for key in REGRETS],
                    ),
                )
            ],
        ),
        "",
        "| hoped for | reached |",
        "|---|---|",
        *(f"| {goal} | {reached} |" for goal, reached in goals_of(rows, sum(runs))),
    ]
    return "\n".join(lines) + "\n"


def beaten_by_hold(rows: Sequence[Row]) -> int:
    """How many records never changing anything beats."""
    return sum(row["record"] is not None and row["hold"] > row["record"] for row in rows)


def goals_of(rows: Sequence[Row], runs: int) -> Iterator[tuple[str, str]]:
    """What was hoped for, and how far it was reached."""
    known = [row for row in rows if row["record"] is not None]

    def beaten(column: str) -> str:
        strictly = sum(row[column] > row["record"] for row in known)
        alike = sum(
            row[column if row["data"] in RECORDS_THAT_ARE_PERCENTILES else f"{column}_mean"]
            > row["record"]
            for row in known
        )
        return f"{strictly} of {len(known)}; {alike} where means are compared with means"

    yield "better than the record with hindsight: 12 of 16", beaten("best")
    yield "better than the record at the advised position: 9 of 16", beaten("advised")
    lost = max(rows, key=lambda row: max(row["clone"], row["hold"]) - row["advised"])
    loss = max(lost["clone"], lost["hold"]) - lost["advised"]
    yield (
        "never more than 1 worse than the better of clone and hold",
        f"{number(loss)} worse at most" if loss > 0 else f"always better, by {number(-loss)}",
    )
    noisy = [row for row in rows if float(row["data"].rsplit("-", 1)[1]) >= 0.4]
    better = sum(row["advised"] > row["hold"] for row in noisy)
    yield "better than hold wherever ε is 0.4 or more", f"{better} of {len(noisy)}"
    near = [row for row in rows if abs(row["clone_mean"] - row["log"]) <= 0.03 * abs(row["log"])]
    others = ", ".join(marked(row) for row in rows if row not in near)
    yield (
        "λ = 0 earns what the behaviour does, within 3 %",
        f"{len(near)} of {len(rows)}" + (f"; not on {others}" if others else ""),
    )
    growing = sum(row["distance_grows"] for row in rows)
    yield "distance from the behaviour grows with λ", f"{growing} of {runs} runs"
    held, on_dial, dial_held = (
        sum(row[name] for row in rows)
        for name in ("lower_bounds_held", "on_dial", "lower_bounds_held_on_dial")
    )
    yield (
        "the plant earns the lower bound at least",
        f"{held} of {runs} runs; {dial_held} of the {on_dial} in which a position is advised",
    )


def table_of(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    rule = "|---" + "|---:" * (len(head) - 1) + "|"
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *lines))
    return [first, rule, *others]


def short(data: str) -> str:
    """A data set's name without its family."""
    return data.split("/", 1)[-1]


def marked(row: Row) -> str:
    """The name, marked where the rule of choice was found."""
    return short(row["data"]) + (" \\*" if row["developed_on"] else "")


def mean_of(values: Sequence[float]) -> float | None:
    """The mean, if there is one."""
    return float(np.mean(values)) if values else None


def median_of(values: Sequence[float]) -> float | None:
    """The median, if there is one."""
    return float(np.median(values)) if values else None


def number(value: float | None) -> str:
    """For people."""
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


if __name__ == "__main__":
    main()
