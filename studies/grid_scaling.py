"""How a grid of the paper's size would run on 1, 8 and 64 workers: a discrete-event simulation.

It takes the plan of the paper's Table 2 (sixteen data sets × five algorithms × ten seeds), the
order in which the real conductor starts runs (:func:`moose.experiments.grid.next_to_start`), and
the costs of a run from a file that ``--measure`` writes on the machine at hand. Algorithms that the
grid does not have keep the costs that are in the file, which may be a guess: ``source`` says so.

    python studies/grid_scaling.py --measure grids/table2.yaml --costs results/scaling/costs.json
    python studies/grid_scaling.py --costs results/scaling/costs.json --out results/scaling
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moose.envs.recipes import dataset_names
from moose.experiments.conductor import estimate_grid
from moose.experiments.engines import make_engine
from moose.experiments.grid import ShareKey, next_to_start, read_grid
from moose.storage import atomic_file, write_json

ALGORITHMS = ("moose", "ddpg", "brac", "bear", "bcq")
SEEDS = 10
WORKERS = (1, 8, 64)
EVALUATIONS = 101
BYTES_OF_RECORD = 29
"""Of a store with a million records: see benchmarks/grid_store.py."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan and what it costs."""

    key: ShareKey
    shared: float
    """Seconds of fits that runs with the same key need as well"""
    own: float
    """Seconds besides"""


@dataclass(frozen=True)
class Simulated:
    """What a simulation found."""

    workers: int
    wall: float
    busy: float
    critical_path: float

    @property
    def efficiency(self) -> float:
        """Share of the workers' time in which they had something to do."""
        return self.busy / (self.wall * self.workers)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure costs, or simulate with those that were measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", type=Path, help="a grid whose algorithms are measured")
    parser.add_argument("--costs", type=Path, required=True, help="the file of costs")
    parser.add_argument("--out", type=Path, help="folder to write scaling.json and the table into")
    chosen = parser.parse_args(arguments)
    if chosen.measure:
        measure(chosen.measure, chosen.costs)
    if chosen.out:
        costs = json.loads(chosen.costs.read_text(encoding="utf-8"))
        result = simulate_all(costs["algorithms"])
        chosen.out.mkdir(parents=True, exist_ok=True)
        with atomic_file(chosen.out / "scaling.json") as temporary:
            write_json(temporary, result | {"measured_on": costs["measured_on"]})
        print(as_markdown(result))


def measure(file: Path, to: Path) -> None:
    """Measure every algorithm of a grid with one worker of one thread."""
    grid = read_grid(file)
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine("local", 1, 1, Path(folder) / "logs")
        found = estimate_grid(grid, str(file), Path(folder), engine, threads=1)
    before = json.loads(to.read_text(encoding="utf-8")) if to.exists() else {"algorithms": {}}
    costs = before["algorithms"] | {
        variant["label"]: {"source": "measured"}
        | {name: variant[name] for name in ("shared", "own", "run_bytes")}
        for variant in found["variants"]
    }
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "threads_of_a_worker": 1}
    to.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(to) as temporary:
        write_json(temporary, {"algorithms": costs, "measured_on": machine})


def simulate_all(costs: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The plan of the paper's Table 2 on every number of workers."""
    runs = paper_plan(costs)
    simulated = [simulate(runs, workers) for workers in WORKERS]
    return {
        "runs": len(runs),
        "evaluations": len(runs) * EVALUATIONS,
        "store_bytes": len(runs) * EVALUATIONS * BYTES_OF_RECORD,
        "folder_bytes": sum(
            costs[name]["run_bytes"] for name in ALGORITHMS for _ in dataset_names()
        )
        * SEEDS,
        "algorithms": {name: dict(costs[name]) for name in ALGORITHMS},
        "simulations": [
            {
                "workers": found.workers,
                "wall_hours": found.wall / 3600,
                "critical_path_hours": found.critical_path / 3600,
                "worker_hours": found.busy / 3600,
                "efficiency": found.efficiency,
            }
            for found in simulated
        ],
    }


def paper_plan(costs: Mapping[str, Mapping[str, float]]) -> list[PlannedRun]:
    """All runs in the order of a plan: every cell of the first seed, then the second."""
    return [
        PlannedRun((data, name, seed), costs[name]["shared"], costs[name]["own"])
        for seed in range(SEEDS)
        for data in dataset_names()
        for name in ALGORITHMS
    ]


def simulate(runs: Sequence[PlannedRun], workers: int) -> Simulated:
    """Start runs as the conductor does whenever a worker is free, until all are done.

    A run whose fit another one is making waits for it inside its worker, as real ones do.
    """
    waiting, time, busy = list(runs), 0.0, 0.0
    ends: list[float] = []
    fit_ready: dict[ShareKey, float] = {}
    while waiting or ends:
        while waiting and len(ends) < workers:
            fitting = {key for key, ready in fit_ready.items() if ready > time}
            index = next_to_start([run.key for run in waiting], fitting)
            run = waiting.pop(index or 0)
            ready = fit_ready.setdefault(run.key, time + run.shared)
            end = max(time, ready) + run.own
            heapq.heappush(ends, end)
            busy += end - time
        time = heapq.heappop(ends)
    longest = max(run.shared + run.own for run in runs)
    return Simulated(workers, time, busy, longest)


def as_markdown(result: Mapping[str, Any]) -> str:
    """The tables of docs/scaling.md."""
    lines = [
        "| algorithm | shared fits | the rest | folder | source |",
        "|---|---:|---:|---:|---|",
        *(
            f"| {name} | {cost['shared'] / 60:.1f} min | {cost['own'] / 60:.1f} min "
            f"| {cost['run_bytes'] / 1e6:.1f} MB | {cost['source']} |"
            for name, cost in result["algorithms"].items()
        ),
        "",
        f"{result['runs']} runs, {result['evaluations']:,} evaluations; the store takes about "
        f"{result['store_bytes'] / 1e6:.1f} MB, "
        f"the run folders {result['folder_bytes'] / 1e9:.1f} GB.",
        "",
        "| workers | wall time | worker-hours | busy | critical path |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in result["simulations"]:
        lines.append(
            f"| {row['workers']} | {row['wall_hours']:.1f} h | {row['worker_hours']:.1f} h "
            f"| {100 * row['efficiency']:.0f} % | {row['critical_path_hours']:.2f} h |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
