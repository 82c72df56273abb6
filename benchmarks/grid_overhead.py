"""What a grid's bookkeeping costs: one run of the preset ``quick``, conducted by a grid.

    python benchmarks/grid_overhead.py                      # MOOSE
    python benchmarks/grid_overhead.py --algorithm clone    # a shorter run, so a harder test

Bookkeeping is what a plain ``moose train`` would not do: the conductor's own processor time, and
the time in which the worker had nothing to do (from its answer to the books, from the books to its
next job). The start of the worker process is told apart: ``moose train`` imports the same modules.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from moose.config import build_settings
from moose.experiments.conductor import run_grid
from moose.experiments.engines import LocalEngine
from moose.experiments.grid import Grid
from moose.experiments.store import Store
from moose.experiments.worker import Job, Outcome


class TimedEngine(LocalEngine):
    """Takes the time in which workers are at work, as the conductor sees it."""

    at_work = 0.0
    _begun = 0.0

    def submit(self, job: Job) -> int:
        """Begin a job and take the time."""
        self._begun = time.perf_counter()
        return super().submit(job)

    def wait(self, timeout: float) -> list[tuple[int, Outcome]]:
        """Wait, and take the time of what has ended."""
        ended = super().wait(timeout)
        if ended:
            self.at_work += time.perf_counter() - self._begun
        return ended


def main() -> None:
    """Run, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="moose")
    parser.add_argument("--data", default="ib/mediocre-0.6")
    chosen = parser.parse_args()
    tree = {
        "name": "overhead",
        "blocks": [
            {
                "data": [chosen.data],
                "algorithms": [{"name": chosen.algorithm, "preset": "quick"}],
            }
        ],
    }
    grid = build_settings(Grid, tree)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        engine = TimedEngine(1, 1, place / "logs")
        cpu, wall = time.process_time(), time.perf_counter()
        run_grid(grid, "benchmark", place / "grid", engine, cache=place / "cache")
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        with Store(place / "grid") as store:
            ((_, _, _, seconds, _),) = store.timings()
    idle = wall - engine.at_work
    result = {
        "run_seconds": seconds,
        "wall_seconds": wall,
        "conductor_cpu_seconds": cpu,
        "worker_idle_seconds": idle,
        "bookkeeping_share": (cpu + idle) / seconds,
    }
    print(json.dumps({name: round(value, 4) for name, value in result.items()}, indent=2))


if __name__ == "__main__":
    main()
