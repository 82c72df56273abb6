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


def load(name):
    file = Path(__file__).parent.parent / "studies" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def calibration():
    return load("calibration")


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


def test_the_study_of_bias(tmp_path):
    pytest.importorskip("matplotlib")
    bias, results = load("bias"), tmp_path / "results"
    common = ["--out", str(tmp_path / "runs"), *(f"--set={text}" for text in TINY)]
    bias.main([*common, "--results", str(results), "--data", "ib/bad-0.2"])
    with open(results / "bias.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["variant"] for row in rows] == ["penalised", "unpenalised"]
    assert rows[0]["bias"] != rows[1]["bias"]
    for row in rows:
        promise = float(row["imagined_return"]) - float(row["true_return"])
        assert float(row["over_promise"]) == pytest.approx(promise, abs=0.02)
        assert float(row["bias"]) > 0.0
    assert "<svg" in (results / "bias.svg").read_text(encoding="utf-8")


def test_without_penalty_a_step_along_the_return_is_as_long(tmp_path):
    bias = load("bias")
    from moose.experiments.runner import make_request

    with_penalty, without = (
        make_request("ib/bad-0.2", overrides=overrides).config["search"]
        for overrides in bias.VARIANTS.values()
    )
    assert without["return_weight"] == 1.0
    lengths = [s["return_weight"] * s["learning_rate"] for s in (with_penalty, without)]
    assert lengths[0] == pytest.approx(lengths[1])
