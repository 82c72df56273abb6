"""The page on training lists the settings of all algorithms, with defaults, and all presets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moose.algorithms.registry import ALGORITHMS
from moose.config import Settings, load_settings
from moose.experiments.judgement import JudgeSettings, judge_settings
from moose.experiments.tuning import TuneSettings, tune_settings

TEXT = (Path(__file__).parent.parent / "docs" / "training.md").read_text()


def names_in(schema, path=""):
    """All settings, those that are left out of a tree while they have their defaults among them."""
    for name, field in schema.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            yield from names_in(kind, f"{path}{name}.")
        else:
            yield path + name


def table_below(heading):
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.-]+)` \|([^|]*)\|", section, re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return {name: cell.strip() for name, cell in rows}


def listed_settings(name):
    title = "behaviour cloning" if name == "clone" else name.upper()
    listed = table_below(f"All settings of {title}")
    assert listed
    # What several have in common stands once.
    is_critic = name not in {"moose", "lion", "clone"}
    return table_below("All settings of DDPG") | listed if is_critic else listed


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_is_listed(name):
    assert set(listed_settings(name)) == set(names_in(ALGORITHMS[name].config))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_defaults_in_the_table_are_the_defaults(name):
    config = ALGORITHMS[name].config
    overrides = [f"{setting}={value}" for setting, value in listed_settings(name).items()]
    assert load_settings(config, overrides=overrides) == config()


def test_the_settings_of_a_judgement_are_listed_with_their_defaults():
    listed = table_below("What it is worth without a simulator")
    # What the models of a judgement may be is told once, with the settings of MOOSE.
    listed |= {
        setting: value
        for setting, value in listed_settings("moose").items()
        if setting.startswith("dynamics.recurrent.")
    }
    assert set(listed) == set(names_in(JudgeSettings))
    assert judge_settings([f"{name}={value}" for name, value in listed.items()]) == JudgeSettings()


def test_the_settings_of_a_tuning_are_listed_with_their_defaults():
    listed = table_below("All settings of a tuning")
    assert tune_settings([f"{name}={value}" for name, value in listed.items()]) == TuneSettings()
    # What recurrent models may be is told once, and what each kind does not look at not at all.
    unused = re.compile(
        r"stacked\.recurrent\.|recurrent\.recurrent\."
        r"|recurrent\.(hidden|epochs|batch_size|learning_rate)$"
    )
    missing = set(names_in(TuneSettings)) - set(listed)
    assert set(listed) < set(names_in(TuneSettings))
    assert all(unused.match(name) for name in missing)


def test_every_preset_is_listed():
    presets = {preset for algorithm in ALGORITHMS.values() for preset in algorithm.presets}
    assert set(table_below("Presets")) == presets


@pytest.mark.parametrize(
    "name", ["manifest.json", "metrics.jsonl", "evaluations.jsonl", "judgement.json", "report.html"]
)
def test_the_files_of_a_run_are_described(name):
    assert f"| `{name}` |" in TEXT
