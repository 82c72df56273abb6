"""The example plant: made by its script, the same in both languages, with flaws."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from moose.tasks.intake import load_plant

EXAMPLES = Path(__file__).parent.parent / "examples"
PLANT = EXAMPLES / "plant"


def test_the_script_makes_the_files(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("make_plant_log", EXAMPLES / "make_plant_log.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    script.main()
    for name in ("plant.csv.gz", "plant_german.csv.gz"):
        assert (tmp_path / name).read_bytes() == (PLANT / name).read_bytes()


def test_both_languages_are_the_same_data_set():
    english, findings = load_plant(PLANT / "plant.yaml", [PLANT / "plant.csv.gz"])
    german, _ = load_plant(PLANT / "plant.yaml", [PLANT / "plant_german.csv.gz"])
    assert english.fingerprint == german.fingerprint
    codes = {finding.code for finding in findings}
    assert {"missing", "gap", "stuck"} <= codes
    assert english.provenance["changed"]["missing"] == 4
