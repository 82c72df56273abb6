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


def test_a_large_store_is_counted_and_tabulated_at_once(tmp_path):
    """A tenth of the benchmark's million records."""
    store = benchmark("grid_store")
    store.fill(tmp_path, 100_000)
    begun = time.process_time()
    found = store.measure(tmp_path)
    assert time.process_time() - begun < 2.0
    assert found["records"] >= 100_000
    assert found["bytes"] < 60 * found["records"]
