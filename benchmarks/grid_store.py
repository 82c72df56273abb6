"""A store of a million evaluation records: how long status and table take.

    python benchmarks/grid_store.py                  # 1,000,000 records
    python benchmarks/grid_store.py --records 100000

Records are written in the transactions of a real grid: one run after the other is claimed, gets its
101 evaluations and is marked as done. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from moose.envs.recipes import dataset_names
from moose.experiments.grid_status import grid_status
from moose.experiments.run_folder import Request
from moose.experiments.store import Evaluation, PlannedCell, Store, make_owner, now
from moose.experiments.tables import make_table, to_markdown

LABELS = ("moose", "clone", "ddpg", "brac", "bear", "bcq")
EVALUATIONS = 101


def fill(folder: Path, records: int) -> float:
    """Fill a store; the seconds it took."""
    places = [(label, data) for data in dataset_names() for label in LABELS]
    seeds = -(-records // (EVALUATIONS * len(places)))
    cells = [
        PlannedCell(
            label,
            data,
            seed,
            f"{label}-{data}-{seed}",
            Request(data=data, algorithm=label, seed=seed),
        )
        for seed in range(seeds)
        for label, data in places
    ]
    facts = {
        "batch": {"mean": -100.0, "standard_error": 1.0},
        "behaviour": [-100.0 + i for i in range(10)],
        "hold": [-65.0 + 0.01 * i for i in range(100)],
    }
    begun = time.perf_counter()
    owner, rng = make_owner(), np.random.default_rng(0)
    with Store(folder, is_new=True) as store:
        store.plan({"name": "million", "grid": {}}, dict.fromkeys(dataset_names(), facts), cells)
        for run in store.open_runs():
            store.claim(run, owner, "worker-0", now())
            means = rng.normal(-80.0, 5.0, EVALUATIONS).tolist()
            lines = [Evaluation(10 * i, mean, 1.0, 10) for i, mean in enumerate(means)]
            store.finish(run.id, owner, lines, 60.0, now())
    return time.perf_counter() - begun


def measure(folder: Path) -> dict[str, float]:
    """Seconds for status and table, each with the opening of the file."""
    begun = time.perf_counter()
    with Store(folder) as store:
        status = grid_status(store)
    looked = time.perf_counter()
    with Store(folder) as store:
        to_markdown(make_table(store))
    ended = time.perf_counter()
    return {
        "records": status["evaluations"],
        "runs": status["runs"]["total"],
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "status_seconds": looked - begun,
        "table_seconds": ended - looked,
    }


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        filling = fill(Path(folder), chosen.records)
        cpu = time.process_time()
        result = measure(Path(folder))
        cpu = time.process_time() - cpu
    result |= {"filling_seconds": filling, "cpu_seconds_of_both": cpu}
    print(json.dumps({name: round(value, 3) for name, value in result.items()}, indent=2))


if __name__ == "__main__":
    main()
