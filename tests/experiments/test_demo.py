"""The demonstration, small."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from moose.experiments.demo import PICTURES, render, run_demo
from moose.progress import JsonProgress
from runs import moose

# Sizes that no other test has: what the cache has fitted already, no progress is told of.
TINY = (
    "dynamics.epochs=1",
    "dynamics.hidden=[9]",
    "support.epochs=1",
    "support.width=9",
    "search.hidden=[8]",
    "search.updates=3",
    "search.start_states=4",
    "search.horizon=5",
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "demo"
    stream = io.StringIO()
    result = run_demo(out, episodes=100, overrides=TINY, progress=JsonProgress(stream))
    return out, result, stream.getvalue()


def test_every_reference_controller_earns_about_what_is_expected(demo):
    _, result, _ = demo
    known = {row["name"].split(" (")[0]: row for row in result["controllers"]}
    assert known.keys() == {"bad", "mediocre", "hold", "set point", "optimized", "clone", "moose"}
    for name in known.keys() - {"clone", "moose"}:
        row = known[name]
        assert abs(row["measured"] - row["expected"]) < 4 * row["standard_error"] + 0.05
    returns = [row["measured"] for row in result["controllers"]]
    assert returns == sorted(returns)


def test_the_clone_earns_about_what_its_data_do(demo):
    _, result, _ = demo
    (clone,) = (row for row in result["controllers"] if row["name"].startswith("clone"))
    assert abs(clone["measured"] - result["dataset"]["returns"]["mean"]) < 5


def test_the_result_is_plain_and_the_pictures_are_there(demo):
    out, result, _ = demo
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["dataset"]["transitions"] == 100_000
    assert {file.name for file in out.iterdir()} == {*(f"{n}.png" for n in PICTURES), "runs"}
    assert result["pictures"] == {name: str(out / f"{name}.png") for name in PICTURES}


def test_models_are_judged_on_held_out_episodes(demo):
    _, result, _ = demo
    errors = result["models"]["model_errors"]
    assert set(errors["error"]) == {"fatigue", "consumption"}
    assert all(len(values) == errors["steps"] for values in errors["error"].values())
    quantiles = result["models"]["novelty"]["held_out"]
    assert quantiles == sorted(quantiles)


def test_progress_is_told(demo):
    stages = {json.loads(line)["stage"] for line in demo[2].splitlines()}
    assert stages >= {"models", "support", "policy", "playing"}


def test_people_see_a_table(demo):
    _, result, _ = demo
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(render(result))
    text = console.export_text()
    for row in result["controllers"]:
        assert row["name"] in text
        assert f"{row['measured']:.2f}" in text


def test_the_command_again_trains_nothing_anew(demo):
    out, result, _ = demo
    tiny = [f"--set={text}" for text in TINY]
    ended = moose("demo", "--out", out, "--episodes", 100, "--json", *tiny)
    assert ended.code == 0, ended.errors
    assert json.loads(ended.out)["controllers"] == result["controllers"]
    stages = {json.loads(line)["stage"] for line in ended.errors.splitlines()}
    assert "playing" in stages
    assert not stages & {"models", "support"}
