"""Benchmarks run small, and keep what they promise."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

import numpy as np
import pytest

from runs import log


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


def test_both_kinds_of_models_are_fitted_and_compared(tmp_path, capsys):
    kinds = benchmark("model_kinds")
    tiny = ("epochs=1", "hidden=[8]", "recurrent.updates=3", "recurrent.units=4", "members=2")
    words = ["--data", str(log()), "--json", str(tmp_path / "kinds.json")]
    kinds.main([*words, *(f"--set={text}" for text in tiny)])
    assert "processor time" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "kinds.json").read_text())["rows"]
    for kind in ("recurrent", "paper"):
        assert row[kind]["cpu_seconds"] > 0
        assert set(row[kind]["errors"]) == {"fatigue", "consumption"}
        assert set(row[kind]["errors"]["fatigue"]) == {"1", "10", "50"}
        elsewhere = row[kind]["elsewhere"]
        assert set(elsewhere["errors"]) == {"fatigue", "consumption"}
        assert min(elsewhere["errors"].values()) > 0
        assert np.isfinite([elsewhere["over_promise"], elsewhere["over_promise_deviation"]]).all()
    expected = [row[kind]["errors"]["consumption"]["50"] for kind in ("recurrent", "paper")]
    assert row["error_ratio"]["consumption"]["50"] == pytest.approx(expected[0] / expected[1])
    assert (kinds.ratio(0.0, 0.0), kinds.ratio(1.0, 0.0)) == (1.0, float("inf"))
