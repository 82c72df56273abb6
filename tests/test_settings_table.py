"""The page on training lists every setting of MOOSE, with its default, and every preset."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moose.algorithms import moose
from moose.config import load_settings, settings_tree

TEXT = (Path(__file__).parent.parent / "docs" / "training.md").read_text()


def leaves(tree, path=""):
    if not isinstance(tree, dict):
        return {path: tree}
    parts = [leaves(below, f"{path}.{name}".lstrip(".")) for name, below in tree.items()]
    return {name: value for part in parts for name, value in part.items()}


def table_below(heading):
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.-]+)` \|([^|]*)\|", section, re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return {name: cell.strip() for name, cell in rows}


def test_every_setting_is_listed():
    assert set(table_below("All settings of MOOSE")) == set(leaves(settings_tree(moose.Config())))


def test_the_defaults_in_the_table_are_the_defaults():
    listed = table_below("All settings of MOOSE")
    overrides = [f"{name}={value}" for name, value in listed.items()]
    assert load_settings(moose.Config, overrides=overrides) == moose.Config()


def test_every_preset_is_listed():
    assert set(table_below("Presets")) == set(moose.PRESETS)


@pytest.mark.parametrize("name", ["manifest.json", "metrics.jsonl", "evaluations.jsonl"])
def test_the_files_of_a_run_are_described(name):
    assert f"| `{name}` |" in TEXT
