"""Studies run from end to end, small, and can be interrupted between runs."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest

TINY = (
    "dynamics.epochs=1",
    "dynamics.hidden=[8]",
    "support.epochs=1",
    "support.width=8",
    "search.hidden=[8]",
    "search.updates=10",
    "search.start_states=4",
    "search.horizon=5",
)


@pytest.fixture(scope="module")
def calibration():
    file = Path(__file__).parent.parent / "studies" / "calibration.py"
    specification = importlib.util.spec_from_file_location("calibration", file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_calibration_study(calibration, tmp_path):
    runs, results = tmp_path / "runs", tmp_path / "results"
    common = ["--out", str(runs), *(f"--set={text}" for text in TINY)]
    screening = ["--stage", "screening", "--only", "means,paper", "--data", "ib/bad-0.2"]
    calibration.main([*common, *screening])
    calibration.main([*common, *screening, "--collect", str(results)])
    with open(results / "calibration.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["variant"] for row in rows] == ["means", "paper"]
    for row in rows:
        assert (row["updates"], row["paper"]) == ("10", "-125.9")
        assert float(row["tail_p10"]) == pytest.approx(float(row["after_10"]), abs=0.01)


def test_every_variant_is_a_valid_configuration(calibration):
    from moose.experiments.runner import make_request

    for _, common in calibration.STAGES.values():
        for overrides in calibration.VARIANTS.values():
            make_request("ib/bad-0.2", overrides=[*common, *overrides])


def test_collecting_nothing_is_an_error(calibration, tmp_path):
    with pytest.raises(SystemExit, match="no runs"):
        calibration.main(["--out", str(tmp_path), "--collect", str(tmp_path / "results")])
