"""Benchmarks of the grid run small, and keep what they promise."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path


def benchmark(name):
    file = Path(__file__).parent.parent / "benchmarks" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_a_store_is_counted_and_tabulated_in_time_that_grows_no_faster_than_it(tmp_path):
    """A tenth of the benchmark's million records, against a fiftieth, in the same run."""
    store = benchmark("grid_store")
    seconds, found = [], {}
    for records in (20_000, 100_000):
        folder = tmp_path / str(records)
        store.fill(folder, records)
        begun = time.process_time()
        found = store.measure(folder)
        seconds.append(time.process_time() - begun)
    assert seconds[1] < 10 * seconds[0]  # five times the records; a square would be 25
    assert found["records"] >= 100_000
    assert found["bytes"] < 60 * found["records"]
