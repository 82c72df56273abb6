"""The demonstration, small."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from documents import ROOT, sessions
from moose.cli import app
from moose.experiments.demo import PICTURES, render

# Put over the document's command: less to compute, and sizes that no other test has. What the cache
# has fitted already, no progress is told of.
SMALL = (
    "dynamics.members=2",
    "dynamics.recurrent.units=5",
    "support.width=9",
    "search.hidden=[8]",
    "search.start_states=4",
    "search.horizon=5",
)


def run(*words):
    """Run a command; the words are those after ``moose``."""
    ended = CliRunner().invoke(app, [*words, *(f"--set={text}" for text in SMALL)])
    assert ended.exit_code == 0, ended.output
    return ended


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The words of the document's command, for a folder of ours."""
    (shown,) = (
        words
        for words in (shlex.split(text) for text, _ in sessions(ROOT / "docs" / "cli.md"))
        if words[:2] == ["moose", "demo"]
    )
    place = shown.index("--out") + 1
    shown[place] = str(tmp_path_factory.mktemp("demo") / shown[place])
    return shown[1:]


@pytest.fixture(scope="module")
def demo(command):
    ended = run(*command, "--json")
    out = Path(command[command.index("--out") + 1])
    return out, json.loads(ended.stdout), ended.stderr


def test_every_reference_controller_earns_about_what_is_expected(demo):
    _, result, _ = demo
    known = {row["name"].split(" (")[0]: row for row in result["controllers"]}
    assert known.keys() == {"bad", "mediocre", "hold", "set point", "optimized", "clone", "lion"}
    for name in known.keys() - {"clone", "lion"}:
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


def test_the_command_again_trains_nothing_anew(demo, command):
    _, result, _ = demo
    ended = run(*command, "--json")
    assert json.loads(ended.stdout)["controllers"] == result["controllers"]
    stages = {json.loads(line)["stage"] for line in ended.stderr.splitlines()}
    assert "playing" in stages
    assert not stages & {"models", "support"}
