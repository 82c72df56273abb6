"""The dial of a finished run is measured once, and what was found is left in its folder."""

from __future__ import annotations

import io
import json
import shutil

import pytest
from rich.console import Console

from listening import Listener
from moose.errors import RunError
from moose.experiments.tuning import (
    advised,
    changed_settings,
    next_steps,
    render,
    tune_run,
    tune_settings,
)
from moose.experiments.tuning_file import TUNING, read_tuning
from runs import give_dial, moose, undisturbed

QUICKLY = (
    *("stacked.epochs=1", "stacked.hidden=[8]", "stacked.batch_size=50"),
    *(
        "recurrent.recurrent.units=4",
        "recurrent.recurrent.updates=2",
        "recurrent.recurrent.rounds=1",
    ),
    *("selection.positions=3", "selection.num_starts=4", "selection.num_stretches=5"),
    *("selection.horizon=6", "selection.situations.references=50"),
)
WORDS = [word for change in QUICKLY for word in ("--set", change)]
SETTINGS = tune_settings(QUICKLY)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny run whose policy got a dial: what it learned at 0, an untrained network at 1."""
    folder = tmp_path_factory.mktemp("tuning")
    shutil.copytree(undisturbed().parent, folder, dirs_exist_ok=True)
    give_dial(folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def tuned(run):
    listener = Listener()
    found = tune_run(run, SETTINGS, cache=run.parent / "cache", progress=listener)
    return found, listener.stages


def test_what_was_found_is_left_in_the_run(run, tuned):
    found, stages = tuned
    content = json.loads((run / TUNING).read_text())
    assert content == found.content == read_tuning(run)
    assert content["positions"] == [0.0, 0.5, 1.0]
    assert [row["position"] for row in content["dial"]] == content["positions"]
    assert content["protocol"]["models"] == 8
    assert content["protocol"]["steps"] == 6
    assert content["protocol"]["starts"] == "any"  # four episodes are too few to begin with
    for row in (*content["dial"], content["hold"]):
        assert row["low"] <= row["return"] <= row["high"]
        assert row["lower_bound"] <= row["low"]
        assert 0 <= row["strayed"] <= row["apart"] + 1e-6
        assert len(row["signals"]["velocity"][1]) == 7
        assert len(row["actions"]["d_gain"][1]) == 6
    advice = content["advice"]
    assert advice["choice"] in {"dial", "hold"}
    assert (advice["position"] is None) == (advice["choice"] == "hold")
    assert len(content["models"]["over_promise"]) == 5
    assert "models, group 1, stacked" in stages
    assert "models, group 2, recurrent" in stages


def test_it_is_measured_once_and_models_are_fitted_once(run, tuned):
    content = tuned[0].content
    cache = run.parent / "cache"
    listener = Listener()
    again = tune_run(run, None, cache=cache, progress=listener, is_fresh=False)
    assert again.content == content
    assert listener.stages == []
    afresh = tune_run(run, SETTINGS, cache=cache, progress=listener, is_fresh=True)
    assert afresh.content == content  # to the last bit, from cached models
    assert [name for name in listener.stages if "models" in name] == []


def test_other_settings_are_another_measurement(run, tuned):
    cache = run.parent / "cache"
    other = tune_settings([*QUICKLY, "selection.distrust=7"])
    found = tune_run(run, other, cache=cache, is_fresh=False).content
    assert found["digest"] != tuned[0].content["digest"]
    assert found["dial"][2]["lower_bound"] <= tuned[0].content["dial"][2]["lower_bound"]
    tune_run(run, SETTINGS, cache=cache)


def test_a_damaged_measurement_is_made_anew(run, tuned):
    (run / TUNING).write_text("{")
    found = tune_run(run, SETTINGS, cache=run.parent / "cache", is_fresh=False)
    assert found.content == tuned[0].content
    assert read_tuning(run) == tuned[0].content


def test_it_is_told_as_a_table(tuned):
    content = tuned[0].content
    out = io.StringIO()
    Console(file=out, width=200).print(render(content))
    text = out.getvalue()
    assert advised(content) in text
    for row in content["dial"]:
        assert f"{row['return']:.2f}" in text
    assert f"{content['logged']['return']:.2f}" in text
    assert text.count("*") == 1  # the advised row


def test_the_command_prints_it_for_people_and_for_programs(run, tuned):
    common = ("--cache", run.parent / "cache", "--quiet")
    ended = moose("tune", run, *common, *WORDS)
    assert ended.code == 0, ended.errors
    assert ended.out.startswith("advice: ")
    ended = moose("tune", run, *common, "--json")
    assert json.loads(ended.out) == tuned[0].content


def test_a_measurement_that_is_shown_again_says_what_it_was_measured_with(run, tuned):
    changed = tuned[0].content["protocol"]["changed"]
    assert sorted(changed) == sorted(QUICKLY)
    (line, *_) = next_steps(tuned[0]._replace(is_known=True))
    assert line.startswith("measured before with ")
    assert "selection.positions=3" in line
    assert line.endswith(f"moose tune {run} --fresh")
    usual = {**tuned[0].content, "protocol": {"changed": changed_settings(tune_settings())}}
    assert usual["protocol"]["changed"] == []
    (line, *_) = next_steps(tuned[0]._replace(is_known=True, content=usual))
    assert line == f"measured before; to measure anew: moose tune {run} --fresh"


@pytest.mark.parametrize(
    ("position", "told"),
    [(None, "--serve"), (0.5, "--position 0.5 --out"), (0.7, "stands there: moose serve")],
)
def test_what_to_do_next_is_told(tuned, position, told):
    content = {**tuned[0].content, "advice": {"position": position}}
    (line,) = next_steps(tuned[0]._replace(content=content, position=0.7))
    assert told in line


def test_a_policy_without_a_dial_is_refused(tmp_path):
    folder = undisturbed()
    with pytest.raises(RunError) as error:
        tune_run(folder, SETTINGS, cache=tmp_path)
    assert "no dial" in str(error.value)
    assert "--algorithm lion" in str(error.value)
    assert not (folder / TUNING).exists()


def test_a_setting_that_is_none_is_named(run):
    ended = moose("tune", run, "--set", "selection.distrusts=1")
    assert ended.code == 2
    assert "selection.distrust" in ended.errors
    assert "Traceback" not in ended.errors
